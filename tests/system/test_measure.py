"""``[zeus] measure`` under a real scheduler, triggerer and executor:
what a task leaves in whatever way it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.system.servers import TRIGGERER, Site, airflow, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("measure")
    (home / "dags").mkdir()
    (home / "work").mkdir()
    shutil.copy(Path(__file__).with_name("measure_dags.py"), home / "dags")
    settings = {
        "AIRFLOW__ZEUS__MEASURE": "tag:zeus",
        "AIRFLOW__ZEUS__HEARTBEAT_S": "0.5",  # of such tasks every 2 s
        "AIRFLOW__ZEUS__LEASE_S": "1",
        "ZEUS_TEST_DIR": str(home / "work"),
    }
    with airflow(home, **settings) as site:
        site.start(TRIGGERER)
        wait_until(lambda: site.api.get("dags/measure_not_named") is not None, 240, "the DAGs")
        yield site


def rows(site: Site, job_id: str) -> list[Trial]:
    """The log as any reader gets it.

    What a busy host could not store within 2 s waits in a file: it is stored here.
    """
    try:
        store = SqlStore(f"sqlite:///{site.home}/zeus.db")
    except StoreError:  # the first task of all makes it
        return []
    try:
        drain(store, None, None, state_dir=site.home / "zeus", with_outside=True)
        return store.trials(job_id)
    finally:
        store.close()


def only_row(site: Site, job_id: str) -> Trial:
    """The row of a task that has ended, once its process has written it:
    Airflow has its state before.
    """
    wait_until(
        lambda: any(row.state is not State.RUNNING for row in rows(site, job_id)), 120, job_id
    )
    (row,) = rows(site, job_id)
    assert row.is_outside
    return row


def run_to_its_end(site: Site, dag_id: str) -> str:
    return site.wait_for_run(dag_id, site.trigger(dag_id), timeout_s=240)


def test_three_plain_tasks_have_three_rows_and_another_dag_has_none(site: Site) -> None:
    assert run_to_its_end(site, "measure_not_named") == "success"
    assert run_to_its_end(site, "measure_plain") == "success"
    for task, busy_s in {"function": 1.5, "command": 1.5, "forks": 2.0}.items():
        row = only_row(site, f"measure_plain.{task}")
        assert (row.state, row.reason) == (State.DONE, None)
        assert row.observation.energy_source == "estimate"
        # Airflow's own processor time comes on top
        assert 7.0 * busy_s * 0.9 < (row.observation.energy_j or 0.0) < 7.0 * busy_s * 3
    assert rows(site, "measure_not_named.other") == []


def test_the_parts_of_a_deferred_task_are_rows_of_one_task_instance(site: Site) -> None:
    assert run_to_its_end(site, "measure_deferred") == "success"
    wait_until(lambda: len(rows(site, "measure_deferred.waits")) == 2, 120, "both parts")
    first, second = rows(site, "measure_deferred.waits")
    assert first.key.ti_id == second.key.ti_id
    assert str(first.reason).startswith("the task was deferred")
    for row in (first, second):
        assert (row.observation.energy_j or 0.0) >= 7.0 * 1.5 * 0.9


def test_a_killed_task_keeps_what_its_heartbeats_told(site: Site) -> None:
    job_id = "measure_killed.long"
    run_id = site.trigger("measure_killed")
    wait_until(
        lambda: any(row.observation.energy_j for row in rows(site, job_id)), 240, "a heartbeat"
    )
    os.kill(int((site.home / "work" / "long.pid").read_text()), signal.SIGKILL)
    assert site.wait_for_run("measure_killed", run_id) == "failed"
    wait_until(lambda: rows(site, job_id)[0].state is State.ABANDONED, 120, "the end of its lease")
    (row,) = rows(site, job_id)
    assert (row.observation.energy_j or 0.0) > 0.0


def test_a_command_that_is_failed_in_the_ui_has_its_whole_row(site: Site) -> None:
    job_id = "measure_stopped.shell"
    run_id = site.trigger("measure_stopped")
    # a busy host gives it little of its processors at first
    wait_until(
        lambda: any(row.observation.energy_j for row in rows(site, job_id)), 240, "a heartbeat"
    )
    site.mark_failed("measure_stopped", run_id, "shell")
    row = only_row(site, job_id)
    assert row.state in (State.FAILED, State.ABANDONED)
    assert (row.observation.energy_j or 0.0) > 0.0
