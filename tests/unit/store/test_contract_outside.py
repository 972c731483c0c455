"""Tasks that ``[zeus] measure`` names, on each store: their sums by DAG and by task,
which stay when rows go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.base import DaySum
from airflow_provider_zeus.store.sql import outside_sums
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import Clock, outside, run, seen

DAY_S = 86_400.0
ALL = (0.0, 1e9)


def figures(sums: Sequence[PeriodSum]) -> list[tuple[Any, ...]]:
    return [(s.job_id, s.source, s.runs, s.energy_j, s.time_s) for s in sums]


def test_they_are_summed_by_dag_and_by_task(store: Store, clock: Clock) -> None:
    for n in (1, 2):
        outside(store, n, energy_j=100.0, time_s=5.0)
    outside(store, 3, energy_j=None, time_s=7.0, energy_source=None)
    outside(store, 4, task_id="load", energy_j=1.0, time_s=1.0)
    run(store, 5)
    of_dag = [("d.*", None, 1, None, 7.0), ("d.*", "rapl", 3, 201.0, 11.0)]
    assert figures(store.outside_sums(ALL)) == of_dag
    chosen, *others = store.sums(ALL)
    assert (chosen.job_id, chosen.runs, chosen.outside) == ("d.train", 1, False)
    assert figures(others) == of_dag
    trained, *others = store.task_sums("d", 0.0)
    assert (trained.job_id, trained.runs, trained.outside) == ("d.train", 1, False)
    assert figures(others) == [
        ("d.load", "rapl", 1, 1.0, 1.0),
        ("d.train", None, 1, None, 7.0),
        ("d.train", "rapl", 2, 200.0, 10.0),
    ]
    assert store.task_sums("other", 0.0) == []
    assert store.task_sums("d", clock.t + DAY_S) == []


def test_they_are_left_out_where_jobs_are_listed(store: Store) -> None:
    outside(store, 1)
    outside(store, 2, task_id="load")
    run(store, 3)
    assert [(t.job_id, t.number) for t in store.latest(last=9)] == [("d.train", 2)]
    assert store.outside_jobs() == ["d.load"]
    assert store.jobs() == ["d.load", "d.train"]


def test_a_row_counts_once_however_often_it_reports(store: Store) -> None:
    key = outside(store, 1, None, energy_j=10.0, time_s=1.0).key
    assert figures(store.task_sums("d", 0.0)) == [("d.train", "rapl", 1, 10.0, 1.0)]
    last = seen(epochs=None, energy_j=30.0, time_s=3.0, energy_source="rapl", start_id="start-1")
    for state in (State.FAILED, State.FAILED):
        store.heartbeat(key, Report(observation=last))
        store.tell(key, state, Report(observation=last), reason="no space left")
    assert figures(store.task_sums("d", 0.0)) == [("d.train", "rapl", 1, 30.0, 3.0)]
    outside(store, 1, ti_id="again", try_number=2, energy_j=30.0, time_s=3.0)
    assert figures(store.outside_sums(ALL)) == [("d.*", "rapl", 1, 60.0, 6.0)]


def test_parts_of_a_deferred_task_are_one_run(store: Store) -> None:
    for part in ("first", "second"):
        outside(store, 1, energy_j=10.0, time_s=1.0, start_id=part)
    assert figures(store.task_sums("d", 0.0)) == [("d.train", "rapl", 1, 20.0, 2.0)]


def test_mapped_tasks_are_one_task(store: Store) -> None:
    for index in range(50):
        outside(store, 1, map_index=index, ti_id=f"ti-{index}", energy_j=2.0, time_s=1.0)
    assert figures(store.task_sums("d", 0.0)) == [("d.train", "rapl", 50, 100.0, 50.0)]


def test_prices_are_summed(store: Store) -> None:
    priced = {"price_per_kwh": 0.2, "price_currency": "EUR", "g_co2e_per_kwh": 100.0}
    outside(store, 1, energy_j=3.6e6, **priced)
    outside(store, 2, energy_j=3.6e6)
    (found,) = store.outside_sums(ALL)
    assert (found.paid, found.paid_j, found.currencies) == (0.2, 3.6e6, ("EUR",))
    assert (found.g_co2e, found.g_co2e_j) == (100.0, 3.6e6)
    assert (found.energy_j, found.start_saved) == (7.2e6, None)


def test_every_column_is_written_and_added_to(store: Store) -> None:
    keys = {"dag_id": "d", "begin_s": 0, "energy_source": "rapl", "price_currency": "EUR"}
    values = {f.name: n for n, f in enumerate(fields(DaySum), start=1) if f.name not in keys}
    day = DaySum(**keys, **values)
    doubled = {name: 2 * value for name, value in values.items()}
    with store._transaction(None, write=True) as connection:
        for job_id in ("d.train", "d.load"):
            outside_sums.take_in(connection, job_id, [day])
            assert outside_sums.of_job(connection, job_id) == [day]
        of_month = outside_sums.of_job(connection, outside_sums.ALL_TASKS)
    assert of_month == [DaySum(**keys, **doubled)]


@pytest.mark.parametrize("begin_s", [5, -86_400, 86_400 * 10**9])
def test_a_sum_of_no_day_is_left_out(store: Store, begin_s: int) -> None:
    values = {f.name: 1 for f in fields(DaySum)}
    keys = {"dag_id": "d", "begin_s": begin_s, "energy_source": "rapl", "price_currency": "EUR"}
    figures_of_day: dict[str, Any] = {**values, **keys}
    day = DaySum(**figures_of_day)
    with store._transaction(None, write=True) as connection:
        assert outside_sums.take_in(connection, "d.train", [day]) == set()
        assert outside_sums.of_job(connection, "d.train") == []


def test_a_month_counts_in_the_period_in_which_it_begins(store: Store) -> None:
    outside(store, 1, at_s=40 * DAY_S, energy_j=1.0)  # in February 1970
    assert [s.period for s in store.outside_sums((0.0, 31 * DAY_S, 59 * DAY_S))] == [1]
    assert store.outside_sums((0.0, 31 * DAY_S)) == []


def test_a_renamed_task_takes_its_sums_along(store: Store) -> None:
    outside(store, 1, energy_j=10.0, time_s=1.0)
    store.rename("d.train", "e.train")
    assert figures(store.task_sums("e", 0.0)) == [("e.train", "rapl", 1, 10.0, 1.0)]
    assert store.task_sums("d", 0.0) == []
    assert figures(store.outside_sums(ALL)) == [("e.*", "rapl", 1, 10.0, 1.0)]
