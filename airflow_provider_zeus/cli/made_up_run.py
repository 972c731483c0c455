"""A run of a DAG that never was: which runs its schedule gives, and what a task gets of one."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4


class NotHereError(Exception):
    """The check has no such value, since nothing has run. The text says which value."""


def rendered(task: Any, dag: Any, xcoms: Mapping[tuple[str, str], Any], *, days: int = 0) -> tuple[Any, dict[str, Any]]:
    """A task with its templates rendered, the first instance of a mapped one, and the context of a made-up run.

    ``dag.test()`` would write a DAG run and its XComs into Airflow's database, and run the other tasks.

    :param xcoms: known ones, by task id and key.
    :param days: from now to the date of the run.

    Raises NotHereError for any other XCom, JobSpecError for a name that the run lacks, and what a template raises.
    """
    copy = task.prepare_for_execution()
    context = made_up_context(copy, dag, xcoms, days=days, dated=Runs.of(dag).may_be_dated)
    copy.render_template_fields(context)
    operator = context["task"]
    operator.check_templates(context)
    return operator, context


@dataclass(frozen=True, slots=True)
class Runs:
    """Which runs the schedule of a DAG gives. Without a schedule they are started by hand."""

    by_time: bool
    by_assets: bool
    of_partitions: bool
    once: bool  # there is one

    @classmethod
    def of(cls, dag: Any) -> Self:
        """Those of a DAG."""
        timetable = dag.timetable
        by_assets = bool(getattr(timetable, "asset_condition", None))
        by_time = timetable.can_be_scheduled and (not by_assets or hasattr(timetable, "timetable"))
        # No field of a DAG that is only defined says these.
        names = [kind.__name__ for kind in type(timetable).__mro__]
        return cls(
            by_time=by_time,
            by_assets=by_assets,
            of_partitions=any("Partition" in name for name in names),
            once="OnceTimetable" in names,
        )

    @property
    def by_hand(self) -> bool:
        """Whether its schedule gives none."""
        return not self.by_time and not self.by_assets

    @property
    def may_be_dated(self) -> bool:
        """Whether some of them have a logical date."""
        return self.by_hand or (self.by_time and not self.of_partitions)

    @property
    def may_be_undated(self) -> bool:
        """Whether some of them have no logical date."""
        return self.by_hand or self.by_assets or self.of_partitions

    @property
    def recur(self) -> bool:
        """Whether its schedule gives more than one."""
        return not self.by_hand and not self.once

    @property
    def key(self) -> str:
        """A key of the context that each of them has, and that names its data."""
        if self.of_partitions:
            return "partition_key"
        return "run_id" if self.may_be_undated else "ds"


class OnlyInRun:
    """A value of the context that only a run has: to use it raises NotHereError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotHereError(self._name)

    def __getitem__(self, name: object) -> Any:
        raise NotHereError(self._name)

    def __str__(self) -> str:
        raise NotHereError(self._name)


ONLY_IN_RUN = (
    *("inlets", "outlets", "inlet_events", "outlet_events", "triggering_asset_events", "map_index_template"),
    *("task_instance_key_str", "task_reschedule_count", "task_state_store", "asset_state_store", "partition_date"),
    *("prev_start_date_success", "prev_end_date_success"),
)


def made_up_context(
    task: Any, dag: Any, xcoms: Mapping[tuple[str, str], Any], *, dated: bool, days: int = 0
) -> dict[str, Any]:
    """The context of a run that never was.

    :param dated: whether the run has a logical date.
    :param days: from now to the date of the run.
    """
    from airflow.sdk import Context

    now = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    run_id = f"check__{now.isoformat()}"

    def pull(task_ids: Any = None, key: str = "return_value", **_: Any) -> Any:
        if (task_ids, key) not in xcoms:
            raise NotHereError(f"XCom {key} of task {task_ids}")
        return xcoms[task_ids, key]

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotHereError("XCom of an instance of a mapped task")

    ti = SimpleNamespace(
        id=str(uuid4()), dag_id=dag.dag_id, task_id=task.task_id, run_id=run_id, try_number=1, task=task,
        max_tries=int(getattr(task, "retries", 0) or 0), map_index=0 if is_mapped(task) else -1,
        xcom_pull=pull, get_relevant_upstream_map_indexes=refuse,
    )  # fmt: skip
    interval = (now - timedelta(days=1), now) if dated else (None, None)
    dag_run = SimpleNamespace(
        run_type="manual", run_after=now, run_id=run_id, conf={}, logical_date=now if dated else None,
        data_interval_start=interval[0], data_interval_end=interval[1],
    )  # fmt: skip
    context: dict[str, Any] = {name: OnlyInRun(name) for name in ONLY_IN_RUN if name in Context.__annotations__}
    context |= {
        **_looked_up(), "dag": dag, "dag_run": dag_run, "ti": ti, "task_instance": ti, "task": task, "run_id": run_id,
        "params": {name: getattr(param, "value", param) for name, param in {**dag.params, **task.params}.items()},
    }  # fmt: skip
    if "partition_key" in Context.__annotations__:
        context["partition_key"] = f"{now:%Y-%m-%d}" if Runs.of(dag).of_partitions else None
    if not dated:
        return context
    context |= {
        "logical_date": now, "ds": f"{now:%Y-%m-%d}", "ds_nodash": f"{now:%Y%m%d}",
        "ts": now.isoformat(), "ts_nodash": f"{now:%Y%m%dT%H%M%S}", "ts_nodash_with_tz": f"{now:%Y%m%dT%H%M%S%z}",
        "data_interval_start": interval[0], "data_interval_end": interval[1],
    }  # fmt: skip
    before = ("prev_data_interval_start_success", "prev_data_interval_end_success")
    return context | {name: OnlyInRun(name) for name in before}


def _looked_up() -> dict[str, Any]:
    """What templates read by itself: ``var.value.x``, ``var.json.x``, ``conn.x``, ``macros.x``."""
    from airflow.sdk import BaseHook, Variable, macros

    class Look:
        def __init__(self, get: Callable[..., Any]) -> None:
            self.get = get

        def __getattr__(self, name: str) -> Any:
            return self.get(name)

    parsed = Look(partial(Variable.get, deserialize_json=True))
    found = {"var": SimpleNamespace(value=Look(Variable.get), json=parsed), "conn": Look(BaseHook.get_connection)}
    return {**found, "macros": macros}


def is_mapped(task: Any) -> bool:
    """Whether a task has several instances."""
    return bool(task.is_mapped or task.get_closest_mapped_task_group() is not None)
