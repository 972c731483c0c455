"""A training whose tries are killed at random points goes on from its checkpoint, and each joule is counted once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, Origin, State, TrialKey
from airflow_provider_zeus.operators.train import ZeusTrainOperator, checkpoints_of
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.training.protocol.plan import Checkpoint
from tests.unit.store.store_kit import request

EPOCHS = 40
STEPS = 4
KILLS = 20
GRAIN_J = 5.6  # in which the simulated counter counts
JOB = ZeusJob(
    batch_sizes=[32],
    default_batch_size=32,
    target="accuracy >= 0.9",
    max_epochs=EPOCHS,
    device="simulated:v100/shufflenet",
    mode="measure",
)


@pytest.fixture(autouse=True)
def _own_log(tmp_path: Path, empty_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a test is its own, also in the processes that it starts."""
    shutil.copy(empty_log, own := tmp_path / "zeus.db")
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(own)})
    )


class TaskState:
    """Airflow's task state of one task instance, in a file: it outlives the process of a try."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def get(self, key: str, default: Any = None) -> Any:
        return (
            json.loads(self._file.read_text()).get(key, default) if self._file.exists() else default
        )

    def set(self, key: str, value: Any) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({key: value}, allow_nan=False))
        new.replace(self._file)


def context(number: int, state: Any = None, max_tries: int = 99) -> dict[str, Any]:
    ti = {
        "id": f"ti-{number}",
        "dag_id": "d",
        "task_id": "train",
        "run_id": "r1",
        "try_number": number,
    }
    ti |= {"map_index": -1, "max_tries": max_tries, "xcom_push": lambda **_: None}
    given = {"ti": SimpleNamespace(**ti), "dag_run": SimpleNamespace(run_type="scheduled")}
    given["task"] = SimpleNamespace(max_active_tis_per_dag=1)
    return given | ({} if state is None else {"task_state_store": state})


class Killed:
    """A training that dies by SIGKILL at its ``dies_at``-th point; a line for each step and checkpoint in ``told``."""

    def __init__(self, folder: Path, number: int, dies_at: int | None) -> None:
        self.folder = folder
        self.number = number
        self.left = dies_at

    def point(self, what: str, epoch: int) -> None:
        with open(self.folder / "told", "a") as told:
            told.write(f"{self.number} {what} {epoch}\n")
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, run: Any = None) -> str:
        if run.checkpoint:
            assert Path(run.checkpoint.path).read_text() == str(run.checkpoint.epochs)
            run.resumed(epochs=run.checkpoint.epochs)
        for epoch in run.epochs():
            for _ in range(STEPS):
                run.step()
                self.point("step", epoch)
            run.report(accuracy=0.95 if epoch + 1 == EPOCHS else 0.5)
            file = self.folder / f"checkpoint-{epoch}"
            file.write_text(str(epoch + 1))
            self.point("written", epoch)
            run.checkpointed(file, epochs=epoch + 1)
            self.point("told", epoch)
        return "kept"


def dies(number: int, training: Killed, state: TaskState) -> None:
    """A try in a process of its own, which SIGKILL ends."""
    if (child := os.fork()) == 0:
        try:
            run = ZeusTrainOperator(
                task_id="train", job=JOB, python_callable=lambda run=None: training(run)
            )
            run.execute(context(number, state))  # type: ignore[arg-type]
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended before it was killed"


@pytest.mark.slow
def test_a_training_that_is_killed_at_20_random_points_goes_on_and_counts_each_joule_once(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    state = TaskState(tmp_path / "state")
    rng = random.Random(45)
    for number in range(1, KILLS + 1):
        dies(number, Killed(tmp_path, number, rng.randrange(0, 2 * (STEPS + 2))), state)
    last = Killed(tmp_path, KILLS + 1, None)
    operator = ZeusTrainOperator(
        task_id="train", job=JOB, python_callable=lambda run=None: last(run)
    )
    assert operator.execute(context(KILLS + 1, state)) == "kept"  # type: ignore[arg-type]

    told = [
        (int(n), what, int(epoch))
        for n, what, epoch in map(str.split, (tmp_path / "told").read_text().splitlines())
    ]
    checkpoints = [epoch for _, what, epoch in told if what == "told"]
    assert checkpoints == sorted(set(checkpoints)), (
        "no epoch that a retry could go on from is trained again"
    )
    assert checkpoints[-1] == EPOCHS - 1
    trials = open_store().trials("d.train")
    assert [t.state for t in trials] == [State.ABANDONED] * KILLS + [State.CONVERGED]
    newest = trials[-1].observation
    assert (newest.epochs, "went on from a checkpoint" in newest.reasons["epochs"]) == (None, True)
    own = [what for n, what, _ in told if n == KILLS + 1]
    assert newest.samples is not None
    step_s, step_j = (
        (total or 0.0) * 32 / newest.samples for total in (newest.time_s, newest.energy_j)
    )
    for trial in trials:
        own = [what for n, what, _ in told if f"ti-{n}" == trial.key.ti_id]
        # what came after it was done again
        whole = len(own) - own[::-1].index("told") if "told" in own else 0
        steps = own[:whole].count("step")
        seen = trial.observation
        assert (seen.samples or 0, seen.time_s or 0.0) == (
            32 * steps,
            pytest.approx(steps * step_s),
        )
        assert seen.energy_j == (pytest.approx(steps * step_j, abs=GRAIN_J) if steps else None)


def checkpoint(number: int, time_s: float) -> Checkpoint:
    seen = Observation(
        time_s=time_s, energy_j=10 * time_s, device_model="V100", energy_source="simulated"
    )
    return Checkpoint(
        path="/models/3", epochs=3, batch_size=32, key=TrialKey(f"ti-{number}"), observation=seen
    )


def kept(state: TaskState, number: int, time_s: float, max_tries: int = 99) -> Any:
    store = open_store()
    checkpoints_of(context(1, state), lambda: store).keep(checkpoint(number, time_s))
    return checkpoints_of(context(2, state, max_tries), lambda: store).newest


def test_figures_that_the_log_has_are_replaced_by_newer_ones_alone(
    tmp_path: Path, airflow_home: Path
) -> None:
    store = open_store()
    state = TaskState(tmp_path / "state")
    key = store.ask(
        replace(request(1), origin=Origin(dag_id="d", run_id="r1", task_id="train"))
    ).trial.key
    store.heartbeat(key, Report(observation=checkpoint(1, 20.0).observation))
    assert kept(state, 1, 10.0) is not None
    assert store.trials("d.train")[-1].observation.energy_j == 200.0
    assert kept(state, 1, 30.0) is not None
    assert store.trials("d.train")[-1].observation.energy_j == 300.0, (
        "in place of the 200 J, not beside them"
    )


def test_a_clear_goes_on_from_nothing(tmp_path: Path, airflow_home: Path) -> None:
    state = TaskState(tmp_path / "state")
    assert kept(state, 1, 1.0) == checkpoint(1, 1.0)
    assert kept(state, 1, 1.0, max_tries=100) is None


@pytest.mark.parametrize(
    "held", [None, "text", {"max_tries": 99}, {"max_tries": 99, "checkpoint": {"path": 3}}]
)
def test_a_damaged_state_and_an_api_that_fails_are_no_checkpoint(held: Any) -> None:
    class Odd:
        def get(self, key: str) -> Any:
            if held is None:
                raise ConnectionError("the api-server is gone")
            return {"zeus_checkpoint": held}[key]

    assert checkpoints_of(context(2, Odd()), lambda: pytest.fail("no log is opened")).newest is None


def test_without_task_state_a_run_is_as_before(tmp_path: Path, airflow_home: Path) -> None:
    """Airflow 3.2 has none, and a training outside of Airflow neither."""
    training = Killed(tmp_path, 1, None)
    operator = ZeusTrainOperator(
        task_id="train", job=JOB, python_callable=lambda run=None: training(run)
    )
    assert operator.execute(context(1)) == "kept"  # type: ignore[arg-type]
    assert checkpoints_of(context(2), open_store).newest is None
