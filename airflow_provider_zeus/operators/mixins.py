"""Shared by the operators: they may wait for a cheaper start, and report the cost of the run.

Imported at DAG parse.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.links.zeus import ZeusCostLink
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

Notifier = Callable[[Any], Any]

# For users, too: the site's reference shows the comment of each as what its XCom is.
DECISION = "zeus_decision"  # for users, who ask what runs and why
COST = "zeus_cost"  # for users, who ask what the run cost
WAIT = "zeus_wait"  # for users, who ask until when the task waits and why
# the plan of ZeusTrial's setup task, since the training process may not reach the run log
PLAN = "zeus_plan"
# trial and result folder of ZeusTrial's setup task, so that its teardown task ends that trial
HANDED_OVER = "zeus_trial"

# For the saving: the end of a task must not wait for a figure that a page can show later.
MOST_S = 5.0

PUSH_S = 3.0  # the run goes on without an XCom that only people read

log = guarded_log(__name__)


def job_part(name: str | None, values: Mapping[str, Any]) -> str | None:
    """The part that the mapped argument ``name`` adds to the job id (``job_id_by``); None without a
    name.

    It is a plain name (:func:`~airflow_provider_zeus.printable.plain_name`), so that the id is also
    the name of a Variable, and two texts are never one job; a number is the same as its text.

    :param values: the arguments of this map index, rendered.

    Raises JobSpecError if there is no such argument, or its value is neither a text nor a
    number.
    """
    if name is None:
        return None
    if name not in values:
        remedy = f"name one of its arguments: {', '.join(values) or 'none'}"
        raise JobSpecError.of("job_id_by", name, "this task gets no such argument", remedy)
    value = plain(values[name])
    problem = f"its value is of type {type(value).__name__}"
    if value == "":
        problem = "its value is an empty text"
    # True is an int to Python, and as a job's name surely a mistake
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        return plain_name(str(value))
    remedy = "map an argument whose values are texts or numbers, such as region names, and name it"
    raise JobSpecError.of("job_id_by", name, problem, remedy)


def job_id_of(job: ZeusJob, ti: Any, *, task_id: str | None = None, part: str | None = None) -> str:
    """Name of the job of a task instance; ``part``: as :func:`job_part` returns it."""
    whole = job.job_id or job_id_of_task(ti.dag_id, task_id or ti.task_id)
    return whole if part is None else job_id_of_value(whole, part)


def is_timed_out() -> bool:
    """Whether the task's own time limit has ended it: with the error that Airflow expects."""
    from airflow.sdk.exceptions import AirflowTaskTimeout

    return isinstance(sys.exc_info()[1], AirflowTaskTimeout)


def push(
    context: Mapping[str, Any], key: str, value: Mapping[str, Any], *, most_s: float = PUSH_S
) -> None:
    """Push an XCom for users.

    A push that fails or hangs is logged only: the run goes on without what people read.
    """
    try:
        bounded(partial(context["ti"].xcom_push, key=key, value=value), most_s)
    except Exception:
        log.warning("Zeus could not push XCom %s: pages may lack it.", key, exc_info=True)


class ShowsCost:
    """An operator with the button "Zeus cost"."""

    ui_color = "#d9f2e3"
    operator_extra_links: Collection[Any] = (ZeusCostLink(),)


class ReportsCost(ShowsCost):
    """An operator that reports the cost of its run: XCom, metrics, its log, OpenLineage, the events
    of its outlets.
    """

    outlets: list[Any]
    _extra: Mapping[str, Any] | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The answer to OpenLineage's provider at the end of a task, failed ones included; None:
        nothing is known.
        """
        if not self._extra:
            return None
        from airflow_provider_zeus.operators.openlineage import lineage_of

        return lineage_of(self._extra)

    @outlived("report what this run cost, which the run log holds")
    def report_cost(
        self,
        context: Any,
        reporter: ResultReporter,
        opened: Callable[[], Store],
        decision: Mapping[str, Any] | None = None,
    ) -> None:
        """Report the figures of a run that has ended, all from one reading.

        Raises nothing: the training has ended.

        Pushes XCom ``zeus_cost``, and into ``zeus_decision`` that the run was not needed.

        :param opened: opens the store, or raises StoreError.
        :param decision: XCom ``zeus_decision``, if this task pushes it.
        """
        from airflow_provider_zeus.operators.metrics import send_run
        from airflow_provider_zeus.operators.result_reporter import STOPPED_S
        from airflow_provider_zeus.reports.closing import closing
        from airflow_provider_zeus.signals.prices import in_force
        from airflow_provider_zeus.switch import OFF, enabled

        cost = reporter.cost_xcom()
        # a task that is being stopped has a second in all, so it pushes the cost alone
        push(context, COST, cost, most_s=STOPPED_S if reporter.stopped else PUSH_S)
        if decision and cost["not_needed"] and not reporter.stopped:
            push(context, DECISION, {**decision, "not_needed": True})
        figures = figures_of(cost, reporter, opened)
        send_run(figures)
        if figures.ended:
            saved = figures.saving.cost if figures.saving else figures.why_not
            log.info(
                "Zeus: %s.", closing(figures.attempts, saved, figures.limit, prices=in_force())
            )
        # Not imported: if it is on, its listener has loaded it.
        openlineage = sys.modules.get("airflow.providers.openlineage.conf")
        is_told = bool(self.outlets)
        if openlineage is not None and not openlineage.is_disabled():
            is_told = True
        if is_told and enabled() != OFF:
            self._extra = figures.as_event(in_force())
            into_outlets(self.outlets, context["outlet_events"], self._extra)


def figures_of(
    cost: Mapping[str, Any],
    reporter: ResultReporter,
    opened: Callable[[], Store],
    *,
    most_s: float = MOST_S,
) -> RunFigures:
    """The figures of a run that has ended; those that need the log are absent if reading it takes
    longer.

    The saving is that of the pages: it is worked out from the same runs.
    """
    from airflow_provider_zeus.reports.run_figures import MOST_RUNS, RunFigures, with_log

    figures = RunFigures(cost=cost, ended=reporter.ended)
    if reporter.stopped or not figures.ended:
        return figures

    def read() -> RunFigures:
        store = opened()
        run = figures.ended[-1]
        dag_id = run.origin.dag_id
        if run.batch_size is None:
            # No saving is worked out from other runs: its own tries suffice.
            trials = store.recurrence(dag_id, run.origin.run_id)
            newest = [trial for trial in trials if trial.job_id == run.job_id]
        else:
            newest = store.runs(dag_id, run.job_id, last=MOST_RUNS)
        return with_log(figures, newest, store.profile)

    # the training has ended: its task must not wait for a slow log
    try:
        return bounded(read, most_s)
    except TimeoutError:
        return replace(figures, why_not=f"reading the run log took longer than {most_s:g} s")
    except Exception as error:
        log.info("Zeus cannot say what this run saved (%s).", type(error).__name__)
        return replace(figures, why_not="the run log could not be read")


def into_outlets(outlets: Sequence[Any], events: Any, figures: Mapping[str, Any]) -> None:
    """Put the figures under the key ``zeus`` of the extra of each outlet's event, beside the
    user's own entries.

    :param events: ``context["outlet_events"]``. Of an alias those that the training has added get
        them.
    """
    from airflow.sdk import Asset, AssetAlias

    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            for event in events[outlet].asset_alias_events:
                event.extra["zeus"] = dict(figures)
        elif isinstance(outlet, Asset):
            events[outlet].extra = {**events[outlet].extra, "zeus": dict(figures)}


class StartsLater(ShowsCost):
    """An operator whose task may wait for a cheaper start.

    It holds no worker meanwhile: the triggerer waits.

    ``train_now(context)`` is its work then, in a new process and on a new instance.
    """

    job: Mapping[str, Any]
    job_id_by: str | None
    zeus_conn_id: str
    trains: str | None = None  # a wait is shown there: people look for the task that trains
    waited_since_s: float | None = None

    def arguments(self) -> Mapping[str, Any]:
        """The arguments of this map index that ``job_id_by`` may name, rendered."""
        raise NotImplementedError

    @property
    def part(self) -> str | None:
        """The end of the job's id, by the mapped value. Raises JobSpecError."""
        return job_part(self.job_id_by, self.arguments())

    def wait_for_start(self, context: Any) -> None:
        """Return if the training begins now; else defer the task: raises TaskDeferred.

        It begins now if Zeus is off, no wait is planned, or the planned start has come. XCom
        ``zeus_wait`` and the log say why.
        """
        if self.job.get("start_within") is None:
            return
        from airflow_provider_zeus.operators.schedule import planned_wait
        from airflow_provider_zeus.operators.start_trigger import ZeusStartTrigger
        from airflow_provider_zeus.switch import ON, enabled

        if enabled() != ON:
            return
        job = ZeusJob.from_dict(self.job).check(rendered=True)
        job_id = job_id_of(job, context["ti"], task_id=self.trains, part=self.part)
        wait = planned_wait(
            job, context, job_id=job_id, conn_id=self.zeus_conn_id, now_s=time.time()
        )
        if wait is None:
            return
        log.info("Zeus: %s", wait.why)
        push(context, WAIT, wait.xcom() | {"trains": self.trains or context["ti"].task_id})
        since_s = time.time()
        if wait.until_s is None or wait.until_s <= since_s:
            return
        if wait.latest_s is None or wait.duration_s is None:
            return
        left_s = wait.until_s - since_s
        if left_s < 120.0:  # it is slept: Airflow fails tasks that defer for some seconds
            self.waited_since_s = since_s
            time.sleep(left_s)
            return
        trigger = ZeusStartTrigger(
            wait.until_s, wait.latest_s, wait.duration_s, wait.signal, self.zeus_conn_id
        )
        # After the latest start: then the task trains though the triggerer has never fired.
        timeout = timedelta(seconds=max(wait.latest_s - since_s, 0.0) + 900.0)
        self.defer(  # type: ignore[attr-defined]
            trigger=trigger, method_name="resume", kwargs={"since_s": since_s}, timeout=timeout
        )

    def resume(self, context: Any, event: Any = None, since_s: float | None = None) -> Any:
        """Train, after a wait that began at ``since_s`` [s since the epoch]."""
        self.waited_since_s = since_s
        return self.train_now(context)  # type: ignore[attr-defined]

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any
    ) -> Any:
        """Train also if the wait has failed: no fault of a trigger fails a training.

        A task that waits for no start was deferred by its author, whose trigger's failure is a
        failure of the task.
        """
        waits = self.job.get("start_within") is not None
        # By this name Airflow resumes a task whose trigger failed, or was not heard of.
        if next_method != "__fail__" or not waits:
            return super().resume_execution(next_method, next_kwargs, context)  # type: ignore[misc]
        why = (next_kwargs or {}).get("error", "unknown")
        log.warning("Zeus: the wait for a cheaper start failed (%s). The training begins now.", why)
        return self.resume(context)
