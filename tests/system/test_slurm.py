"""A Slurm job whose worker is killed, whose task is cleared or marked failed,
under a real scheduler.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.fake_slurm import FakeSlurm
from tests.integration.test_slurm import ROOT, TRAIN
from tests.system.servers import Site, airflow, wait_until
from tests.system.test_real_scheduler import AIRFLOW_3_3

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


class Slurm:
    """A site beside a cluster, whose trainings hold in their second epoch while there is a file
    ``hold``.
    """

    def __init__(self, site: Site, slurm: FakeSlurm) -> None:
        self.site = site
        self.slurm = slurm
        self.hold = slurm.shared / "hold"

    def begun(self) -> str:
        """A run whose training holds, its cost so far in the log, its job noted; the run's id."""
        self.hold.touch()
        jobs = len(self.slurm.jobs())
        run_id = self.site.trigger("slurm")
        wait_until(lambda: len(self.slurm.jobs()) > jobs, 80, "a job")
        wait_until(self.is_midway, 80, "the middle of the training")
        return run_id

    def is_midway(self) -> bool:
        log = self.log()
        is_noted = [*self.slurm.shared.glob("exchange/zeus-*/job.json")] or not AIRFLOW_3_3
        return bool(
            log and log[-1].state is State.RUNNING and log[-1].observation.energy_j and is_noted
        )

    def log(self) -> list[Trial]:
        path = self.site.home / "zeus.db"
        if not path.exists():
            return []
        store = SqlStore(f"sqlite:///{path}")
        try:
            return store.trials("slurm.train")
        finally:
            store.close()

    def task_pid(self) -> int:
        """The task's process, which our supervisor names in its arguments."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if str(self.slurm.bin / "sbatch") in words and words[3].endswith("supervisor.py"):
                    return int(words[4])
        raise AssertionError("no task waits for a job")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    home = tmp_path_factory.mktemp("slurm")
    (home / "dags").mkdir()
    (home / "work").mkdir()
    shutil.copy(Path(__file__).with_name("slurm_dags.py"), home / "dags")
    slurm = FakeSlurm(home / "work")
    holds = 'while epoch == 1 and (shared / "hold").exists(): run.beat(); time.sleep(0.1)'
    code = TRAIN.replace("AFTER_EPOCH", holds).replace("RUN", "run.train(train)")
    (slurm.shared / "train.py").write_text(code)
    script = [
        "#!/bin/bash",
        f"export PYTHONPATH={ROOT} SLURM_JOB_OUTPUTS={slurm.shared} ZEUS_STATE_DIR=/tmp/zeus",
        f"{sys.executable} {slurm.shared}/train.py",
    ]
    (slurm.shared / "train.sbatch").write_text("\n".join(script))
    settings = {
        "AIRFLOW__ZEUS__ATTEMPT_ROOT": str(slurm.shared / "exchange"),
        "AIRFLOW__ZEUS__HEARTBEAT_S": "1",
        "AIRFLOW__ZEUS__LEASE_S": "5",
        "ZEUS_TEST_DIR": str(home / "work"),
    }
    try:
        with airflow(home, **settings) as site:
            wait_until(lambda: site.api.get("dags/slurm") is not None, 60, "the DAG")
            yield Slurm(site, slurm)
    finally:
        slurm.stop()


def test_the_retry_of_a_killed_worker_goes_on_with_its_job(it: Slurm) -> None:
    known_jobs = len(it.slurm.jobs())
    known = len(it.log())
    run_id = it.begun()
    before = it.log()[-1].observation
    os.kill(it.task_pid(), signal.SIGKILL)
    wait_until(lambda: it.site.task("slurm", run_id, "train")["try_number"] == 2, 80, "the retry")
    it.hold.unlink()
    assert it.site.wait_for_run("slurm", run_id) == "success"
    jobs = [job["state"] for job in it.slurm.jobs()][known_jobs:]
    states = [trial.state for trial in it.log()][known:]
    if AIRFLOW_3_3:
        assert (jobs, states) == (["COMPLETED"], [State.CONVERGED])
        assert (it.log()[-1].observation.energy_j or 0) > (before.energy_j or 0) > 0
    else:
        assert (jobs, states) == (
            ["CANCELLED", "COMPLETED"],
            [State.ABANDONED, State.CONVERGED],
        )


def test_a_task_that_is_marked_failed_cancels_its_job(it: Slurm) -> None:
    run_id = it.begun()
    it.site.mark_failed("slurm", run_id, "train")
    it.slurm.wait_for("CANCELLED")
    assert it.site.wait_for_run("slurm", run_id) == "failed"
    wait_until(lambda: it.log()[-1].state is State.FAILED, 10, "the end in the log")


def test_a_task_that_is_cleared_cancels_its_job_and_submits_anew(it: Slurm) -> None:
    known_jobs = len(it.slurm.jobs())
    run_id = it.begun()
    it.site.clear("slurm", run_id, ["train"])
    wait_until(
        lambda: it.slurm.jobs()[known_jobs]["state"] == "CANCELLED", 80, "the end of the job"
    )
    it.hold.unlink()
    assert it.site.wait_for_run("slurm", run_id) == "success"
    assert [job["state"] for job in it.slurm.jobs()][known_jobs:] == ["CANCELLED", "COMPLETED"]
    assert [trial.state for trial in it.log()][-2:] == [State.FAILED, State.CONVERGED]
