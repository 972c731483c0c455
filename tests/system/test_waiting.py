"""Tasks that wait for a cheaper start, under a real scheduler and triggerer:
they hold no worker, and they train.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.store.sql.store import SqlStore
from demo.api import part
from tests.integration.jobs import SCRIPT
from tests.system.servers import TRIGGERER, Site, airflow, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

# DAG -> the task that waits
DAGS = {"wait_function": "train", "wait_command": "train", "wait_trial": "zeus_ask"}
STEP_S = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("waiting")
    for folder in ("dags", "work", "signals"):
        (home / folder).mkdir()
    shutil.copy(Path(__file__).with_name("waiting_dags.py"), home / "dags")
    (home / "work" / "train.py").write_text(SCRIPT)
    signal = {"file": "signal.csv", "times": "time", "values": "value", "unit": "g/kWh"}
    settings = {
        "AIRFLOW_CONN_WAIT_SIGNAL": json.dumps({"conn_type": "zeus_signal", "extra": signal}),
        "AIRFLOW_CONN_ZEUS_CARBON": json.dumps({"conn_type": "zeus_signal", "extra": signal}),
        "ZEUS_TEST_DIR": str(home / "work"),
    }
    with airflow(home, **settings) as site:
        site.start(TRIGGERER)
        wait_until(lambda: site.api.healthy().get("triggerer") == "healthy", 60, "the triggerer")
        wait_until(lambda: site.api.get("dags/wait_trial") is not None, 60, "the DAGs")
        for dag_id in DAGS:  # then it is known how long a run takes
            run_id = site.trigger(dag_id)
            assert site.wait_for_run(dag_id, run_id) == "success"
            assert (
                "no run has shown yet how long it takes"
                in xcom(site, dag_id, run_id, "zeus_wait")["why"]
            )
        yield site


def write_signal(site: Site, values: list[float]) -> None:
    """Minutes from the present one on."""
    begin_s = time.time() // STEP_S * STEP_S
    times = (
        datetime.fromtimestamp(begin_s + i * STEP_S, UTC).isoformat() for i in range(len(values))
    )
    rows = [f"{at},{value:g}" for at, value in zip(times, values, strict=True)]
    (site.home / "signals" / "signal.csv").write_text("\n".join(["time,value", *rows]) + "\n")


def xcom(site: Site, dag_id: str, run_id: str, key: str, task_id: str | None = None) -> Any:
    path = f"dags/{dag_id}/dagRuns/{part(run_id)}/taskInstances/{task_id or DAGS[dag_id]}/xcomEntries/{key}"
    value = site.api.get(path)["value"]
    return json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value


def trials(site: Site, dag_id: str) -> list[Any]:
    store = SqlStore(f"sqlite:///{site.home}/zeus.db")
    try:
        return store.trials(f"{dag_id}.train")
    finally:
        store.close()


def test_each_entry_waits_without_a_worker_and_trains_then(site: Site) -> None:
    before = {dag_id: len(trials(site, dag_id)) for dag_id in DAGS}
    write_signal(site, [500.0] * 4 + [100.0] * 120)
    runs = {dag_id: site.trigger(dag_id) for dag_id in DAGS}
    for dag_id, run_id in runs.items():
        wait_until(
            lambda d=dag_id, r=run_id: site.task(d, r, DAGS[d])["state"] == "deferred",
            60,
            f"{dag_id} to wait",
        )
        wait = xcom(site, dag_id, run_id, "zeus_wait")
        assert wait["saves"] == pytest.approx(0.8, abs=0.05)
        assert wait["why"].startswith("It waits until ")
        assert len(trials(site, dag_id)) == before[dag_id], "the log is asked after the wait"
    begun = {
        dag_id: xcom(site, dag_id, run_id, "zeus_wait")["until"] for dag_id, run_id in runs.items()
    }
    for dag_id, run_id in runs.items():
        assert site.wait_for_run(dag_id, run_id, timeout_s=300) == "success"
        newest = trials(site, dag_id)[-1]
        assert newest.state.value == "converged"
        assert newest.opened_at >= datetime.fromisoformat(begun[dag_id]).timestamp() - 1
        seen = newest.observation
        assert seen.g_co2e_per_kwh == pytest.approx(100.0)
        assert seen.g_co2e_at_once > 105.0, "what it would have emitted at once"
    assert (
        xcom(site, "wait_function", runs["wait_function"], "size")
        == trials(site, "wait_function")[-1].batch_size
    )


def test_a_triggerer_that_dies_and_tasks_that_are_marked_or_cleared_while_they_wait(
    site: Site,
) -> None:
    before = {dag_id: len(trials(site, dag_id)) for dag_id in DAGS}
    write_signal(site, [500.0] * 4 + [100.0] * 120)
    runs = {dag_id: site.trigger(dag_id) for dag_id in DAGS}

    def waits(dag_id: str) -> bool:
        return bool(site.task(dag_id, runs[dag_id], DAGS[dag_id])["state"] == "deferred")

    for dag_id in DAGS:
        wait_until(lambda d=dag_id: waits(d), 60, f"{dag_id} to wait")
    site.kill(TRIGGERER)
    site.mark_failed("wait_command", runs["wait_command"], "train")
    assert site.wait_for_run("wait_command", runs["wait_command"]) == "failed"
    site.clear("wait_function", runs["wait_function"], ["train"])
    wait_until(lambda: not waits("wait_function"), 60, "the cleared task")
    wait_until(lambda: waits("wait_function"), 60, "the cleared task to wait anew")
    site.start(TRIGGERER)
    for dag_id in ("wait_function", "wait_trial"):
        assert site.wait_for_run(dag_id, runs[dag_id], timeout_s=400) == "success"
    after = {dag_id: trials(site, dag_id) for dag_id in DAGS}
    new = {dag_id: [t.state.value for t in log[before[dag_id] :]] for dag_id, log in after.items()}
    assert new == {"wait_function": ["converged"], "wait_command": [], "wait_trial": ["converged"]}


def test_a_signal_that_is_gone_or_flat_makes_no_task_wait(site: Site) -> None:
    write_signal(site, [100.0] * 120)
    flat = site.trigger("wait_command")
    assert site.wait_for_run("wait_command", flat) == "success"
    assert xcom(site, "wait_command", flat, "zeus_wait")["until"] is None
    (site.home / "signals" / "signal.csv").unlink()
    gone = site.trigger("wait_command")
    assert site.wait_for_run("wait_command", gone) == "success"
    assert "Signal 'wait_signal'" in xcom(site, "wait_command", gone, "zeus_wait")["why"]
