"""Ask the store for a batch size within a time limit; a run without an answer trains the default one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_zeus.errors import StoreError, UndefinedConnectionError, ZeusError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, State, Trial, TrialKey
from airflow_provider_zeus.operators.config import OFF, ZeusConfig
from airflow_provider_zeus.optimizer.policy import fallback
from airflow_provider_zeus.patience import bounded, retried
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.job_remarks import NEWEST, RemarkKind, remarks
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, Report
from airflow_provider_zeus.store.live_settings import read_settings
from airflow_provider_zeus.store.open import SETTINGS_S, open_store
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = guarded_log(__name__)


def ask(
    request: AskRequest, conn_id: str, config: ZeusConfig, *, overlap_possible: bool
) -> tuple[Store | None, AskAnswer, Callable[[], Store]]:
    """Return the store, its answer, and a function that opens the store later.

    Where the store cannot be asked, the store is None and the answer holds the default batch size; for a ``strict``
    job StoreError is raised instead. Where Zeus is switched off no store is asked and nothing outlives the run. The
    function raises StoreError while the store cannot be opened. It creates no log: the run would be split over two.
    """

    if config.enabled == OFF:
        from airflow_provider_zeus.store.variables.store import memory_store

        memory = memory_store()
        return memory, memory.ask(request), lambda: memory

    def opened() -> Store:
        store = open_store(conn_id, overlap_possible=overlap_possible)
        drain_for_a_while(store, AirflowVariables(), request.job_id, config.state_dir)
        return store

    over = threading.Event()

    def reopen() -> Store:
        if not over.is_set():  # else the answer could write a second row
            raise StoreError("The request of this run is still under way.")
        return open_store(conn_id, create=False, overlap_possible=overlap_possible)

    try:
        store, answer = answered(request, opened, over)
        log_remarks(lambda: store, answer.trial, request.device)
        return store, answer, reopen
    except Exception as failed:
        if request.job.strict or (isinstance(failed, ZeusError) and not isinstance(failed, StoreError)):
            raise
        error = failed if isinstance(failed, StoreError) else StoreError(f"It failed ({type(failed).__name__}).")
        default = f"trains at the default batch size {request.job.default_batch_size}"
        log.error(
            "Zeus has no store: %s This run %s; its cost is kept and stored later.",
            error,
            default if request.job.chooses_size else "begins all the same",
            exc_info=error is not failed,
        )
        return None, AskAnswer(trial=default_trial(request, error)), reopen


def log_remarks(
    opened: Callable[[], Store],
    trial: Trial,
    device: DeviceInfo | None = None,
    kinds: Collection[RemarkKind] = tuple(RemarkKind),
) -> None:
    """Log what this run of a task shows of its job: two jobs under one id, a new target, a new device. Raises nothing.

    :param opened: opens the store, or raises StoreError.
    :param trial: a trial of the run.
    :param device: that the run trains on, while the log does not hold it.
    """
    few = 4  # of a task without a batch size: what they show is of their tasks alone
    last = few if trial.batch_size is None else NEWEST
    try:
        newest = bounded(lambda: opened().trials(trial.job_id, last=last), 3.0)
        own = {t.number for t in newest if t.key.ti_id == trial.key.ti_id}
        known = [t for t in newest if t.number <= max(own, default=0)]
        found = remarks(known, device=device.where if device else None, reader=trial.origin.dag_id)
    except Exception:
        log.debug("Zeus could not read the newest trials of %s.", visible(trial.job_id), exc_info=True)
        return
    for remark in found:
        if remark.number in own and remark.kind in kinds:
            log.log(logging.WARNING if remark.is_warning else logging.INFO, "Zeus: %s", visible(remark.text))


def answered(
    request: AskRequest, opened: Callable[[], Store], over: threading.Event, most_s: float = 20.0
) -> tuple[Store, AskAnswer]:
    """Ask one question in a thread, so that a store that hangs does not hang the task; return the store and its answer.

    Errors that may pass, a lock or a lost connection, are retried. The store answers the same question with the same
    trial, so a retry after a lost answer leaves no second trial open. A trial that arrives after the time limit is
    closed as abandoned. A ``strict`` job cannot run without an answer, so it waits as long as a call takes.

    Raises StoreError, also when there is no answer after ``most_s`` seconds.

    :param opened: opens the store, or raises StoreError.
    :param over: is set when the thread has finished. Until then its answer may still write a row for this run.
    """
    too_late = threading.Event()

    def once() -> tuple[Store, AskAnswer]:
        if too_late.is_set():
            raise StoreError("The time limit of the request has passed.")
        store = opened()
        asked = store.ask(request)
        if too_late.is_set():
            store.tell(asked.trial.key, State.ABANDONED, Report(observation=Observation()), reason="answered too late")
        return store, asked

    def call() -> tuple[Store, AskAnswer]:
        try:
            return retried(once, most_s)
        finally:
            over.set()

    try:
        return bounded(call, None if request.job.strict else most_s)
    except TimeoutError:
        raise StoreError(f"The store has not answered for {most_s:g} s.") from None
    finally:
        too_late.set()


def drain_for_a_while(store: Store, port: AirflowVariables, job_id: str, state_dir: Path, most_s: float = 5.0) -> None:
    """Store the costs that earlier runs of a job kept; after ``most_s`` seconds that continues in the background."""
    try:
        bounded(partial(drain, store, port, job_id, state_dir=state_dir), most_s)
    except TimeoutError as error:
        log.warning("Zeus no longer waits to store costs of %s that earlier runs kept: %s.", visible(job_id), error)


def default_trial(request: AskRequest, error: StoreError) -> Trial:
    """The trial of a run whose store could not be asked: the default batch size, and no number yet."""
    reason = str(error) if isinstance(error, UndefinedConnectionError) else "The store could not be asked."
    live = (
        read_settings(
            lambda name: bounded(lambda: AirflowVariables().get(name), SETTINGS_S),
            request.job_id,
            request.job.batch_sizes,
        )
        or {}
    )
    job = request.job.with_settings(live)  # the job version that the result will belong to
    takes = f" This run takes {job.default_batch_size}, the default." if job.chooses_size else ""
    decision = fallback(job, why=f"{reason}{takes}", finish_by_s=request.finish_by_s)
    return Trial(
        job_id=request.job_id,
        number=0,
        key=TrialKey(request.ti_id),
        origin=request.origin,
        spec=job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
    )
