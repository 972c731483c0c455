"""The work of the setup and the teardown task of a ``ZeusTrial``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_zeus.errors import BelowTargetError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.asking import ask, log_remarks, newest_trials
from airflow_provider_zeus.operators.collect import (
    Start,
    newest_start,
    report_all,
    starts_in_folder,
    starts_in_xcom,
)
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.mixins import DECISION, HANDED_OVER, PLAN, StartsLater
from airflow_provider_zeus.operators.origin import type_of
from airflow_provider_zeus.operators.recurrence import (
    alerts_of,
    ask_request,
    decision_xcom,
    plan_of,
    reporter_of,
    say_asked,
    time_left_s,
)
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.job_remarks import RemarkKind
from airflow_provider_zeus.signals.hours import read_signal
from airflow_provider_zeus.signals.reading import followed
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.rows import trial_from_dict, trial_to_dict
from airflow_provider_zeus.switch import OFF
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = guarded_log(__name__)


def push_plan(
    operator: StartsLater, context: Mapping[str, Any], *, lease_s: float, result_path: str | None
) -> None:
    """Ask the store, and push the plan of the training and the data for the teardown task.

    Raises JobSpecError; StoreError if strict.

    :param operator: of the setup task.
    :param result_path: folder for result files, shared with the host that trains; None: the result
        comes by XCom.
    """
    config = ZeusConfig.read()
    job = config.switched(ZeusJob.from_dict(operator.job).check(rendered=True))
    # Before the question: without its signal a strict job must leave no open trial.
    signal = followed(job) if job.strict else None
    part = operator.part
    trains = operator.trains
    request = ask_request(job, context, None, lease_s=lease_s, task_id=trains, part=part)
    ti = context["ti"]
    # backfills run beside scheduled runs, whatever max_active_runs says
    backfill = type_of(context["dag_run"]) == "backfill"
    mapped = ti.map_index not in (None, -1)
    overlap_possible = context["dag"].max_active_runs != 1 or backfill or mapped
    asked = ask(
        request,
        operator.zeus_conn_id,
        config,
        overlap_possible=overlap_possible,
        watch=lambda answer, reopen: alerts_of(context, answer.trial, config, reopen).after_task(
            decision=True
        ),
    )
    store = asked.store
    answer = asked.answer
    trial = answer.trial
    if part is None:
        say_asked(answer)
    inner = context["dag"].task_dict.get(trains)
    plan = plan_of(
        answer, config, signal=signal or followed(job, store), time_left_s=time_left_s(inner)
    )
    log.info("Zeus: batch size %d. %s", trial.batch_size, visible(trial.planned.why))
    folder = None
    if result_path:
        folder = f"{result_path.rstrip('/')}/{trial.key.ti_id}-{trial.key.attempt}"
    handed_over = {
        "trial": trial_to_dict(trial),
        "result_path": folder,
        "waited_since_s": operator.waited_since_s,
    }
    ti.xcom_push(key=DECISION, value=decision_xcom(trial, store))
    ti.xcom_push(key=PLAN, value=plan.to_json())
    ti.xcom_push(key=HANDED_OVER, value=handed_over)


@dataclass(frozen=True, slots=True)
class Training:
    """The task between setup and teardown, as the teardown task sees it."""

    context: Mapping[str, Any]
    setup_task_id: str
    trains: str | None
    result_key: str
    conn_id: str
    report: Callable[..., None]

    def pull(self, task_id: str | None, key: str) -> Any:
        """Pull an XCom of the same instance of a mapped group."""
        ti = self.context["ti"]
        return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=ti.map_index)

    def states(self) -> set[str]:
        """States of the training's task by Airflow's API. Raises the API's errors."""
        ti = self.context["ti"]
        which = {"dag_id": ti.dag_id, "task_ids": [self.trains], "run_ids": [ti.run_id]}
        mapped = {} if ti.map_index in (None, -1) else {"map_index": ti.map_index}
        states = ti.get_task_states(**which, **mapped).get(ti.run_id, {})
        return {str(getattr(state, "value", state)) for state in states.values()}


class Kept(NamedTuple):
    """The end of the attempt whose model is kept, and its job."""

    end: ResultLine
    job: ZeusJob

    def check_target(self) -> None:
        """Raise BelowTargetError if the job requires its target, and the model is below it."""
        if self.job.require_target and self.end.state is State.EXHAUSTED:
            raise BelowTargetError.of(self.end.batch_size, self.end.reason, self.job.target)


def report_training(training: Training, *, decides_the_run: bool) -> None:
    """Collect the result and report its cost to the store.

    :param decides_the_run: whether Airflow takes this task's state for the run's. Only then it
        raises BelowTargetError, if the job requires its target and the model is below it, and
        AirflowException if the training failed. It raises nothing else.
    """
    kept: Kept | None = None
    try:
        kept = _collect(training)
    except Exception:
        log.exception(
            "Zeus could not report the cost of this training; its attempt stays open until its "
            "lease ends."
        )
    if not decides_the_run:
        return
    if kept is not None:
        kept.check_target()
    try:
        failed = not {"failed", "upstream_failed"}.isdisjoint(training.states())
    except Exception:
        log.exception(
            "Zeus cannot ask Airflow whether the training, task %s, failed.", training.trains
        )
        # without an answer of Airflow a run without a model counts as failed
        failed = kept is None
    if failed:
        from airflow.exceptions import AirflowException  # type: ignore[attr-defined]

        raise AirflowException(f"The training, task {training.trains}, failed; see its log.")


def _collect(training: Training) -> Kept | None:
    """Report the lines of all starts; return the kept attempt, if there is one."""
    config = ZeusConfig.read()
    handed_over = training.pull(training.setup_task_id, HANDED_OVER)
    plan = Plan.from_json(training.pull(training.setup_task_id, PLAN))
    first = trial_from_dict(handed_over["trial"])
    memory: Store | None = None
    if config.enabled == OFF:
        from airflow_provider_zeus.store.variables.store import memory_store

        # switched off, the run leaves nothing in any log
        memory = memory_store()
        memory.adopt(first)

    def reopen() -> Store:
        return memory or open_store(training.conn_id, create=False)

    def read(signal: str, start_s: float, end_s: float) -> Series | str | None:
        try:
            return read_signal(signal, start_s, end_s, keeper=reopen())
        except StoreError:
            # The store keeps what was read before: without it the service itself is asked.
            return read_signal(signal, start_s, end_s, keeper=None)

    if memory is None:
        alerts_of(training.context, first, config, reopen).after_task(decision=False)
    reporter = reporter_of(
        first,
        config,
        store=None,
        reopen=reopen,
        numbers=plan.numbers,
        waited_since_s=handed_over.get("waited_since_s"),
        read=read,
    )
    folder = handed_over["result_path"] or None
    value = training.pull(training.trains, "return_value")
    starts = starts_in_xcom(value, training.result_key)
    if folder:
        in_folder = starts_in_folder(Path(folder))
        start_ids = {start[0].start_id for start in in_folder}
        # files survive the process, and so may hold more than the XCom of the same start
        starts = in_folder + [start for start in starts if start[0].start_id not in start_ids]
    if starts:
        starts = not_told(starts, reopen, first)
    no_result = NoResult() if starts else _why_no_result(training, folder, value)
    report_all(
        starts,
        reporter,
        plan,
        starts_seen=0 if folder else newest_start(starts),
        no_start_reason=no_result.reason,
        ended_well=no_result.ended_well,
        folder=folder,
    )
    # Only now is the device known, so its remarks could not come with the batch size.
    log_remarks(newest_trials(reopen, first), first, kinds=(RemarkKind.DEVICE,))
    training.report(training.context, reporter, reopen)
    end = reporter.kept_end
    return None if end is None else Kept(end, plan.job)


def not_told(starts: list[Start], reopen: Callable[[], Store], first: Trial) -> list[Start]:
    """The starts that no earlier trial of the run holds: clearing the setup task alone leaves the
    XCom as it was.

    Those that this trial's own task instance reported stay: clearing the teardown task alone
    reports them again.
    """
    try:
        trials = reopen().recurrence(first.origin.dag_id, first.origin.run_id)
    except StoreError:
        # Rather told twice than lost.
        return starts
    # its own rows may be reported again: the store keeps one of each start
    others = [trial for trial in trials if trial.key.ti_id != first.key.ti_id]
    start_ids = {trial.observation.start_id for trial in others} - {None}
    new = [start for start in starts if start[0].start_id not in start_ids]
    if len(new) < len(starts):
        log.warning(
            "Zeus: a result that an earlier attempt of this run holds is left out: the training "
            "did not run again."
        )
    return new


class NoResult(NamedTuple):
    """A training without a result: why it did not run, None if it did; whether it ended well and
    left nothing.
    """

    reason: str | None = None
    ended_well: bool = False


def _why_no_result(training: Training, folder: str | None, value: Any) -> NoResult:
    """Log that a training left no result, and the remedy."""
    ended_well = False
    counts = "its attempt counts as failed"
    reasons = {
        "skipped": "the training was skipped",
        "upstream_failed": "the training did not run: what it needs failed",
    }
    with suppress(Exception):  # of Airflow's API: the reason is then less exact, nothing else
        states = training.states()
        for state in reasons.keys() & states:
            log.warning(
                "Zeus: task %s left no result: %s. Its attempt counts as failed.",
                training.trains,
                reasons[state],
            )
            return NoResult(reasons[state])
        if states == {"success"} and not _may_be_result(value, training.result_key):
            ended_well = folder is None or not os.path.lexists(folder)
        if ended_well:
            counts = "whether it reached its target is not known: no metric was reported"
    remedy = "let the task push the result as its XCom, or set result_path"
    if folder is not None:
        place = f"there is none in {visible(folder)}"
        remedy = "mount the folder of result_path where it trains"
    elif value is None:
        place = "it left no XCom"
    else:
        place = f"it left an XCom without the entry {training.result_key!r}"
    log.warning(
        "Zeus: task %s left no result: %s. What it cost is not known, and %s. Check that the "
        "training runs under ZeusRun.from_env() and gets trial.env, and %s (docs/operators.md, "
        '"Any operator").',
        *(training.trains, place, counts, remedy),
    )
    return NoResult(ended_well=ended_well)


def _may_be_result(value: Any, key: str) -> bool:
    """Whether an XCom seems to hold a result, of an earlier version or damaged."""
    if isinstance(value, str):
        return f'"{key}"' in value
    return isinstance(value, Mapping) and key in value
