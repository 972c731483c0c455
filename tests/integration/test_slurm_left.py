"""A worker of a task with retries left is killed: its Slurm job goes on, and the next try of the task takes it over.

Each try is a process of its own, with Airflow's task state in a file: SIGKILL ends it, or SIGTERM as Airflow sends it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.fake_slurm import FakeSlurm
from tests.integration.jobs import job
from tests.integration.test_slurm import ROOT, TRAIN
from tests.unit.operators.test_task_state import TaskState, context
from tests.unit.training.commands import waited_for

HOLD = """
def hold(run):
    run.beat()
    (shared / "held").touch()
    while not (shared / "go").exists():
        time.sleep(0.02)
    FAILS
def train(run):
"""
RETRIES = 2


class Task:
    """One task instance that submits a job, whose training holds after its second epoch until :meth:`go`."""

    def __init__(self, slurm: FakeSlurm, folder: Path) -> None:
        self.slurm = slurm
        self.state = TaskState(folder / "task-state")
        self.pushed = dict[str, Any]()  # XComs of the newest try in this process
        self.submitted = slurm.shared / "exchange"
        self.write_training()

    def write_training(
        self, *, fails: str = "pass", trains: str = "run.train(train)", held_size: int = 0
    ) -> None:
        holds = f"epoch == 1 and run.batch_size >= {held_size} and hold(run)"
        code = TRAIN.replace("AFTER_EPOCH", holds).replace("RUN", trains)
        code = code.replace("def train(run):\n", HOLD.replace("FAILS", fails))
        shared = self.slurm.shared
        (shared / "train.py").write_text(code)
        lines = [
            "#!/bin/bash",
            f"export PYTHONPATH={ROOT} SLURM_JOB_OUTPUTS={shared} ZEUS_STATE_DIR=/tmp/zeus",
            f"{sys.executable} {shared}/train.py",
        ]
        (shared / "train.sbatch").write_text("\n".join(lines))

    def run(self, number: int, **kwargs: Any) -> str:
        """One try in this process; its value."""
        return self.operator().execute(self.context(number, **kwargs))

    def operator(self) -> ZeusCommandOperator:
        shared = self.slurm.shared
        command = [str(self.slurm.bin / "sbatch"), str(shared / "train.sbatch")]
        learns = job(learn_from=["scheduled"])
        return ZeusCommandOperator(task_id="train", job=learns, command=command, cwd=str(shared))

    def context(self, number: int, *, max_tries: int = RETRIES, has_state: bool = True) -> Any:
        given = context(number, self.state if has_state else None, max_tries)
        given["ti"].xcom_push = lambda key, value: self.pushed.update({key: value})
        return {**given, "dag": SimpleNamespace(fileloc=""), "outlet_events": {}}

    def ends_by(
        self,
        number: signal.Signals,
        until: Callable[[], Any] | None = None,
        *,
        of_try: int = 1,
        **kwargs: Any,
    ) -> None:
        """One try in a process of its own, which a signal ends.

        :param until: when; default: the job holds, is noted, and has a cost in the log.
        """
        child = os.fork()
        if child == 0:
            self._in_child(of_try, kwargs)
        try:
            assert waited_for(until or self.is_midway)
        finally:
            os.kill(child, number)
            os.waitpid(child, 0)

    def is_midway(self) -> bool:
        """Whether the job holds, is noted, and has a cost in the log."""
        return self.held() and bool(self.notes()) and bool(trials()[-1].observation.energy_j)

    def is_waited_for(self) -> bool:
        """Whether the second look at the job was made: the first one only finds it."""
        return self.slurm.looks() >= 2

    def held(self) -> bool:
        """Whether the training holds."""
        return (self.slurm.shared / "held").exists()

    def notes(self) -> list[Path]:
        """By which killed workers leave their jobs alone."""
        return [*self.submitted.glob("zeus-*/job.json")]

    def _in_child(self, of_try: int, kwargs: dict[str, Any]) -> None:
        operator = self.operator()
        signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
        try:
            operator.execute(self.context(of_try, **kwargs))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def go(self) -> None:
        (self.slurm.shared / "go").touch()

    def states(self) -> list[str]:
        return [job["state"] for job in self.slurm.jobs()]

    def folders(self) -> list[str]:
        return [path.name for path in self.submitted.glob("zeus-*")]


@pytest.fixture
def task(
    airflow_home: Path, tmp_path: Path, empty_log: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Task]:
    shutil.copy(empty_log, own := tmp_path / "zeus.db")
    log = json.dumps({"conn_type": "sqlite", "host": str(own)})
    slurm = FakeSlurm(tmp_path)
    settings = {
        "AIRFLOW_CONN_ZEUS_DEFAULT": log,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__ZEUS__ATTEMPT_ROOT": str(slurm.shared / "exchange"),
        "AIRFLOW__ZEUS__HEARTBEAT_S": "0.2",
        "AIRFLOW__ZEUS__LEASE_S": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield Task(slurm, tmp_path)
    slurm.stop()


def trials() -> list[Trial]:
    return open_store().trials("d.train")


def states() -> list[tuple[str, State]]:
    return [(trial.key.ti_id, trial.state) for trial in trials()]


def is_abandoned() -> bool:
    """Whether the lease of the one attempt has ended."""
    return states() == [("ti-1", State.ABANDONED)]


def is_running() -> bool:
    """Whether the one attempt is alive."""
    return states() == [("ti-1", State.RUNNING)]


def test_the_next_try_goes_on_with_the_job(task: Task) -> None:
    task.ends_by(signal.SIGKILL)
    assert waited_for(is_abandoned)
    half = trials()[0].observation
    task.go()
    assert task.run(2) == "Submitted batch job 1", "as without the death"
    assert task.states() == ["COMPLETED"]
    assert states() == [("ti-1", State.CONVERGED)], "one attempt, open again"
    seen = trials()[0].observation
    assert seen.epochs == 4
    assert (seen.energy_j or 0) > (half.energy_j or 0) > 0
    assert task.folders() == []


@pytest.mark.parametrize("forgets", ["nothing", "squeue", "squeue and sacct"])
def test_a_job_that_ended_meanwhile_is_read_to_its_end(task: Task, forgets: str) -> None:
    task.ends_by(signal.SIGKILL)
    half = len(open_store().points(trials()[0].key))
    assert half > 0
    task.go()
    task.slurm.wait_for("COMPLETED")
    if forgets != "nothing":
        task.slurm.forget(1, accounts=forgets == "squeue")
    (result,) = task.submitted.glob("zeus-*/result-1.jsonl")
    lines = [ResultLine.from_json(line) for line in result.read_text().splitlines()]
    assert task.run(2) == "Submitted batch job 1"
    assert task.states() == ["COMPLETED"]
    assert states() == [("ti-1", State.CONVERGED)]
    (trial,) = trials()
    assert half < len(open_store().points(trial.key))
    where = trial.observation.where
    # of what the first try had stored, and of what came after it, each part once
    assert open_store().profile("d.train", where, "1") == [
        *summed(sample for line in lines for sample in line.profile)
    ]
    assert open_store().points(trial.key) == [point for line in lines for point in line.points]
    assert trial.observation.energy_j == lines[-2].observation.energy_j
    assert task.folders() == []


def test_a_job_that_failed_meanwhile_fails_the_try_and_the_one_after_submits_anew(
    task: Task,
) -> None:
    task.write_training(fails="os._exit(7)")
    task.ends_by(signal.SIGKILL)
    task.go()
    task.slurm.wait_for("FAILED")
    with pytest.raises(AirflowException, match="ended with status 7"):
        task.run(2)
    (trial,) = trials()
    assert (trial.key.ti_id, trial.state) == ("ti-1", State.FAILED)
    assert trial.reason == "the command ended with status 7 without a result"
    assert (trial.observation.energy_j or 0) > 0
    task.write_training()
    task.run(3)
    assert task.states() == ["FAILED", "COMPLETED"]
    assert states() == [("ti-1", State.FAILED), ("ti-3", State.CONVERGED)]


def test_a_job_that_slurm_cancelled_meanwhile_was_stopped(task: Task) -> None:
    task.ends_by(signal.SIGKILL)
    (task.slurm.spool / "cancel-1").touch()
    task.slurm.wait_for("CANCELLED")
    with pytest.raises(AirflowException, match="SIGTERM"):
        task.run(2)
    assert states() == [("ti-1", State.FAILED)]
    assert len(task.states()) == 1, "and no other batch size follows"


def test_a_job_that_slurm_has_forgotten_without_a_result_is_followed_by_a_new_one(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    task.write_training(fails="os._exit(7)")
    task.ends_by(signal.SIGKILL)
    task.go()
    task.slurm.wait_for("FAILED")
    task.slurm.forget(1, accounts=False)
    task.write_training()
    assert task.run(2) == "Submitted batch job 2"
    assert states() == [("ti-1", State.ABANDONED), ("ti-2", State.CONVERGED)]
    assert "Slurm no longer knows it" in caplog.text
    assert task.folders() == []


@pytest.mark.slow
def test_a_job_is_waited_for_while_slurm_does_not_answer(task: Task) -> None:
    task.ends_by(signal.SIGKILL)
    down = task.slurm.spool / "down"
    down.touch()
    back = threading.Timer(3.0, down.unlink)
    back.start()
    task.go()
    assert task.run(2) == "Submitted batch job 1"
    back.join()
    assert states() == [("ti-1", State.CONVERGED)]


@pytest.mark.slow
def test_a_job_that_waits_in_the_queue_goes_on_too(task: Task) -> None:
    task.slurm.drain()
    task.ends_by(signal.SIGKILL, task.notes)
    assert task.states() == ["PENDING"]
    task.slurm.resume()
    task.go()
    assert task.run(2) == "Submitted batch job 1"
    assert states() == [("ti-1", State.CONVERGED)]


@pytest.mark.slow
def test_two_tries_are_killed_and_the_last_one_goes_on(task: Task) -> None:
    task.ends_by(signal.SIGKILL)
    assert waited_for(is_abandoned)
    task.ends_by(signal.SIGKILL, is_running, of_try=2)
    task.go()
    assert task.run(3) == "Submitted batch job 1"
    assert task.states() == ["COMPLETED"]
    assert states() == [("ti-1", State.CONVERGED)]


def test_the_last_try_takes_its_job_with_it(task: Task) -> None:
    task.ends_by(signal.SIGKILL, task.held, max_tries=0)
    task.slurm.wait_for("CANCELLED")


@pytest.mark.slow
def test_the_last_try_takes_the_job_of_an_earlier_one_with_it(task: Task) -> None:
    task.ends_by(signal.SIGKILL)
    task.ends_by(signal.SIGKILL, task.is_waited_for, of_try=RETRIES + 1)
    task.slurm.wait_for("CANCELLED")


@pytest.mark.parametrize("of_try", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_task_that_is_stopped_cancels_its_job(task: Task, of_try: int) -> None:
    """As Airflow does it, for a clear, a mark, a time limit: SIGTERM calls on_kill."""
    until = task.is_midway
    if of_try == 2:
        task.ends_by(signal.SIGKILL)
        until = task.is_waited_for
    task.ends_by(signal.SIGTERM, until, of_try=of_try)
    task.slurm.wait_for("CANCELLED")
    assert states() == [("ti-1", State.FAILED)]
    assert "stopped the task" in (trials()[0].reason or "")
    assert task.folders() == []


@pytest.mark.slow
def test_a_task_that_is_stopped_while_it_takes_the_job_over_cancels_it(task: Task) -> None:
    """When no process waits for the job yet."""
    task.ends_by(signal.SIGKILL)
    assert waited_for(is_abandoned)
    task.ends_by(signal.SIGTERM, is_running, of_try=2)
    task.slurm.wait_for("CANCELLED")
    assert task.folders() == []


def test_a_clear_submits_anew_and_leaves_no_job(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    task.ends_by(signal.SIGKILL)
    task.go()
    task.slurm.drain()
    later = threading.Timer(2.0, task.slurm.resume)
    later.start()
    assert task.run(2, max_tries=RETRIES + 1) == "Submitted batch job 2"
    later.join()
    assert "the task was cleared" in caplog.text
    assert states() == [("ti-1", State.ABANDONED), ("ti-2", State.CONVERGED)]


def test_before_airflow_3_3_a_killed_worker_cancels_its_job(task: Task) -> None:
    task.ends_by(signal.SIGKILL, task.held, has_state=False)
    task.slurm.wait_for("CANCELLED")
    assert task.notes() == []


@pytest.mark.slow
def test_a_worker_that_is_switched_off_cancels_its_job(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", "False")
    task.ends_by(signal.SIGKILL, task.held)
    task.slurm.wait_for("CANCELLED")


@pytest.mark.slow
def test_a_loop_alone_goes_on_with_the_job_of_its_second_attempt(task: Task) -> None:
    """Each of its attempts is a job: what the first one cost is told again with the second."""
    task.go()
    task.run(1)  # 32, the default: 16 is tried next
    (task.slurm.shared / "go").unlink()
    (task.slurm.shared / "held").unlink()
    task.write_training(trains="train(run)", held_size=32)
    task.ends_by(signal.SIGKILL, of_try=2)
    assert task.states() == ["COMPLETED", "FAILED", "RUNNING"], "a process that is given up fails"
    task.go()
    assert task.run(3) == "Submitted batch job 3"
    assert states() == [
        ("ti-1", State.CONVERGED),
        ("ti-2", State.GIVEN_UP),
        ("ti-2", State.CONVERGED),
    ]
    cost = task.pushed["zeus_cost"]
    assert [attempt["batch_size"] for attempt in cost["attempts"]] == [16, 32]
