"""Which runs a schedule gives, and what a task gets of one that never was."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, BaseOperator, Context
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.trigger import CronTriggerTimetable

from airflow_provider_zeus.cli.made_up_run import NotHereError, Runs, made_up_context, rendered

DAILY = CronTriggerTimetable("@daily", timezone="UTC")


@pytest.mark.parametrize(
    ("schedule", "dated", "undated", "recur", "key"),
    [
        (None, True, True, False, "run_id"),
        ("@daily", True, False, True, "ds"),
        (timedelta(days=1), True, False, True, "ds"),
        ("@once", True, False, False, "ds"),
        ([Asset("x")], False, True, True, "run_id"),
        (AssetOrTimeSchedule(timetable=DAILY, assets=[Asset("x")]), True, True, True, "run_id"),
    ],
    ids=["none", "daily", "interval", "once", "asset", "asset or time"],
)
def test_the_runs_of_a_schedule(
    schedule: Any, dated: bool, undated: bool, recur: bool, key: str
) -> None:
    runs = Runs.of(DAG("d", schedule=schedule))
    assert (runs.may_be_dated, runs.may_be_undated, runs.recur, runs.key) == (
        dated,
        undated,
        recur,
        key,
    )


@pytest.mark.parametrize("name", ["CronPartitionTimetable", "PartitionedAssetTimetable"])
def test_runs_of_partitions_have_a_key_and_no_date(name: str) -> None:
    sdk = pytest.importorskip("airflow.sdk")
    if not hasattr(sdk, name) or "partition_key" not in Context.__annotations__:
        pytest.skip("a task gets partition_key from Airflow 3.3 on")
    given: dict[str, Any] = {"assets": Asset("x")}
    schedule = (
        sdk.CronPartitionTimetable("@daily", timezone="UTC")
        if "Cron" in name
        else getattr(sdk, name)(**given)
    )
    dag = DAG("d", schedule=schedule)
    runs = Runs.of(dag)
    assert (runs.may_be_dated, runs.may_be_undated, runs.recur, runs.key) == (
        False,
        True,
        True,
        "partition_key",
    )
    task = BaseOperator(task_id="t", dag=dag)
    assert made_up_context(task, dag, dated=False)["partition_key"]


class Task(BaseOperator):
    template_fields = ("text",)

    def __init__(self, *, text: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.text = text

    def check_templates(self, context: Any) -> None: ...


@pytest.mark.parametrize(
    "text",
    [
        "{{ ti.xcom_pull('load') }}",
        "{{ ti.get_relevant_upstream_map_indexes(task, 2, session=None) }}",
    ],
    ids=["a value", "places in a mapped group"],
)
def test_what_other_tasks_left_is_not_made_up(text: str) -> None:
    dag = DAG("d", schedule=None)
    with pytest.raises(NotHereError, match="XCom"):
        rendered(Task(task_id="t", dag=dag, text=text), dag)


def test_a_run_with_a_date_is_of_the_day_before_it() -> None:
    dag = DAG("d", schedule="@daily")
    text = "{{ (logical_date - data_interval_start).days }} {{ data_interval_end == logical_date }}"
    task, _ = rendered(Task(task_id="t", dag=dag, text=text), dag)
    assert task.text == "1 True"


def test_rendering_leaves_the_log_as_it_was() -> None:
    dag = DAG("d", schedule=None)
    task = Task(task_id="t", dag=dag)
    logging.disable(logging.WARNING)
    rendered(task, dag)
    assert logging.root.manager.disable == logging.WARNING


def test_the_keys_of_a_run_without_a_date_are_those_that_airflow_gives_it() -> None:
    dag = DAG("d", schedule=None, params={"a": 1})
    task = BaseOperator(task_id="t", dag=dag, params={"b": 2})
    dated, undated = (made_up_context(task, dag, dated=has_date) for has_date in (True, False))
    assert {
        "ds",
        "ts_nodash_with_tz",
        "data_interval_end",
        "prev_data_interval_end_success",
    } <= dated.keys()
    assert not {"ds", "ts", "logical_date", "data_interval_end"} & undated.keys()
    assert undated.keys() < dated.keys() <= Context.__annotations__.keys()
    assert undated["dag_run"].logical_date is None
    assert undated["params"] == {"a": 1, "b": 2}
    with pytest.raises(NotHereError, match="triggering_asset_events"):
        str(undated["triggering_asset_events"])
