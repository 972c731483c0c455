"""Power limits tuned by the steps that torch tells, of trainings that know nothing of it.

Real torch, simulated GPU.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import merged, summed
from airflow_provider_zeus.model.trial import (
    LIMIT,
    UNCAPPED,
    Observation,
    Phase,
    PlannedAttempt,
    ProfileSample,
)
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock, held_here
from airflow_provider_zeus.power.nvml import library
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.training import step_tuner
from airflow_provider_zeus.training.protocol.environment import PLAN, RESULT
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.step_handle import ScriptHandle, StepHandle
from airflow_provider_zeus.training.step_tuner import StepTuner
from airflow_provider_zeus.training.torch_listener import LEAD_STEPS, of_all, step_kind
from tests.fake_nvml import FakeNvml
from tests.unit.power.conftest import ROOT, wait_for

torch = pytest.importorskip("torch")

LIMITS_W = [250.0, 175.0, 100.0]


def plan(profile: tuple[ProfileSample, ...] = (), **changes: Any) -> Plan:
    fields = {"eta": 1.0, "power_limits_w": LIMITS_W, "profile_s": 0.5} | changes
    planned = PlannedAttempt(batch_size=None, phase=Phase.MEASURED, why="")
    spec = ZeusJob(**fields).to_dict()
    return Plan(
        job_id="d.t",
        ti_id="ti",
        number=1,
        first_attempt=1,
        spec=spec,
        attempts=(planned,),
        profile=profile,
    )


@pytest.fixture
def gpu(tmp_path: Path) -> SimulatedGpu:
    return SimulatedGpu("v100", load="shufflenet", state_file=tmp_path / "gpu")


@pytest.fixture
def tuned(tmp_path: Path, gpu: SimulatedGpu) -> Iterator[Callable[..., StepTuner]]:
    made: list[StepTuner] = []

    def make(with_plan: Plan | None = None) -> StepTuner:
        made.append(StepTuner(replace(with_plan or plan(), state_dir=str(tmp_path)), gpu))
        made[-1].look()
        return made[-1]

    yield make
    for tuner in made:
        tuner.stop()
        tuner.close()


def training(width: int = 4) -> tuple[Any, Callable[[], None]]:
    model = torch.nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, width)).sum().backward()
        optimizer.step()

    return optimizer, step


def kept(tuner: StepTuner) -> tuple[ProfileSample, ...]:
    tuner.stop()
    return summed(tuner.take_unsent())


def test_plain_torch_is_profiled_and_trains_on_at_the_best_limit(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    tuner, (optimizer, step) = tuned(), training()
    for _ in range(600):
        step()
    assert gpu.limit_w() == 100.0, "it draws least energy"
    seen = tuner.observed(Observation(energy_j=1.0, time_s=1.0, samples=None))
    assert seen.step_kind == step_kind(optimizer)
    assert seen.samples == 600 - LEAD_STEPS
    assert (seen.limit_found_w, seen.power_limit_w) == (250.0, 100.0)
    assert seen.excess_j is not None
    assert seen.excess_j > 0
    profile = kept(tuner)
    assert {s.limit_w for s in profile} == set(LIMITS_W)
    assert {s.batch_size for s in profile} == {step_kind(optimizer)}
    assert all(s.samples == s.steps for s in profile)
    tuner.close()
    assert gpu.limit_w() == 250.0, "the limit found is back"


def test_the_next_run_takes_the_profile_and_another_model_is_profiled_anew(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    first, (_, step) = tuned(), training()
    for _ in range(600):
        step()
    profile = kept(first)
    first.close()

    second, (_, step) = tuned(plan(profile)), training()
    for _ in range(LEAD_STEPS + 1):
        step()
    assert gpu.limit_w() == 100.0
    assert not second.take_unsent()
    _, other = training(width=8)
    for _ in range(LEAD_STEPS):
        other()
    assert gpu.limit_w() == 250.0, "another model: its profile begins at the highest limit"
    second.stop()


def test_the_optimizer_that_steps_most_leads(tuned: Callable[..., StepTuner]) -> None:
    tuner, (often, critic), (_, generator) = tuned(), training(width=16), training()
    for i in range(60):
        critic()
        if i % 5 == 0:
            generator()
    seen = tuner.observed(Observation())
    assert (seen.step_kind, seen.samples) == (step_kind(often), 60 - LEAD_STEPS)


def test_accumulated_gradients_count_as_the_step_that_they_end_in(
    tuned: Callable[..., StepTuner],
) -> None:
    tuner = tuned()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in range(80):
        model(torch.ones(2, 4)).sum().backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert tuner.observed(Observation()).samples == 20 - LEAD_STEPS


def test_a_window_that_a_pause_breaks_is_dropped(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    tuner, (_, step) = tuned(), training()
    for i in range(600):
        step()
        if i % 40 == 39:
            for _ in range(30):
                gpu.on_step(256)  # validation: the GPU works, and no optimizer steps
    profile = kept(tuner)
    full = 0.0
    tuner.close()
    alone, (_, step) = tuned(), training()
    for _ in range(600):
        step()
    for with_pauses, without in zip(profile, kept(alone), strict=False):
        if with_pauses.limit_w == without.limit_w:
            full += 1
            assert with_pauses.time_s / with_pauses.samples == pytest.approx(
                without.time_s / without.samples, rel=0.05
            )
    assert full


def test_where_limits_cannot_be_told_apart_none_is_chosen(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(step_tuner, "SIMULATED_SAMPLES", 512)
    caplog.set_level("INFO")
    equal = 0.35  # eta at which both limits cost the same
    first = plan(eta=equal, profile_s=5.0, power_limits_w=[250.0, 180.0])
    tuner, (_, step) = tuned(first), training()
    for _ in range(2500):
        step()
    assert gpu.limit_w() == 250.0
    assert "none is chosen" in caplog.text
    profile = kept(tuner)
    caplog.clear()
    tuned(replace(first, profile=profile))
    for _ in range(20):
        step()
    assert "none is chosen" in caplog.text, "by an earlier run's profile"


def test_the_highest_limit_of_a_list_stays_where_it_is_the_best(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    """It is below the limit found: where none is chosen, that one would be back."""
    below = plan(power_limits_w=[175.0])
    tuner, (_, step) = tuned(below), training()
    for _ in range(600):
        step()
    assert gpu.limit_w() == 175.0
    profile = kept(tuner)
    tuner.close()
    tuned(replace(below, profile=profile))
    for _ in range(20):
        step()
    assert gpu.limit_w() == 175.0, "by an earlier run's profile"


def test_where_no_limit_binds_the_walk_ends_with_its_first_window(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    # a load that draws less than any limit
    monkeypatch.setattr(step_tuner, "SIMULATED_SAMPLES", 32)
    caplog.set_level("INFO")
    tuner, (_, step) = tuned(plan(eta=0.5, profile_s=5.0)), training()
    for _ in range(2500):
        step()
    assert gpu.limit_w() == 250.0
    assert "No power limit is chosen" in caplog.text
    assert "the lowest limit is 100 W" in tuner.observed(Observation()).reasons[UNCAPPED]
    assert {sample.limit_w for sample in kept(tuner)} == {250.0}


@pytest.mark.parametrize(("mode", "limit_w"), [("observe", 250.0), ("measure", 250.0)])
def test_other_modes_leave_the_limit(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, mode: str, limit_w: float
) -> None:
    tuner, (_, step) = tuned(plan(mode=mode)), training()
    for _ in range(600):
        step()
    assert gpu.limit_w() == limit_w
    assert bool(kept(tuner)) is (mode == "observe")


def test_a_forked_child_tells_nothing(tuned: Callable[..., StepTuner]) -> None:
    tuner, (_, step) = tuned(), training()
    for _ in range(20):
        step()
    before = tuner.steps
    if (pid := os.fork()) == 0:
        step()
        os._exit(0 if tuner.steps == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_fails_in_here_fails_no_training(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    tuner, (_, step) = tuned(), training()
    for _ in range(40):
        step()

    def broken(samples: int) -> None:
        raise RuntimeError("the device fell off the bus")

    monkeypatch.setattr(gpu, "on_step", broken)
    for _ in range(10):
        step()
    assert tuner.over
    assert caplog.text.count("tunes no power limit from here on") == 1
    seen = tuner.observed(Observation())
    assert (seen.samples, seen.step_kind) == (None, None), "the steps from there on are not known"
    assert seen.reasons[LIMIT] == "its steps could not be counted"
    assert merged(Observation(samples=40), seen).samples is None, "nor does the row keep them"


def test_a_limit_that_cannot_be_given_back_in_a_step_is_given_back_at_the_end(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, (_, step) = tuned(), training()
    for _ in range(600):
        step()
    assert gpu.limit_w() == 100.0

    def broken(_: float) -> None:
        raise DeviceError("the driver does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(gpu, "on_step", broken)
        patched.setattr(gpu, "set_limit_w", broken)
        step()
    assert (tuner.over, gpu.limit_w()) == (True, 100.0)
    tuner.close()
    assert gpu.limit_w() == 250.0


def test_steps_of_another_framework_are_told_by_the_handle(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    tuner = tuned()
    run = StepHandle(tuner)
    for _ in range(600):
        run.step()
    assert gpu.limit_w() == 100.0
    with pytest.raises(Exception, match=r"run\.epochs needs a job that chooses batch sizes"):
        run.epochs()


def test_the_handle_of_steps_can_be_copied_and_pickled() -> None:
    run = StepHandle(None)
    for other in (copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        other.step()


@pytest.fixture
def plan_of_gpu(nvml: FakeNvml) -> Plan:
    nvml.add(tick_s=0.002, settle_s=0.002)
    return plan(device="nvml", profile_s=0.01)


def test_a_gpu_that_another_training_uses_gets_no_limit_and_nobody_waits(
    plan_of_gpu: Plan, nvml: FakeNvml, tmp_path: Path, caplog: Any
) -> None:
    holder = os.fork()
    if holder == 0:
        lock = GpuLock(tmp_path, [nvml.gpu(0).uuid.decode()], how="wait", wait_s=0.0)
        (tmp_path / "held").touch()
        while not (tmp_path / "done").exists():
            pass
        lock.close()
        os._exit(0)
    try:
        while not (tmp_path / "held").exists():
            pass
        tuner = StepTuner(replace(plan_of_gpu, state_dir=str(tmp_path)))
        tuner.look()
        _, step = training()
        for _ in range(40):
            step()
        assert nvml.gpu(0).limit_w == 250.0
        assert "another training of this host uses" in caplog.text
        assert not kept(tuner)
        tuner.close()
    finally:
        (tmp_path / "done").touch()
        os.waitpid(holder, 0)


def test_folds_of_one_model_go_on_and_each_model_keeps_its_profile_and_steps(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    tuner = tuned()
    # a cross validation: each optimizer is gone when the next one, often in its place, is made
    for _ in range(4):
        _, step = training()
        for _ in range(160):
            step()
        del step
    assert gpu.limit_w() == 100.0, "one profile for all folds"
    first = tuner.observed(Observation())
    small, (other, step) = first.step_kind, training(width=8)
    for _ in range(400):
        step()
    seen = tuner.observed(Observation())
    profile = kept(tuner)
    assert {s.batch_size for s in profile} == {small, step_kind(other)}, "nothing measured is lost"
    assert (seen.step_kind, seen.samples) == (small, first.samples), (
        "that of the model that stepped most"
    )
    assert seen.excess_j is not None
    assert first.excess_j is not None
    assert seen.excess_j > first.excess_j, "profiling the second model was paid for too"
    assert tuner.observed(Observation()).excess_j == seen.excess_j


def test_a_beat_at_any_moment_of_a_change_counts_a_model_once(
    tuned: Callable[..., StepTuner],
) -> None:
    tuner, (_, step), (_, other) = tuned(), training(), training(width=16)
    seen: list[int | None] = []

    def beat(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name != "_begin":
            return None
        beats = Thread(target=lambda: seen.append(tuner.observed(Observation()).samples))
        beats.start()
        beats.join(0.05)  # it may wait until the change is over
        return beat

    for _ in range(LEAD_STEPS + 32):
        step()
    before = sys.gettrace()
    sys.settrace(beat)
    for _ in range(LEAD_STEPS):
        other()
    sys.settrace(before)
    wait_for(lambda: len(seen) > 5, 60.0)
    assert set(seen) == {32}


def test_optimizers_that_take_turns_in_phases_get_one_leader(
    tuned: Callable[..., StepTuner],
) -> None:
    tuner, (critic, step_critic), (_, step_generator) = tuned(), training(width=16), training()
    for _ in range(60):
        for step in (step_critic, step_generator):
            for _ in range(LEAD_STEPS + 2):
                step()
    seen = tuner.observed(Observation())
    assert seen.step_kind == step_kind(critic)
    assert seen.samples is not None
    assert seen.samples > 50 * LEAD_STEPS


def test_a_compiled_step_trains_as_without_us(tuned: Callable[..., StepTuner]) -> None:
    tuner, (optimizer, _) = tuned(), training()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(30):
        step()
    assert not tuner.over
    assert tuner.observed(Observation()).samples == 30 - LEAD_STEPS


def test_where_no_step_is_seen_that_is_said(tuned: Callable[..., StepTuner], caplog: Any) -> None:
    caplog.set_level("INFO")
    tuner = tuned()
    for _ in range(LEAD_STEPS - 1):
        StepHandle(tuner).step()
    tuner.stop()
    why = "neither an optimizer of torch nor run.step() told 8 steps"
    assert f"tuned no power limit: in the process of this task {why}" in caplog.text


@pytest.mark.parametrize("when", ["as it begins", "in a window"])
def test_a_driver_that_hangs_in_a_step_holds_no_training(
    plan_of_gpu: Plan, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    tuner, (_, step) = (
        StepTuner(replace(plan_of_gpu, power_read_only=True, state_dir=str(tmp_path))),
        training(),
    )
    if when == "in a window":
        for _ in range(LEAD_STEPS):
            step()
    nvml.hang()
    monkeypatch.setattr(library, "RETURNS_S", 0.1)
    while not library.why_silent():  # it trains on, whatever the driver does
        step()
        if when == "in a window":
            assert tuner._device is not None
            tuner._device.limit_w()
    begun: list[object] = []
    monkeypatch.setattr(library, "bounded", lambda call, _: begun.append(call))
    for _ in range(100):
        step()
    tuner.stop()
    tuner.close()
    assert begun == [], "no call is made any more"
    assert not held_here()


KILLED = """
import sys, time
from dataclasses import replace
from pathlib import Path
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.step_tuner import StepTuner
tuner = StepTuner(replace(Plan.read(Path(sys.argv[1])), state_dir=sys.argv[2]))
while True:
    time.sleep(0.001)
    tuner.step()
"""


def test_a_training_that_is_killed_gives_the_limit_back(
    plan_of_gpu: Plan, nvml: FakeNvml, tmp_path: Path
) -> None:
    spec = {
        **plan_of_gpu.spec,
        "profile_s": 5.0,
    }  # so long that a busy host breaks few windows
    (tmp_path / "plan").write_text(replace(plan_of_gpu, spec=spec).to_json())
    command = [sys.executable, "-c", KILLED, str(tmp_path / "plan"), str(tmp_path)]
    training = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_for(lambda: nvml.gpu(0).limit_w < 250.0, 60.0)
    finally:
        training.kill()
        training.wait()
    wait_for(lambda: nvml.gpu(0).limit_w == 250.0, 60.0)
    wait_for(lambda: not list(tmp_path.glob("limit-*")), 60.0)


def test_a_short_gap_as_on_a_busy_host_breaks_no_window(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_tuner, "SIMULATED_SAMPLES", 2)  # 40 ms
    tuner = tuned(plan(profile_s=20.0, power_limits_w=[250.0, 100.0]))
    optimizer = training()[0]
    for i in range(2000):
        tuner.step(optimizer)
        if i % 20 == 0:
            for _ in range(5):  # the host does something else for 0.2 s
                gpu.on_step(2)
    assert {sample.limit_w for sample in kept(tuner)} == {250.0}, (
        "a whole window, and no limit holds these steps back"
    )


def test_where_all_steps_become_slower_for_good_the_profile_goes_on(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    tuner = tuned()
    optimizer = training()[0]
    for i in range(700):
        tuner.step(optimizer)
        if i > 40:  # as where larger inputs follow
            for _ in range(8):
                gpu.on_step(256)
    assert {sample.limit_w for sample in kept(tuner)} == set(LIMITS_W)


def test_the_steps_of_all_starts_of_the_kind_that_stepped_most_count() -> None:
    starts = [(10, 1), (15, 2), (8, 1)]
    told = [
        {"samples": samples, "step_kind": kind, "excess_j": 1.0, "excess_s": None}
        for samples, kind in starts
    ]
    assert of_all(told) == {"samples": 18, "step_kind": 1, "excess_j": 3.0, "excess_s": None}


def test_an_optimizer_that_has_a_length_of_zero_leads(tuned: Callable[..., StepTuner]) -> None:
    class Empty:
        def __len__(self) -> int:
            return 0

    tuner = tuned()
    optimizer = Empty()
    for _ in range(20):
        tuner.step(optimizer)
    assert tuner.observed(Observation()).step_kind == step_kind(optimizer)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[tuple[ScriptHandle, list[ResultLine]]]:
    lines: list[ResultLine] = []
    simulated = replace(
        plan(device="simulated:v100/shufflenet"), heartbeat_s=0.01, state_dir=str(tmp_path)
    )
    handle = ScriptHandle(simulated, lines.append)
    for _ in range(20):
        handle.step()
    yield handle, lines
    handle.close()


def samples_of(lines: list[ResultLine]) -> list[int | None]:
    return [line.observation.samples for line in lines if line.observation is not None]


def test_a_script_takes_back_what_it_told_once_its_steps_cannot_be_counted(
    script: tuple[ScriptHandle, list[ResultLine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, lines = script

    def broken(*_: Any) -> None:
        raise RuntimeError("the device fell off the bus")

    wait_for(lambda: 20 - LEAD_STEPS in samples_of(lines), 60.0)
    monkeypatch.setattr(StepTuner, "_pass", broken)
    handle.step()
    wait_for(lambda: None in samples_of(lines), 60.0)
    handle.close()
    assert samples_of(lines).count(None) == 1


def test_a_script_tells_its_sums_though_the_driver_hangs_at_its_end(
    script: tuple[ScriptHandle, list[ResultLine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, lines = script

    def hangs(_: Any) -> None:
        raise TimeoutError

    tuner = handle._tuner
    assert tuner is not None
    with monkeypatch.context() as patch:
        patch.setattr(StepTuner, "stop", hangs)
        handle._beats.stop()
        lines.clear()
        handle.close()
    assert samples_of(lines) == [20 - LEAD_STEPS]
    tuner.stop()


def test_ranks_but_the_first_leave_its_result_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result := tmp_path / "result.jsonl").write_text("half a li")
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, text in {**ranks, PLAN: plan().to_json(), RESULT: str(result)}.items():
        monkeypatch.setenv(name, text)
    ZeusRun.from_env().step()
    assert result.read_text() == "half a li"
