"""Death and repetition of our tasks under a real scheduler, api-server and executor."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from packaging.version import Version

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.system.killing import within_s
from tests.system.servers import Site, airflow, wait_until

AIRFLOW_3_3 = Version(version("apache-airflow")) >= Version("3.3")
GONE_S = 10.0  # Airflow looks every 5 s whether a task was stopped from outside
FOUND_W = {"v100": 250.0, "a40": 300.0}

pytestmark = pytest.mark.timeout(900)


class Trainings:
    """The trainings of one DAG of death_dags.py, from outside."""

    def __init__(self, site: Site, name: str, gpu: str, state_dir: str = "zeus") -> None:
        self.site, self.name, self.folder = site, name, site.home / "work"
        chip, load = gpu.split("/")
        self.state_file = site.home / state_dir / f"simulated-{chip}-{load}.gpu"
        self.gpu, self.found_w = gpu, FOUND_W[chip]

    def log(self) -> list[Trial]:
        """The run log as any reader gets it.

        What a busy host could not store within the second of a task that is stopped waits in a
        file: it is stored here.
        """
        job_id = f"{self.name}.train"
        try:
            store = SqlStore(f"sqlite:///{self.site.home}/zeus.db")
        except StoreError:  # the first task of all makes it
            return []
        try:
            drain(store, None, job_id, state_dir=self.site.home / "zeus")
            return store.trials(job_id)
        finally:
            store.close()

    def limit_w(self) -> float:
        chip, load = self.gpu.split("/")
        return SimulatedGpu(chip, load=load, state_file=self.state_file).limit_w()

    def flag(self, name: str, up: bool = True) -> None:
        path = self.folder / f"{self.name}.{name}"
        path.touch() if up else path.unlink()

    def pids(self) -> dict[str, int]:
        """Of the newest start."""
        lines = (self.folder / f"{self.name}.pids").read_text().splitlines()
        return {who: int(pid) for who, pid in (line.split() for line in lines)}

    def saves(self) -> int:
        path = self.folder / f"{self.name}.saves"
        return len(path.read_text().split()) if path.exists() else 0

    def held(self, *, measured: bool = True) -> str:
        """A run whose training is in its second epoch, at a limit that we set,
        its cost so far in the log.
        """
        self.flag("hold")
        before = len(self.log())
        run_id = self.site.trigger(self.name)
        self.wait_for_middle(before, measured=measured)
        return run_id

    def wait_for_middle(self, before: int, *, measured: bool = True) -> None:
        def middle() -> bool:
            log = self.log()
            if len(log) <= before or not self.state_file.exists():
                return False
            return self.limit_w() != self.found_w and (
                not measured or (log[-1].observation.epochs or 0) > 1
            )

        wait_until(middle, 240, "the middle of the training")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "work").mkdir()
    shutil.copy(Path(__file__).with_name("death_dags.py"), home / "dags")
    settings = {
        "AIRFLOW__ZEUS__HEARTBEAT_S": "1",
        "AIRFLOW__ZEUS__LEASE_S": "5",
        "ZEUS_TEST_DIR": str(home / "work"),
    }
    with airflow(home, **settings) as site:
        wait_until(lambda: site.api.get("dags/real_trial") is not None, 240, "the DAGs")
        yield site


def gone(pids: dict[str, int], promise_s: float) -> None:
    """Wait for the end of processes.

    Fails naming those that are left, and what stands below them.
    """
    until_s = time.monotonic() + within_s(promise_s)
    while left := {who: process for who, pid in pids.items() if (process := alive(pid))}:
        if time.monotonic() > until_s:
            below = [
                child for process in left.values() for child in process.children(recursive=True)
            ]
            raise AssertionError(
                f"after {promise_s:g} s there are still {left}, below them {below}"
            )
        time.sleep(0.05)


def alive(pid: int) -> psutil.Process | None:
    """The process, if it runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


@pytest.mark.slow
def test_marking_a_running_task_failed_ends_its_training(site: Site) -> None:
    it = Trainings(site, "real_task", "v100/bert_sa")
    known = len(it.log())
    saves = it.saves()
    run_id = it.held()
    before = it.log()[-1]
    assert before.state is State.RUNNING
    site.mark_failed("real_task", run_id, "train")
    gone({"training": it.pids()["train"]}, GONE_S)
    wait_until(lambda: it.limit_w() == it.found_w, within_s(2), "the limit found")
    (trial,) = it.log()[known:]
    assert trial.state is State.FAILED
    assert (trial.reason or "").startswith("killed: ")
    assert (trial.observation.energy_j or 0) >= (before.observation.energy_j or 0) > 0
    assert (trial.observation.epochs or 0) > 1
    assert site.wait_for_run("real_task", run_id) == "failed"
    assert it.saves() == saves
    it.flag("hold", up=False)
    assert site.wait_for_run("real_task", site.trigger("real_task")) == "success"
    assert [t.state for t in it.log()[known:]] == [State.FAILED, State.CONVERGED]
    assert it.saves() == saves + 1


@pytest.mark.parametrize(
    "who",
    [
        pytest.param("train", id="task", marks=pytest.mark.slow),
        pytest.param("above", id="supervisor", marks=pytest.mark.nightly),
    ],
)
def test_a_task_that_is_killed_gives_the_limit_back_and_the_next_run_trains(
    site: Site, who: str
) -> None:
    """As the kernel does when memory runs out: nothing in the process gets a word in."""
    it = Trainings(site, "real_task", "v100/bert_sa")
    known = len(it.log())
    saves = it.saves()
    run_id = it.held()
    before = it.log()[-1]
    os.kill(it.pids()[who], signal.SIGKILL)
    gone({"training": it.pids()["train"]}, 5)
    wait_until(lambda: it.limit_w() == it.found_w, within_s(2), "the limit found")
    wait_until(lambda: it.log()[-1].state is State.ABANDONED, within_s(8), "the end of the lease")
    assert (it.log()[-1].observation.energy_j or 0) >= (before.observation.energy_j or 0) > 0
    if who == "above":
        # Airflow would take minutes to miss its supervisor
        site.mark_failed("real_task", run_id, "train")
    assert site.wait_for_run("real_task", run_id) == "failed"
    it.flag("hold", up=False)
    assert site.wait_for_run("real_task", site.trigger("real_task")) == "success"
    assert [t.state for t in it.log()[known:]] == [State.ABANDONED, State.CONVERGED]
    assert it.saves() == saves + 1


@pytest.mark.nightly
def test_marking_a_command_failed_ends_what_it_started(site: Site) -> None:
    it = Trainings(site, "real_command", "a40/bert_sa")
    known = len(it.log())
    saves = it.saves()
    run_id = it.held()
    pids = it.pids()
    before = it.log()[-1]
    site.mark_failed("real_command", run_id, "train")
    gone(pids, GONE_S)
    wait_until(lambda: it.limit_w() == it.found_w, within_s(2), "the limit found")
    wait_until(
        lambda: it.log()[-1].state is not State.RUNNING, within_s(4), "the task to write it down"
    )
    (trial,) = it.log()[known:]
    assert trial.state is State.FAILED
    assert (trial.reason or "").startswith("killed: ")
    assert (trial.observation.energy_j or 0) >= (before.observation.energy_j or 0) > 0
    assert site.wait_for_run("real_command", run_id) == "failed"
    assert it.saves() == saves


@pytest.mark.slow
def test_a_task_process_that_is_killed_takes_its_command_along(site: Site) -> None:
    it = Trainings(site, "real_command", "a40/bert_sa")
    known = len(it.log())
    saves = it.saves()
    run_id = it.held()
    pids = it.pids()
    before = it.log()[-1]
    # above the training is its leash, and above that the task
    runner = psutil.Process(pids["above"]).ppid()
    os.kill(runner, signal.SIGKILL)
    gone(pids, 5)
    wait_until(lambda: it.limit_w() == it.found_w, within_s(2), "the limit found")
    wait_until(lambda: it.log()[-1].state is State.ABANDONED, within_s(7), "the end of the lease")
    assert (it.log()[-1].observation.energy_j or 0) >= (before.observation.energy_j or 0) > 0
    it.flag("hold", up=False)
    assert site.wait_for_run("real_command", run_id) == "success"
    dead, kept = it.log()[known:]
    assert [(t.state, t.origin.try_number) for t in (dead, kept)] == [
        (State.ABANDONED, 1),
        (State.CONVERGED, 2),
    ]
    assert dead.observation.energy_j >= before.observation.energy_j
    assert kept.observation.epochs == 3.0, "the second try counts nothing of the first"
    assert it.saves() == saves + 1


@pytest.mark.nightly
def test_around_an_operator_that_is_marked_failed(site: Site) -> None:
    it = Trainings(site, "real_trial", "a40/resnet50", "work/state")
    run_id = it.held(measured=False)
    training = it.pids()["train"]
    site.mark_failed("real_trial", run_id, "train")
    assert site.wait_for_run("real_trial", run_id) == "failed"
    gone({"training": training}, GONE_S)
    wait_until(lambda: it.limit_w() == it.found_w, within_s(2), "the limit found")
    assert site.task("real_trial", run_id, "zeus_tell")["state"] == "success"
    (trial,) = it.log()
    assert (trial.state, trial.reason) == (State.FAILED, "no result")
    assert trial.observation.energy_j is None
    it.flag("hold", up=False)
    all_three = ["train", "zeus_ask", "zeus_tell"]  # its setup and its teardown run again too
    # before 3.3 they come along with what is downstream only
    alone = all_three if AIRFLOW_3_3 else ["train"]
    assert site.clear("real_trial", run_id, ["train"], dry_run=True) == alone
    assert site.clear("real_trial", run_id, ["train"], include_downstream=True) == all_three
    assert site.wait_for_run("real_trial", run_id) == "success"
    assert [t.state for t in it.log()] == [State.FAILED, State.CONVERGED]
    assert it.log()[1].origin.run_id == run_id
    assert it.saves() == 1


@pytest.mark.nightly
def test_a_retry_after_an_error(site: Site) -> None:
    it = Trainings(site, "real_retry", "v100/resnet50")
    known = len(it.log())
    saves = it.saves()
    it.flag("fail")
    run_id = site.trigger("real_retry")
    assert site.wait_for_run("real_retry", run_id) == "success"
    failed, kept = it.log()[known:]
    assert (failed.state, failed.reason, failed.origin.try_number) == (
        State.FAILED,
        "RuntimeError: disk full",
        1,
    )
    assert (kept.state, kept.origin.try_number) == (State.CONVERGED, 2)
    assert (failed.observation.energy_j or 0) > 0
    assert it.saves() == saves + 1
    assert it.limit_w() == it.found_w


@pytest.mark.slow
def test_a_cleared_task_that_was_done_is_one_more_observation(site: Site) -> None:
    it = Trainings(site, "real_retry", "v100/resnet50")
    saves = it.saves()
    run_id = site.trigger("real_retry")
    assert site.wait_for_run("real_retry", run_id) == "success"
    before = it.log()
    assert site.clear("real_retry", run_id, ["train"]) == ["train"]
    assert site.wait_for_run("real_retry", run_id) == "success"
    log = it.log()
    assert log[: len(before)] == before, "what was told stays as it was"
    again = log[len(before) :]
    assert {t.origin.run_id for t in again} == {run_id}
    assert {t.key.ti_id for t in again}.isdisjoint(t.key.ti_id for t in before)
    assert [t.state for t in again][-1] in (State.CONVERGED,)
    assert it.saves() == saves + 2


@pytest.mark.slow
def test_a_trial_that_depends_on_the_past_chooses_its_size_when_it_may_train(site: Site) -> None:
    it = Trainings(site, "real_past", "v100/neumf")
    it.flag("fail")
    first = "day-1"
    second = "day-2"
    for day, run_id in enumerate((first, second), start=1):
        of_day = {"logical_date": f"2026-01-{day:02}T00:00:00Z", "dag_run_id": run_id}
        site.api.post("dags/real_past/dagRuns", of_day)
    assert site.wait_for_run("real_past", first) == "failed"
    time.sleep(3)  # the scheduler looks three times a second: it would have begun by then
    assert site.task("real_past", second, "zeus_ask")["state"] is None
    assert [t.state for t in it.log()] == [State.FAILED], (
        "no trial waits with a decision that knows less"
    )
    assert site.clear("real_past", first, ["train"], include_downstream=True) == [
        "train",
        "zeus_ask",
        "zeus_tell",
    ]
    assert [site.wait_for_run("real_past", run_id) for run_id in (first, second)] == [
        "success",
        "success",
    ]
    assert [t.origin.run_id for t in it.log()] == [first, first, second]
    assert [t.state for t in it.log()] == [State.FAILED, State.CONVERGED, State.CONVERGED]
    assert it.log()[2].asked_after_seq == 2, "it knows how the first one ended"
