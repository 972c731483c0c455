"""A run of a DAG that never was: the runs that its schedule gives, and the context of a task in
one.
"""

# Some of Airflow's functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4

from jinja2 import StrictUndefined, TemplateRuntimeError

from airflow_provider_zeus.cli.shell import no_log


class NotHereError(TemplateRuntimeError):
    """The check has no such value, since nothing has run. The text says which value."""


class ConfByHand(dict[str, Any]):
    """``dag_run.conf`` of a run that somebody starts: its keys are known then."""

    def __missing__(self, name: str) -> Any:
        return StrictUndefined(hint=f"dag_run.conf[{name!r}]", exc=NotHereError)


def rendered(task: Any, dag: Any, *, days: int = 0) -> tuple[Any, dict[str, Any]]:
    """A task with its templates rendered, the first instance of a mapped one, and the context of a
    made-up run.

    ``dag.test()`` would write a DAG run and its XComs into Airflow's database, and run the other
    tasks.

    :param days: from now to the date of the run.

    Raises NotHereError for an XCom, JobSpecError for a name that the run lacks, and the errors of
    templates.
    """
    # rendering changes a task, and the DAG's own must stay as it is
    copy = task.prepare_for_execution()
    context = made_up_context(copy, dag, days=days, dated=Runs.of(dag).may_be_dated)
    # Airflow logs a traceback of a template that fails, and the finding says it already.
    with no_log():
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
    once: bool

    @classmethod
    def of(cls, dag: Any) -> Self:
        """Those of a DAG."""
        timetable = dag.timetable
        by_assets = bool(getattr(timetable, "asset_condition", None))
        # Airflow says of a timetable of assets alone, too, that it can be scheduled.
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
        if self.may_be_undated:
            return "run_id"
        return "ds"


class OnlyInRun:
    """A value of the context that only a run has: to use it raises NotHereError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Python itself asks for these, for example to copy, and takes AttributeError as a no.
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotHereError(self._name)

    def __getitem__(self, name: object) -> Any:
        raise NotHereError(self._name)

    def __str__(self) -> str:
        raise NotHereError(self._name)


ONLY_IN_RUN = (
    "inlets",
    "outlets",
    "inlet_events",
    "outlet_events",
    "triggering_asset_events",
    "map_index_template",
    "task_instance_key_str",
    "task_reschedule_count",
    "task_state_store",
    "asset_state_store",
    "partition_date",
    "prev_start_date_success",
    "prev_end_date_success",
)


def made_up_context(task: Any, dag: Any, *, dated: bool, days: int = 0) -> dict[str, Any]:
    """The context of a run that never was.

    :param dated: whether the run has a logical date.
    :param days: from now to the date of the run.
    """
    from airflow.sdk import Context

    now = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    run_id = f"check__{now.isoformat()}"

    def pull(task_ids: Any = None, key: str = "return_value", **_: Any) -> Any:
        # nothing has run, so nothing was pushed
        raise NotHereError(f"XCom {key} of task {task_ids}")

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotHereError("XCom of an instance of a mapped task")

    runs = Runs.of(dag)
    ti = SimpleNamespace(
        id=str(uuid4()),
        dag_id=dag.dag_id,
        task_id=task.task_id,
        run_id=run_id,
        try_number=1,
        task=task,
        max_tries=int(getattr(task, "retries", 0) or 0),
        map_index=0 if is_mapped(task) else -1,
        xcom_pull=pull,
        get_relevant_upstream_map_indexes=refuse,
    )
    dag_run = SimpleNamespace(
        run_type="manual",
        run_after=now,
        run_id=run_id,
        conf=ConfByHand() if runs.by_hand else {},
        logical_date=None,
        data_interval_start=None,
        data_interval_end=None,
    )
    # A task's own parameter comes before that of its DAG, as in Airflow.
    params = {**dag.params, **task.params}
    context: dict[str, Any] = {
        **{name: OnlyInRun(name) for name in ONLY_IN_RUN},
        **_looked_up(),
        "dag": dag,
        "dag_run": dag_run,
        "ti": ti,
        "task_instance": ti,
        "task": task,
        "run_id": run_id,
        "params": {name: getattr(param, "value", param) for name, param in params.items()},
        "partition_key": None,
    }
    if runs.of_partitions:
        context["partition_key"] = f"{now:%Y-%m-%d}"
    # an older Airflow lacks some of them: a template that asks for one is a mistake there
    for name in {*ONLY_IN_RUN, "partition_key"} - Context.__annotations__.keys():
        del context[name]
    # A run by assets or by hand may have no date: a template with one must fail here, too.
    if not dated:
        return context
    dag_run.logical_date = now
    dag_run.data_interval_start = now - timedelta(days=1)
    dag_run.data_interval_end = now
    return context | {
        "logical_date": now,
        "ds": f"{now:%Y-%m-%d}",
        "ds_nodash": f"{now:%Y%m%d}",
        "ts": now.isoformat(),
        "ts_nodash": f"{now:%Y%m%dT%H%M%S}",
        "ts_nodash_with_tz": f"{now:%Y%m%dT%H%M%S%z}",
        "data_interval_start": dag_run.data_interval_start,
        "data_interval_end": now,
        "prev_data_interval_start_success": OnlyInRun("prev_data_interval_start_success"),
        "prev_data_interval_end_success": OnlyInRun("prev_data_interval_end_success"),
    }


def _looked_up() -> dict[str, Any]:
    """Names that templates use without a context: ``var.value.x``, ``var.json.x``, ``conn.x``,
    ``macros.x``.
    """
    from airflow.sdk import BaseHook, Variable, macros

    # Airflow's own classes for these are no public names.
    class Look:
        def __init__(self, get: Callable[..., Any]) -> None:
            self.get = get

        def __getattr__(self, name: str) -> Any:
            return self.get(name)

    parsed = Look(partial(Variable.get, deserialize_json=True))
    return {
        "var": SimpleNamespace(value=Look(Variable.get), json=parsed),
        "conn": Look(BaseHook.get_connection),
        "macros": macros,
    }


def is_mapped(task: Any) -> bool:
    """Whether a task has several instances."""
    return bool(task.is_mapped or task.get_closest_mapped_task_group() is not None)
