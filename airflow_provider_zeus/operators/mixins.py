"""What the operators share: they may wait for a cheaper start, and report what the run cost. Imported at DAG parse."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import plain
from airflow_provider_zeus.model.job_ids import job_id_of_task, job_id_of_value
from airflow_provider_zeus.patience import bounded, outlived
from airflow_provider_zeus.printable import plain_name

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.result_reporter import ResultReporter
    from airflow_provider_zeus.reports.run_figures import RunFigures
    from airflow_provider_zeus.store.sql.store import Store

# Keys of the XComs that the operators push.
DECISION = "zeus_decision"  # what runs and why, for users
COST = "zeus_cost"  # what the run cost, for users
WAIT = "zeus_wait"  # until when the task waits and why, for users
PLAN = "zeus_plan"  # from ZeusTrial's setup task: the plan, for the training process
HANDED_OVER = "zeus_trial"  # from ZeusTrial's setup task: the trial and the result folder, for the teardown task

log = guarded_log(__name__)


def job_part(name: str | None, values: Mapping[str, Any]) -> str | None:
    """The part that the mapped argument ``name`` adds to the job id (``job_id_by``); None without a name.

    It is a plain name (:func:`~airflow_provider_zeus.printable.plain_name`), so that the id is also the name of a
    Variable, and two texts are never one job; a number is the same as its text.

    :param values: the arguments of this map index, rendered.

    Raises JobSpecError where there is no such argument, or its value is neither a text nor a number.
    """
    if name is None:
        return None
    if name not in values:
        remedy = f"name one of its arguments: {', '.join(values) or 'none'}"
        raise JobSpecError.of("job_id_by", name, "this task gets no such argument", remedy)
    value = plain(values[name])
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        problem = f"its value is {'an empty text' if value == '' else f'of type {type(value).__name__}'}"
        remedy = "map an argument whose values are texts or numbers, such as region names, and name it"
        raise JobSpecError.of("job_id_by", name, problem, remedy)
    return plain_name(str(value))


def job_id_of(job: ZeusJob, ti: Any, *, task_id: str | None = None, part: str | None = None) -> str:
    """Name of the job of a task instance; ``part``: what :func:`job_part` adds to it."""
    whole = job.job_id or job_id_of_task(ti.dag_id, task_id or ti.task_id)
    return whole if part is None else job_id_of_value(whole, part)


def is_timed_out() -> bool:
    """Whether the task's own time limit has ended it: with the error that Airflow expects."""
    from airflow.sdk.exceptions import AirflowTaskTimeout

    return isinstance(sys.exc_info()[1], AirflowTaskTimeout)


def push(context: Mapping[str, Any], key: str, value: Mapping[str, Any], *, most_s: float = 3.0) -> None:
    """Push an XCom for users. A push that fails or hangs is logged only: the trial log holds the same figures."""
    try:
        bounded(partial(context["ti"].xcom_push, key=key, value=value), most_s)
    except Exception:
        log.warning("Zeus could not push XCom %s; the trial log holds the same figures.", key, exc_info=True)


class ReportsCost:
    """An operator that reports what its run cost: XCom, metrics, its log, OpenLineage, the events of its outlets."""

    outlets: list[Any]
    _extra: Mapping[str, Any] | None = None  # the figures of this run, once it has ended

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What OpenLineage's provider asks for at the end of a task, failed ones included; None: nothing is known."""
        if not self._extra:
            return None
        from airflow_provider_zeus.operators.openlineage import lineage_of

        return lineage_of(self._extra)

    @outlived("report what this run cost, which the trial log holds")
    def report_cost(
        self,
        context: Any,
        reporter: ResultReporter,
        opened: Callable[[], Store],
        decision: Mapping[str, Any] | None = None,
    ) -> None:
        """Report the figures of a run that has ended, all from one reading. Raises nothing: the training has ended.

        Pushes XCom ``zeus_cost``, and into ``zeus_decision`` that the run was not needed.

        :param opened: opens the store, or raises StoreError.
        :param decision: XCom ``zeus_decision``, where this task pushes it.
        """
        from airflow_provider_zeus.operators.config import OFF, enabled
        from airflow_provider_zeus.operators.metrics import send_run
        from airflow_provider_zeus.operators.result_reporter import STOPPED_S
        from airflow_provider_zeus.reports.closing import closing
        from airflow_provider_zeus.signals.prices import in_force

        cost = reporter.cost_xcom()
        push(context, COST, cost, **({"most_s": STOPPED_S} if reporter.stopped else {}))
        if decision and cost["not_needed"]:
            push(context, DECISION, {**decision, "not_needed": True})
        found = figures_of(cost, reporter, opened)
        send_run(found)
        if found.ended:
            saved = found.saving.cost if found.saving else None
            log.info("Zeus: %s.", closing(found.ended, saved, found.limit, in_force()))
        openlineage = sys.modules.get("airflow.providers.openlineage.conf")  # its listener has loaded it
        is_told = self.outlets or (openlineage is not None and not openlineage.is_disabled())
        if is_told and enabled() != OFF:
            self._extra = found.as_event(in_force())
            into_outlets(self.outlets, context["outlet_events"], self._extra)


def figures_of(
    cost: Mapping[str, Any], reporter: ResultReporter, opened: Callable[[], Store], *, most_s: float = 1.0
) -> RunFigures:
    """The figures of a run that has ended; what needs the log is absent where reading it takes longer."""
    from airflow_provider_zeus.reports.run_figures import NEWEST, RunFigures, with_log

    found = RunFigures(cost=cost, ended=reporter.ended)
    if reporter.stopped or not found.ended:
        return found

    def read() -> RunFigures:
        store, run = opened(), found.ended[-1]
        last = NEWEST if run.batch_size is not None else 10  # its tries: without a size no other run counts
        return with_log(found, store.trials(run.job_id, last=last), store.profile)

    try:
        return bounded(read, most_s)
    except Exception as error:
        log.info("Zeus cannot say what this run saved (%s).", type(error).__name__)
        return found


def into_outlets(outlets: Sequence[Any], events: Any, figures: Mapping[str, Any]) -> None:
    """Put the figures under the key ``zeus`` of the extra of each outlet's event, beside what the user put there.

    :param events: ``context["outlet_events"]``. Of an alias those that the training has added get them.
    """
    from airflow.sdk import Asset, AssetAlias

    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            for event in events[outlet].asset_alias_events:
                event.extra["zeus"] = dict(figures)
        elif isinstance(outlet, Asset):
            events[outlet].extra = {**events[outlet].extra, "zeus": dict(figures)}


class StartsLater:
    """An operator whose task may wait for a cheaper start. It holds no worker meanwhile: the triggerer waits.

    ``train_now(context)`` is what it does then, in a new process and on a new instance.
    """

    job: Mapping[str, Any]
    zeus_conn_id: str
    waited_since_s: float | None = None  # set by the wait; None: there was none

    def wait_for_start(self, context: Any, *, part: str | None, task_id: str | None = None) -> None:
        """Return where the training begins now; else defer the task: raises TaskDeferred.

        :param part: end of the job's id, by the mapped value.
        :param task_id: of the task that trains, where that is another one.
        """
        if self.job.get("start_within") is None:
            return
        from airflow_provider_zeus.operators.config import ON, enabled
        from airflow_provider_zeus.operators.schedule import planned_wait
        from airflow_provider_zeus.operators.start_trigger import ZeusStartTrigger

        if enabled() != ON:
            return
        job = ZeusJob.from_dict(self.job).check(rendered=True)
        job_id = job_id_of(job, context["ti"], task_id=task_id, part=part)
        wait = planned_wait(job, context, job_id=job_id, conn_id=self.zeus_conn_id)
        if wait is None:
            return
        log.info("Zeus: %s", wait.why)
        push(context, WAIT, wait.xcom() | {"trains": task_id or context["ti"].task_id})
        if wait.until_s is None or wait.latest_s is None or wait.duration_s is None or wait.until_s <= time.time():
            return
        since_s, left_s = time.time(), wait.until_s - time.time()
        if left_s < 120.0:  # it is slept: Airflow fails tasks that defer for some seconds
            self.waited_since_s = since_s
            time.sleep(left_s)
            return
        trigger = ZeusStartTrigger(wait.until_s, wait.latest_s, wait.duration_s, wait.signal, self.zeus_conn_id)
        # After the latest start: then the task trains though the triggerer has never fired.
        timeout = timedelta(seconds=max(wait.latest_s - since_s, 0.0) + 900.0)
        self.defer(trigger=trigger, method_name="resume", kwargs={"since_s": since_s}, timeout=timeout)  # type: ignore[attr-defined]

    def resume(self, context: Any, event: Any = None, since_s: float | None = None) -> Any:
        """Train, after a wait that began at ``since_s`` [s since the epoch]."""
        self.waited_since_s = since_s
        return self.train_now(context)  # type: ignore[attr-defined]

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Train also where the wait has failed: no fault of a trigger fails a training.

        A task that waits for no start was deferred by its author, whose trigger's failure is a failure of the task.
        """
        waits = self.job.get("start_within") is not None
        if next_method != "__fail__" or not waits:  # what Airflow resumes where a trigger failed, or was not heard of
            return super().resume_execution(next_method, next_kwargs, context)  # type: ignore[misc]
        why = (next_kwargs or {}).get("error", "unknown")
        log.warning("Zeus: the wait for a cheaper start failed (%s). The training begins now.", why)
        return self.resume(context)
