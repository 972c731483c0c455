"""A command that does not use this package: the last line of its output, and what is measured from outside."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    PLAIN,
    UNSEEN,
    Observation,
    Phase,
    PlannedAttempt,
    State,
)
from airflow_provider_zeus.operators import external_meter
from airflow_provider_zeus.operators.external_meter import ExternalMeter, outcome_of, seen_to_use
from airflow_provider_zeus.power.cpu import EstimateDevice
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu

JOB = ZeusJob(batch_sizes=[32], default_batch_size=32, target="accuracy >= 0.8", max_epochs=10)
LOSS = ZeusJob(batch_sizes=[32], default_batch_size=32, target="rmse <= 1.5", max_epochs=10)
RUNTIME = ZeusJob(batch_sizes=[32], default_batch_size=32, target="rmse <= runtime", max_epochs=10)
PLANNED = PlannedAttempt(batch_size=32, phase=Phase.INCUMBENT, why="")
NOT_REPORTED = "measured from outside"
SEEN = Observation(
    energy_j=50.0, time_s=9.0, reasons={"epochs": NOT_REPORTED, "samples": NOT_REPORTED}
)


class TestLastLine:
    def test_reached(self) -> None:
        state, reason, seen = outcome_of(JOB, '{"accuracy": 0.85}', SEEN)
        assert (state, reason) == (State.CONVERGED, None)
        assert (seen.metric, seen.target_value, seen.epochs, seen.samples) == (0.85, 0.8, 1.0, None)
        assert (seen.energy_j, seen.time_s) == (50.0, 9.0)
        assert seen.reasons == {"samples": NOT_REPORTED}

    def test_with_epochs_and_samples(self) -> None:
        state, _, seen = outcome_of(
            JOB, '{"accuracy": 1, "epochs": 2.5, "samples": 125000, "note": "x"}', SEEN
        )
        assert state is State.CONVERGED
        assert (seen.epochs, seen.samples) == (2.5, 125_000)
        assert seen.reasons == {}

    def test_below_target(self) -> None:
        state, reason, seen = outcome_of(JOB, '{"accuracy": 0.7, "epochs": 10}', SEEN)
        assert (state, reason, seen.epochs) == (State.EXHAUSTED, "ended at 0.7, below target", 10.0)

    @pytest.mark.parametrize(
        ("value", "state"), [(1.5, State.CONVERGED), (1.4, State.CONVERGED), (1.6, State.EXHAUSTED)]
    )
    def test_a_metric_that_should_be_low(self, value: float, state: State) -> None:
        assert outcome_of(LOSS, json.dumps({"rmse": value}), SEEN)[0] is state

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "kept 32",
            "{",
            "[0.9]",
            "0.9",
            "null",
            "[" * 60_000,
            '{"loss": 0.1}',
            '{"accuracy": NaN}',
            '{"accuracy": Infinity}',
            '{"accuracy": 1e400}',
            f'{{"accuracy": {10**400}}}',
            '{"accuracy": true}',
            '{"accuracy": "0.9"}',
            '{"accuracy": null}',
            '{"accuracy": [0.9]}',
        ],
    )
    def test_without_the_metric_that_is_a_state_of_its_own_and_the_remedy_is_named(
        self, line: str
    ) -> None:
        state, reason, seen = outcome_of(JOB, line, SEEN)
        assert state is State.NO_METRIC
        assert reason is not None
        assert " accuracy: " in reason
        assert reason.endswith('{"accuracy": 0.9, "epochs": 12}'), "the remedy is an example"
        assert seen == SEEN, "no epochs are learnt from it"

    @pytest.mark.parametrize(
        ("line", "did"),
        [
            ("kept 32", "did not report its accuracy: "),
            (
                '{"acc": 0.9, "epochs": 12, "a secret": 1}',
                "reported acc, epochs, and not its accuracy: ",
            ),
            ('{"accuracy": NaN, "epochs": 12}', "reported no finite number as its accuracy: "),
            ('{"accuracy": "0.9"}', "reported no finite number as its accuracy: "),
        ],
    )
    def test_what_came_in_its_place_is_named(self, line: str, did: str) -> None:
        assert f"the command {did}" in str(outcome_of(JOB, line, SEEN)[1])

    @pytest.mark.parametrize(
        "epochs", ["0", "-1", "true", '"3"', "NaN", "1e999", "null", "1" + "0" * 400]
    )
    def test_epochs_that_cannot_be_are_one(self, epochs: str) -> None:
        assert outcome_of(JOB, f'{{"accuracy": 0.9, "epochs": {epochs}}}', SEEN)[2].epochs == 1.0

    @pytest.mark.parametrize(
        "samples", ["0", "-5", "0.5", "true", '"3"', "NaN", "1e300", "1" + "0" * 400]
    )
    def test_samples_that_cannot_be_are_missing(self, samples: str) -> None:
        seen = outcome_of(JOB, f'{{"accuracy": 0.9, "samples": {samples}}}', SEEN)[2]
        assert seen.samples is None
        assert seen.reasons == {"samples": NOT_REPORTED}

    def test_a_target_of_this_run(self) -> None:
        state, _, seen = outcome_of(RUNTIME, '{"rmse": 1.2, "target": 1.3}', SEEN)
        assert (state, seen.target_value) == (State.CONVERGED, 1.3)
        assert outcome_of(RUNTIME, '{"rmse": 1.4, "target": 1.3}', SEEN)[0] is State.EXHAUSTED

    def test_a_metric_may_be_named_target(self) -> None:
        job = replace(JOB, target="target >= 0.9")
        assert outcome_of(job, "done", SEEN)[0] is State.NO_METRIC
        assert outcome_of(job, '{"target": 0.95}', SEEN)[0] is State.CONVERGED

    @pytest.mark.parametrize(
        "more", ["", ', "target": NaN', ', "target": true', ', "target": "1.3"']
    )
    def test_a_target_of_this_run_that_is_not_reported(self, more: str) -> None:
        state, reason, seen = outcome_of(RUNTIME, f'{{"rmse": 1.2{more}}}', SEEN)
        assert (state, seen) == (State.EXHAUSTED, SEEN)
        assert reason is not None
        assert " target: " in reason
        assert '"target": 0.8' in reason

    def test_the_targets_value_is_the_jobs_where_it_has_one(self) -> None:
        assert outcome_of(JOB, '{"accuracy": 0.7, "target": 0.5}', SEEN)[0] is State.EXHAUSTED


class TestDevices:
    def test_a_simulated_gpu_does_not_move_by_itself(self, tmp_path: Path) -> None:
        gpu = SimulatedGpu("v100", load="shufflenet", state_file=tmp_path / "gpu")
        outside = ExternalMeter(gpu)
        time.sleep(0.01)
        point = outside.point()
        seen = outside.observation()
        assert (point.power_w, point.limit_w) == (None, 250.0)
        assert (seen.energy_j, seen.time_s) == (None, None)
        assert "use ZeusRun.from_env()" in seen.reasons["energy_j"]
        assert set(seen.reasons) == {"epochs", "samples", "energy_j", "time_s"}
        assert (seen.energy_source, seen.device_model, seen.gpu_uuid) == (
            "simulated",
            gpu.info.model,
            gpu.uuid,
        )

    def test_no_device(self) -> None:
        outside = ExternalMeter(NoneDevice())
        time.sleep(0.02)
        point = outside.point()
        seen = outside.observation()
        assert (point.power_w, point.limit_w) == (None, None)
        assert point.t_s >= 0.02
        assert seen.energy_j is None
        assert "energy" in seen.reasons["energy_j"]
        assert seen.time_s is not None
        assert seen.time_s >= point.t_s
        assert "time_s" not in seen.reasons

    def test_an_estimate(self) -> None:
        outside = ExternalMeter(EstimateDevice(cpu_watts=10.0))
        _busy(0.2)
        seen = outside.observation()
        assert seen.energy_j is not None
        assert seen.time_s is not None
        assert 1.0 < seen.energy_j <= 10.0 * seen.time_s * 1.5
        assert seen.energy_source == "estimate"
        _busy(0.1)
        assert (outside.observation().energy_j or 0) > seen.energy_j, "sums grow"

    def test_points_cover_the_time_since_the_last_one(self) -> None:
        outside = ExternalMeter(EstimateDevice(cpu_watts=10.0))
        _busy(0.2)
        busy = outside.point()
        time.sleep(max(0.2, busy.t_s))  # as long as it was busy on a host that others use
        idle = outside.point()
        assert busy.power_w is not None
        assert idle.t_s > busy.t_s + 0.15
        assert (idle.power_w or 0.0) < busy.power_w / 2

    def test_a_counter_that_goes_back_is_a_reason(self, tmp_path: Path) -> None:
        device = SimulatedGpu("v100", load="shufflenet", state_file=tmp_path / "gpu")
        # stands for a GPU whose driver was reloaded
        device.info = replace(device.info, energy_source="nvml_counter")
        device.on_step(100_000)
        outside = ExternalMeter(device)
        left = iter([1.0, 0.5])
        device.energy_j = lambda: next(left)  # type: ignore[method-assign]
        outside.point()
        seen = outside.observation()
        assert seen.energy_j is None
        assert "went back" in seen.reasons["energy_j"]


def _busy(for_s: float) -> None:
    """Use the processor for so long, whatever else runs on this host."""
    until_s = time.process_time() + for_s
    while time.process_time() < until_s:
        pass


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (["bash", "-c", "python -c 'print(1)' --batch-size $ZEUS_BATCH_SIZE"], True),
        (["python", "reads.py"], True),
        (["bash", "-c", "cd . && python 'reads.py' | tee log"], True),
        (["python", "-m", "package.reads"], True),
        (["sbatch", "--export=ALL", "reads.py"], True),
        (["bash", "run.sh"], True),
        (["bash", "-c", "cd . && ./run.sh 2>&1"], True),
        (["python", "imports.py"], True),
        (["bash", "-c", "cd deep && python train.py"], True),
        (["bash", "-c", "DIR=deep; python $DIR/train.py"], True),
        (["bash", "-c", "python $(pwd)/reads.py"], True),
        (["bash", "deep.sh"], True),
        (["python", "ignores.py"], False),
        (["bash", "-c", "cd deep && python ignores.py"], False),
        (["python", "-m", "package.ignores"], False),
        (["python", "-c", "print('done')"], False),
        (["./gone.py", "\0", "x" * 5000], False),
    ],
)
def test_a_command_is_seen_to_use_its_batch_size_by_its_words_and_the_scripts_that_they_lead_to(
    tmp_path: Path, command: list[str], seen: bool
) -> None:
    (tmp_path / "package").mkdir()
    for folder in (tmp_path, tmp_path / "package"):
        (folder / "reads.py").write_text("import os\nsize = int(os.environ['ZEUS_BATCH_SIZE'])\n")
        (folder / "ignores.py").write_text("size = 64\n")
        (folder / "imports.py").write_text(
            "from .reads import size\nimport torch.nn\nimport imports\n"
        )
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train.py").write_text("size = int(os.environ['ZEUS_BATCH_SIZE'])\n")
    (tmp_path / "deep.sh").write_text("cd deep && python train.py\n")
    (tmp_path / "run.sh").write_text("module load cuda\nsrun python -m package.imports\n")
    found = seen_to_use(SEEN, PLANNED, command, str(tmp_path)).reasons
    assert PLAIN in found, "nothing stops it"
    assert (UNSEEN not in found) == seen
    if not seen:
        assert found[UNSEEN].startswith("the command is not seen to use batch size 32")


def test_files_that_do_not_answer_hold_no_task_and_nothing_is_said_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(external_meter, "LOOK_S", 0.05)
    monkeypatch.setattr(external_meter, "names", lambda *_: answered.wait(60))
    found = seen_to_use(SEEN, PLANNED, ["./train.sh"], str(tmp_path)).reasons
    answered.set()
    assert PLAIN in found
    assert UNSEEN not in found
