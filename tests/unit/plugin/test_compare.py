"""Runs and jobs side by side, through the route in Airflow's own app, with logins on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.plugin.views import compare_view
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import JOB, ran
from tests.unit.store.store_kit import request


@pytest.fixture(autouse=True)
def known_dags(airflow_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGs that Airflow's database would hold and this user may read."""
    from airflow.api_fastapi.app import get_auth_manager

    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"d", "e"})


def compare(browser: Any, *places: tuple[str, str, str]) -> Any:
    asked = [
        (name, value) for place in places for name, value in zip(("dag_id", "run_id", "job_id"), place, strict=True)
    ]
    return browser.get("/zeus/api/compare", params=asked)


def cells(answer: Any, of: str = "costs") -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in answer[of]["rows"]}


RUNS = ("d", "run1", "d.train"), ("d", "run2", "d.train")


def test_a_job_that_gave_up_its_sizes_and_has_not_ended_a_run_since(viewer: Any, store: Store) -> None:
    ran(store, 1)
    store.ask(request(2, job=ZeusJob(mode="measure"), device=None))
    answer = compare(viewer, ("d", "", "d.train"), ("d", "run1", "d.train"))
    assert answer.status_code == 200, answer.text
    assert "Measured as it is" in answer.text


def test_two_runs_with_their_metrics_costs_power_and_decisions(viewer: Any, store: Store) -> None:
    ran(store, 1, epoch_metrics=(0.5, 0.9), energy_j=3600.0, points=3, gpu_busy=0.25)
    ran(store, 2, epoch_metrics=(0.4, 0.6, 0.9), energy_j=7200.0, points=3)
    answer = compare(viewer, *RUNS).json()
    assert (answer["note"], answer["costs"]["columns"]) == (None, ["", "run1", "run2"])
    assert cells(answer)["Energy"] == ["1 Wh", "2 Wh"]
    assert cells(answer)["GPU busy"] == ["25 %", "–"]
    assert all(cells(answer, "decisions")["Why it was chosen"])
    titles = [chart["title"] for chart in answer["compared"]]
    assert titles == ["accuracy by epoch", "Power over time: run1", "Power over time: run2"]
    assert [len(line["data"]) for line in answer["compared"][0]["option"]["series"]] == [2, 3]
    assert answer["remarks"] == []


def test_a_job_that_trains_now_shows_its_newest_run_that_ended(viewer: Any, store: Store) -> None:
    for n in (1, 2):
        ran(store, n, energy_j=3600.0 * n, epoch_metrics=(0.9,))
    ran(store, 1, job_id="other", energy_j=3600.0)
    store.ask(request(3, job=JOB))
    answer = compare(viewer, ("d", "", "d.train"), ("d", "", "other")).json()
    assert cells(answer)["Energy of the newest run"][0] == "2 Wh"
    assert cells(answer, "decisions")["State, newest run"][0] == cells(answer, "decisions")["State, newest run"][1]


def test_two_jobs_by_all_their_runs(viewer: Any, store: Store) -> None:
    for n in (1, 2, 3):
        ran(store, n, energy_j=3600.0, epoch_metrics=(0.9,))
    ran(store, 1, job_id="other", energy_j=7200.0, energy_source="nvml_counter")
    answer = compare(viewer, ("d", "", "d.train"), ("d", "", "other")).json()
    assert answer["costs"]["columns"] == ["", "d.train", "other"]
    assert cells(answer)["Runs"] == ["3", "1"]
    assert cells(answer)["Energy in all"] == ["3 Wh (simulated)", "2 Wh (GPU counter)"]
    assert cells(answer)["Energy of the newest run"] == ["1 Wh", "2 Wh"]
    assert "different sources" in answer["remarks"][0]
    assert answer["compared"][0]["option"]["series"][0]["name"].startswith("d.train, newest run: batch size")


def test_a_job_whose_newest_run_goes_on_shows_the_one_before(viewer: Any, store: Store) -> None:
    ran(store, 1, epoch_metrics=(0.9,))
    store.ask(
        request(
            2, ti_id="ti-2", origin=replace(request(2).origin, dag_id="d", run_id="run2"), job=JOB, job_id="d.train"
        )
    )
    answer = compare(viewer, ("d", "", "d.train"), ("d", "run2", "d.train")).json()
    assert cells(answer, "decisions")["State, newest run"] != ["–", "–"]
    assert [line["name"].split(",")[0] for line in answer["compared"][0]["option"]["series"]] == ["d.train"]


def test_who_may_see_it(viewer: Any, anonymous: Any, store: Store) -> None:
    ran(store, 1)
    ran(store, 1, dag_id=SECRET, job_id="theirs")
    assert compare(anonymous, *RUNS).status_code == 401
    for theirs in ((SECRET, "run1", "theirs"), (SECRET, "", "theirs"), ("d", "run1", "theirs")):
        assert compare(viewer, RUNS[0], theirs).json()["note"] == compare_view.NOTHING


def test_a_dag_whose_runs_this_user_may_not_read(
    viewer: Any, store: Store, airflow_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"d", SECRET})  # the DAG itself
    ran(store, 1)
    ran(store, 1, dag_id=SECRET, job_id="theirs")
    assert compare(viewer, RUNS[0], (SECRET, "run1", "theirs")).json()["note"] == compare_view.NOTHING


@pytest.mark.parametrize("bad", ["' OR 1=1 --", "x" * 5000, "~"])
def test_forged_names_give_nothing(viewer: Any, store: Store, bad: str) -> None:
    ran(store, 1)
    for place in (("d", bad, "d.train"), ("d", "run1", bad)):
        answer = compare(viewer, RUNS[0], place)
        assert (answer.status_code, answer.json()["note"]) == (200, compare_view.NOTHING)
    assert compare(viewer, RUNS[0], (bad, "run1", "d.train")).json()["note"] == compare_view.NOTHING


def test_a_null_byte_which_postgresql_refuses_asks_no_log(viewer: Any, store: Store) -> None:
    ran(store, 1)
    for place in (("a\0b", "run1", "d.train"), ("d", "a\0b", "d.train"), ("d", "run1", "a\0b")):
        assert compare(viewer, place, RUNS[0]).status_code == 404


def test_odd_requests(viewer: Any, store: Store) -> None:
    ran(store, 1)
    assert compare(viewer).status_code == 422
    assert viewer.get("/zeus/api/compare?dag_id=d&run_id=run1").status_code == 422
    assert viewer.get("/zeus/api/compare?dag_id=d&dag_id=d&run_id=run1&job_id=d.train").status_code == 422
    assert compare(viewer, *(("d", f"run{n}", "d.train") for n in range(9))).status_code == 422
    assert compare(viewer, RUNS[0], RUNS[0]).json()["note"] == compare_view.NOTHING
