"""The work of the setup and the teardown task of a ``ZeusTrial``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import BelowTargetError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.alerts import RunAlerts
from airflow_provider_zeus.operators.asking import log_remarks
from airflow_provider_zeus.operators.collect import Start, newest_start, report_all, starts_in_folder, starts_in_xcom
from airflow_provider_zeus.operators.config import OFF, ZeusConfig
from airflow_provider_zeus.operators.mixins import DECISION, HANDED_OVER, PLAN
from airflow_provider_zeus.operators.recurrence import (
    ask_request,
    ask_watched,
    decision_xcom,
    plan_of,
    say_asked,
    time_limit_s,
)
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.job_remarks import RemarkKind
from airflow_provider_zeus.signals.hours import HourPrices, read_signal
from airflow_provider_zeus.signals.reading import followed
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.rows import trial_from_dict, trial_to_dict
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = guarded_log(__name__)


def ask_for_plan(
    context: Mapping[str, Any],
    job_spec: Mapping[str, Any],
    *,
    lease_s: float,
    trains: str | None,
    result_path: str | None,
    conn_id: str,
    part: str | None = None,
    waited_since_s: float | None = None,
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of the training and the data for the teardown task. Raises JobSpecError; StoreError if strict.

    :param trains: task id of the operator that trains.
    :param result_path: folder for result files, shared with the host that trains; None: the result comes by XCom.
    :param part: end of the job's id, by the mapped value.
    :param waited_since_s: since when the task waited for a cheaper start [s since the epoch]; None: it did not.
    """
    config = ZeusConfig.read()
    job = config.switched(ZeusJob.from_dict(job_spec).check(rendered=True))
    signal = followed(job) if job.strict else None  # without its signal a strict job opens no trial
    request = ask_request(job, context, None, lease_s=lease_s, task_id=trains, part=part)
    backfill = str(getattr(context["dag_run"].run_type, "value", "")) == "backfill"
    mapped = context["ti"].map_index not in (None, -1)
    overlap_possible = context["dag"].max_active_runs != 1 or backfill or mapped
    store, asked, _ = ask_watched(
        request, context, conn_id, config, overlap_possible=overlap_possible, trains_here=False
    )
    say_asked(asked, shared=part is None)
    inner = context["dag"].task_dict.get(trains)
    plan = plan_of(asked, config, signal=signal or followed(job, store), time_left_s=time_limit_s(inner))
    log.info("Zeus: batch size %d. %s", asked.trial.batch_size, visible(asked.trial.planned.why))
    context["ti"].xcom_push(key=DECISION, value=decision_xcom(asked.trial, store))
    key = asked.trial.key
    folder = f"{result_path.rstrip('/')}/{key.ti_id}-{key.attempt}" if result_path else None
    return plan, {"trial": trial_to_dict(asked.trial), "result_path": folder, "waited_since_s": waited_since_s}


@dataclass(frozen=True, slots=True)
class Training:
    """The task between setup and teardown, as the teardown task sees it."""

    context: Mapping[str, Any]  # of the teardown task
    setup_task_id: str
    trains: str | None  # task id of the operator that trains
    result_key: str
    conn_id: str
    report: Callable[..., None]  # :meth:`.ReportsCost.report_cost` of the teardown task

    def pull(self, task_id: str | None, key: str) -> Any:
        """Pull an XCom of the same instance of a mapped group."""
        ti = self.context["ti"]
        return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=ti.map_index)

    def states(self) -> set[str]:
        """States of the training's task by Airflow's API. Raises what that API raises."""
        ti = self.context["ti"]
        which = {"dag_id": ti.dag_id, "task_ids": [self.trains], "run_ids": [ti.run_id]}
        mapped = {} if ti.map_index in (None, -1) else {"map_index": ti.map_index}
        states = ti.get_task_states(**which, **mapped).get(ti.run_id, {})
        return {str(getattr(state, "value", state)) for state in states.values()}


def report_training(training: Training, *, decides_the_run: bool) -> None:
    """Collect the result and report to the store what the training cost.

    :param decides_the_run: whether Airflow takes this task's state for the run's. Only then it raises BelowTargetError,
        where the job requires its target and the model is below it, and AirflowException where the training failed.
        It raises nothing else.
    """
    try:
        kept, job = _collect(training)
    except Exception:
        log.exception("Zeus could not report the cost of this training; the trial stays open until its lease ends.")
        kept, job = None, None
    if not decides_the_run:
        return
    if kept is not None and job is not None and kept.state is State.EXHAUSTED and job.require_target:
        raise BelowTargetError.of(kept.batch_size, kept.reason, job.target)
    try:
        failed = not {"failed", "upstream_failed"}.isdisjoint(training.states())
    except Exception:
        log.exception("Zeus cannot ask Airflow whether the training, task %s, failed.", training.trains)
        failed = kept is None
    if failed:
        from airflow.exceptions import AirflowException  # type: ignore[attr-defined]

        raise AirflowException(f"The training, task {training.trains}, failed; see its log.")


def _collect(training: Training) -> tuple[ResultLine | None, ZeusJob]:
    """Report the lines of all starts; return (the end of the kept attempt, the job)."""
    config = ZeusConfig.read()
    handed_over = training.pull(training.setup_task_id, HANDED_OVER)
    plan = Plan.from_json(training.pull(training.setup_task_id, PLAN))
    first = trial_from_dict(handed_over["trial"])
    memory: Store | None = None
    if config.enabled == OFF:
        from airflow_provider_zeus.store.variables.store import memory_store

        memory = memory_store()
        memory.adopt(first)

    def reopen() -> Store:
        return memory or open_store(training.conn_id, create=False)

    def read(signal: str, start_s: float, end_s: float) -> Series | str | None:
        try:
            return read_signal(signal, start_s, end_s, reopen())
        except StoreError:
            return read_signal(signal, start_s, end_s, None)

    if memory is None:
        looks = RunAlerts(
            context=training.context,
            trial=first,
            stored=first.number > 0,
            reopen=reopen,
            state_dir=config.state_dir,
        )
        looks.after_task(decision=False)
    reporter = ResultReporter(
        None,
        AirflowVariables(),
        first,
        lease_s=config.lease_s,
        state_dir=config.state_dir,
        reopen=reopen,
        prices=HourPrices.of(first, plan.job, handed_over.get("waited_since_s"), read, live=False),
    )
    folder = handed_over["result_path"] or None
    starts = starts_in_folder(Path(folder)) if folder else []
    known = {start[0].start_id for start in starts}
    value = training.pull(training.trains, "return_value")
    starts += [start for start in starts_in_xcom(value, training.result_key) if start[0].start_id not in known]
    starts = not_told(starts, reopen, first) if starts else []
    reason, ended_well = (None, False) if starts else _why_no_result(training, folder, value)
    number = None if folder else newest_start(starts)
    report_all(starts, reporter, plan, starts_seen=number, no_start_reason=reason, ended_well=ended_well, folder=folder)
    log_remarks(reopen, first, kinds=(RemarkKind.DEVICE,))  # which was not known when the batch size was asked for
    training.report(training.context, reporter, reopen)
    return reporter.kept_end, plan.job


def not_told(starts: list[Start], reopen: Callable[[], Store], first: Trial) -> list[Start]:
    """The starts that no earlier trial of the run holds: clearing the setup task alone leaves the XCom as it was.

    Those that this trial's own task instance reported stay: clearing the teardown task alone reports them again.
    """
    try:
        trials = reopen().recurrence(first.origin.dag_id, first.origin.run_id)
    except StoreError:
        return starts
    told = {t.observation.start_id for t in trials if t.key.ti_id != first.key.ti_id} - {None}
    new = [start for start in starts if start[0].start_id not in told]
    if len(new) < len(starts):
        log.warning(
            "Zeus: a result that an earlier trial of this run holds is left out: the training did not run again."
        )
    return new


def _why_no_result(training: Training, folder: str | None, value: Any) -> tuple[str | None, bool]:
    """Log that a training left no result, and the remedy.

    Returns why it did not run, None where it did; and whether it ended well and left nothing that may be a result.
    """
    ended_well, counts = False, "its trial counts as failed"
    known = {"skipped": "the training was skipped", "upstream_failed": "the training did not run: what it needs failed"}
    with suppress(Exception):  # of Airflow's API: the reason is then less exact, nothing else
        states = training.states()
        reason = next((known[state] for state in states if state in known), None)
        if reason is not None:
            log.warning("Zeus: task %s left no result: %s. Its trial counts as failed.", training.trains, reason)
            return reason, False
        key, text = training.result_key, value if isinstance(value, str) else ""
        is_there = f'"{key}"' in text or (isinstance(value, Mapping) and key in value)  # written before, or damaged
        ended_well = states == {"success"} and not is_there and not (folder and os.path.lexists(folder))
        if ended_well:
            counts = "whether it reached its target is not known: no metric was reported"
    if folder is not None:
        found, remedy = f"there is none in {visible(folder)}", "mount the folder of result_path where it trains"
    else:
        got = "no XCom" if value is None else f"an XCom without the entry {training.result_key!r}"
        found, remedy = f"it left {got}", "let the task push the result as its XCom, or set result_path"
    log.warning(
        "Zeus: task %s left no result: %s. What it cost is not known, and %s. Check that the "
        'training runs under ZeusRun.from_env() and gets trial.env, and %s (docs/operators.md, "Any operator").',
        *(training.trains, found, counts, remedy),
    )
    return None, ended_well
