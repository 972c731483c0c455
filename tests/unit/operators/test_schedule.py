"""Runs left until a DAG ends, compared with those that Airflow's own timetables plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, CronTriggerTimetable, DeltaTriggerTimetable
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import DagRunInfo, TimeRestriction
from pendulum import instance

from airflow_provider_zeus.operators.schedule import interval_s, runs_left

START = datetime(2026, 3, 20, tzinfo=UTC)
DAY = timedelta(days=1)


def planned(dag: DAG) -> list[DagRunInfo]:
    """All runs that Airflow plans from the start of the DAG to its end."""
    timetable = coerce_to_core_timetable(dag.timetable)
    runs = list[DagRunInfo]()
    latest = None if dag.end_date is None else instance(dag.end_date)
    restriction = TimeRestriction(earliest=instance(START), latest=latest, catchup=True)
    while len(runs) <= 101:
        last = runs[-1].data_interval if runs else None
        following = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )
        if following is None:
            break
        runs.append(following)
    return runs


def dag_of(schedule: Any, end_date: datetime | None) -> DAG:
    with DAG("d", schedule=schedule, start_date=START, end_date=end_date) as dag:
        EmptyOperator(task_id="train")
    return dag


def left(dag: DAG, run: DagRunInfo) -> int | None:
    interval = run.data_interval
    return runs_left(
        {
            "dag": dag,
            "task": dag.get_task("train"),
            "dag_run": SimpleNamespace(run_after=run.run_after),
            "data_interval_start": interval and interval.start,
            "data_interval_end": interval and interval.end,
        }
    )


@pytest.mark.parametrize(
    "schedule",
    [
        "@daily",
        "30 2 * * mon-fri",
        DAY,
        timedelta(hours=36),
        # the clocks change on 29 March
        CronTriggerTimetable("0 3 * * *", timezone="Europe/Berlin"),
        CronTriggerTimetable("0 3 * * *", timezone="UTC", interval=DAY),
        CronDataIntervalTimetable("0 3 * * *", timezone="UTC"),
        DeltaTriggerTimetable(DAY, interval=timedelta(hours=6)),
    ],
    ids=str,
)
def test_as_many_as_airflow_plans(schedule: Any) -> None:
    dag = dag_of(schedule, START + 12 * DAY)
    runs = planned(dag)
    assert 6 <= len(runs) <= 13
    assert [left(dag, run) for run in runs] == list(reversed(range(len(runs))))


def test_many_are_not_counted_to_the_end() -> None:
    dag = dag_of("@hourly", START + 365 * DAY)
    assert left(dag, planned(dag)[0]) == 100


@pytest.mark.parametrize("schedule", [None, "@once", "@daily"])
def test_none_where_nothing_ends_or_nothing_recurs(schedule: Any) -> None:
    dag = dag_of(schedule, None if schedule == "@daily" else START + DAY)
    now = instance(START)
    assert left(dag, DagRunInfo.exact(now)) is None


def test_the_end_of_the_task_counts_where_it_comes_first() -> None:
    dag = dag_of("@daily", START + 12 * DAY)
    dag.get_task("train").end_date = START + 3 * DAY
    assert left(dag, planned(dag)[0]) == 3


def test_a_timetable_that_breaks_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    dag = dag_of("@daily", START + 12 * DAY)
    run = planned(dag)[0]
    dag.timetable = SimpleNamespace(expression="no cron", timezone="Nowhere/At_all")
    assert left(dag, run) is None
    assert "could not count" in caplog.text


@pytest.mark.parametrize(
    ("schedule", "hours"),
    [
        ("@daily", 24.0),
        ("0 */6 * * *", 6.0),
        (timedelta(hours=36), 36.0),
        (CronTriggerTimetable("0 2 * * *", timezone="UTC"), 2.0),
    ],
)
def test_how_long_until_the_next_run(schedule: Any, hours: float) -> None:
    context = {"dag": dag_of(schedule, None), "dag_run": SimpleNamespace(run_after=START)}
    assert interval_s(context) == hours * 3600


def test_without_a_schedule_of_known_dates_no_interval_is_known() -> None:
    run = SimpleNamespace(run_after=START)
    assert interval_s({"dag": dag_of(None, None), "dag_run": run}) is None
    assert interval_s({"dag": SimpleNamespace(timetable=object()), "dag_run": run}) is None
    assert interval_s({"dag_run": run}) is None
    broken = SimpleNamespace(expression="no cron", timezone="Nowhere/At_all")
    assert interval_s({"dag": SimpleNamespace(timetable=broken), "dag_run": run}) is None
