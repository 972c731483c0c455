"""Tables of all tasks, as their routes give them: of a run, of a DAG, and of all DAGs;
to those who may read them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_zeus.plugin.api import reading
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.kit import ran
from tests.unit.store.store_kit import outside

WH_J = 3600.0

pytestmark = pytest.mark.usefixtures("known_dags")


def answer(viewer: Any, path: str, **params: Any) -> Any:
    got = viewer.get(f"/zeus/api/{path}", params=params)
    assert got.status_code == 200, got.text
    return got.json()


def took(store: Store, task: str, wh: float, run: str = "run1", **names: Any) -> None:
    outside(
        store,
        1,
        at_s=time.time(),
        task_id=task,
        run_id=run,
        ti_id=f"{task}-{run}-{names}",
        energy_j=wh * WH_J,
        time_s=10.0,
        **names,
    )


def figures(lines: Sequence[Any]) -> list[tuple[str, str]]:
    return [(line["name"], line["energy"]["text"]) for line in lines]


def test_a_dag_opens_with_all_its_tasks_then_the_costliest(viewer: Any, store: Store) -> None:
    took(store, "a_small_one", 1.0)
    for index in range(50):
        took(store, "mapped", 2.0, map_index=index)
    took(store, "tiny", 0.01)
    found = answer(viewer, "dags/d/costs")
    assert found["note"] is None
    assert found["jobs"] == ["d.mapped", "d.a_small_one", "d.tiny"]
    assert found["tasks"]["caption"].startswith("All tasks since 1 ")
    assert figures(found["tasks"]["totals"]) == [("All 3 tasks", "0.101 kWh")]
    assert figures(found["tasks"]["tasks"]) == [("mapped", "0.1 kWh")]
    assert figures(found["tasks"]["small"]) == [("a_small_one", "1 Wh"), ("tiny", "0.01 Wh")]
    assert found["tasks"]["tasks"][0]["runs"] == 50
    assert found["tasks"]["note"].startswith("Tasks under 1 s ")
    assert answer(viewer, "dags/d/charts") == {"note": None}
    of_one = answer(viewer, "dags/d/costs", job_id="d.mapped")
    assert (of_one["job_id"], len(of_one["rows"])) == ("d.mapped", 50)


def test_a_dag_of_one_task_opens_with_it(viewer: Any, store: Store) -> None:
    took(store, "alone", 1.0)
    assert answer(viewer, "dags/d/costs")["job_id"] == "d.alone"


def test_jobs_and_tasks_from_outside_stand_in_one_table(viewer: Any, store: Store) -> None:
    ran(store, 1)
    took(store, "load", 1.0)
    found = answer(viewer, "dags/d/costs")["tasks"]
    assert [line["job_id"] for line in found["tasks"]] == ["d.load", "d.train"]
    assert [line["source"]["text"] for line in found["totals"]] == ["CPU counter", "simulated"]


def test_a_run_begins_with_its_tasks_in_the_order_of_the_graph(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "task_order", lambda _: {"b_first": 0, "a_last": 1})
    took(store, "a_last", 1.0)
    took(store, "b_first", 3.0)
    took(store, "b_first", 5.0, run="run2")
    found = answer(viewer, "dags/d/runs/run1/costs")
    assert figures(found["tasks"]["totals"]) == [("All 2 tasks", "4 Wh")]
    assert figures(found["tasks"]["tasks"]) == [("b_first", "3 Wh"), ("a_last", "1 Wh")]
    assert [part["task_id"] for part in found["parts"]] == ["b_first", "a_last"]
    assert answer(viewer, "dags/d/runs/run2/costs")["tasks"] is None
    assert answer(viewer, "dags/d/runs/run1/costs", job_id="d.a_last")["tasks"] is None


def test_a_graph_that_cannot_be_read_gives_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise ValueError("no DAG")

    monkeypatch.setattr(reading.SerializedDagModel, "get_dag", damaged)
    assert reading.task_order("d") == {}


def test_the_page_of_all_jobs_has_a_row_for_a_dag_and_its_tasks_when_asked(
    viewer: Any, store: Store
) -> None:
    ran(store, 1)
    took(store, "load", 1.0)
    took(store, "clean", 2.0)
    took(store, "load", 9.0, dag_id="secret")
    found = answer(viewer, "jobs")
    assert [job["job_id"] for job in found["jobs"]] == ["d.train"]
    assert [(dag["dag_id"], figures(dag["lines"])) for dag in found["dags"]["dags"]] == [
        ("d", [("d", "3 Wh")])
    ], "of DAGs that the reader may see"
    assert "secret" not in str(found)
    tasks = answer(viewer, "dags/d/tasks")
    assert figures(tasks["tasks"]) == [("clean", "2 Wh"), ("load", "1 Wh")]
    assert viewer.get("/zeus/api/dags/secret/tasks").status_code == 403


def test_without_jobs_the_dags_are_shown_alone(viewer: Any, store: Store) -> None:
    took(store, "load", 1.0)
    found = answer(viewer, "jobs")
    assert (found["note"], found["jobs"]) == (None, [])
    assert [dag["dag_id"] for dag in found["dags"]["dags"]] == ["d"]


def test_a_month_counts_them_and_saves_nothing_with_them(viewer: Any, store: Store) -> None:
    took(store, "load", 1.0)
    (kind,) = answer(viewer, "months")["kinds"]
    assert kind["answers"][0]["figures"][0]["figure"]["text"] == "1 Wh"
    saved = answer(viewer, "months/saved")
    assert (saved["done"], saved["progress"]) == (True, "")
