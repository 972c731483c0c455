"""Ask the store for a batch size within a time limit; a run without an answer trains the default
one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.errors import StoreError, UndefinedConnectionError, ZeusError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, State, Trial, TrialKey
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.optimizer.policy import fallback
from airflow_provider_zeus.patience import bounded, outlived, retried
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.job_remarks import NEWEST, RemarkKind, earlier_rate, remarks
from airflow_provider_zeus.store.base import AskAnswer, AskRequest
from airflow_provider_zeus.store.live_settings import read_settings
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, SETTINGS_S, open_store
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.switch import OFF

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = guarded_log(__name__)

# It gets a function that opens the store, since a run without an answer has no open one.
Watch = Callable[[AskAnswer, Callable[[], "Store"]], None]


class Asked(NamedTuple):
    """The store, its answer, and a function that opens the store later. No store: it has failed.

    ``newest``: as :func:`newest_trials` of the run.
    """

    store: Store | None
    answer: AskAnswer
    reopen: Callable[[], Store]
    newest: Sequence[Trial] = ()


def ask(
    request: AskRequest, conn_id: str, config: ZeusConfig, *, overlap_possible: bool, watch: Watch
) -> Asked:
    """Ask the store for a batch size.

    If the store cannot be asked, the store is None and the answer holds the default batch size;
    for a ``strict`` job StoreError is raised instead. If Zeus is switched off no store is asked
    and nothing outlives the run. The function that opens the store later raises StoreError while it
    cannot be opened. It creates no log: the run would be split over two.

    :param watch: looks for events at the decision, also of a ``strict`` job without its store. Not
        called if Zeus is switched off.
    """
    if config.enabled == OFF:
        # a run that is switched off leaves no row: its store ends with the process
        from airflow_provider_zeus.store.variables.store import memory_store

        memory = memory_store()
        return Asked(memory, memory.ask(request), lambda: memory)

    def opened() -> Store:
        store = open_store(conn_id, overlap_possible=overlap_possible)
        # costs that earlier runs kept come first: the decision then learns from them
        drain_for_a_while(
            store,
            AirflowVariables(),
            request.job_id,
            config.state_dir,
            with_outside=conn_id == DEFAULT_CONN_ID,
        )
        return store

    # a thread that was given up may still get its answer, and write a row
    over = threading.Event()

    def reopen() -> Store:
        if not over.is_set():  # else a late answer would write a second row
            raise StoreError("The request of this run is still under way.")
        return open_store(conn_id, create=False, overlap_possible=overlap_possible)

    try:
        store, answer = answered(request, opened, over)
    except Exception as error:
        asked = _without_store(request, error, reopen, watch)
    else:
        newest = newest_trials(lambda: store, answer.trial)
        log_remarks(newest, answer.trial, request.device)
        asked = Asked(store, answer, reopen, newest)
        # the answer stands, whatever fails from here on: its row plans this size
        with outlived("read the learning rate of the run before"):
            rate = earlier_rate(newest, answer.trial)
            asked = asked._replace(answer=replace(answer, earlier_rate=rate))
    watch(asked.answer, asked.reopen)
    return asked


def _without_store(
    request: AskRequest, error: Exception, reopen: Callable[[], Store], watch: Watch
) -> Asked:
    """Log why the default batch size runs, and return it.

    Raises the error of a ``strict`` job, and any of the job or a setting.
    """
    if isinstance(error, StoreError):
        failure = error
    elif request.job.strict or isinstance(error, ZeusError):
        # it would be as wrong in the next run: its author has to hear of it
        raise error
    else:
        failure = StoreError(f"It failed ({type(error).__name__}).")
    answer = AskAnswer(trial=default_trial(request, failure))
    if request.job.strict:
        # the job fails without its store, and its users hear of it all the same
        watch(answer, reopen)
        raise error
    does = "begins all the same"
    if request.job.chooses_size:
        does = f"trains at the default batch size {request.job.default_batch_size}"
    log.error(
        "Zeus has no store: %s This run %s; its cost is kept and stored later.",
        failure,
        does,
        exc_info=failure is not error,
    )
    return Asked(None, answer, reopen)


def newest_trials(opened: Callable[[], Store], trial: Trial) -> list[Trial]:
    """The newest trials of a job up to those of this run; none if they cannot be read.

    Raises nothing.

    :param opened: opens the store, or raises StoreError.
    :param trial: a trial of the run.
    """
    last = NEWEST
    if trial.batch_size is None:
        # Without a batch size only remarks on tasks are left, which few trials show.
        last = 4
    try:
        newest = bounded(lambda: opened().trials(trial.job_id, last=last), 3.0)
    except Exception:
        log.debug(
            "Zeus could not read the newest runs of %s.", visible(trial.job_id), exc_info=True
        )
        return []
    own = [other.number for other in newest if other.key.ti_id == trial.key.ti_id]
    # A run that began later would pass for an earlier one in remarks and rates.
    last_own = max(own, default=0)
    return [other for other in newest if other.number <= last_own]


def log_remarks(
    newest: Sequence[Trial],
    trial: Trial,
    device: DeviceInfo | None = None,
    kinds: Collection[RemarkKind] = tuple(RemarkKind),
) -> None:
    """Log the remarks on the job of this run of a task: two jobs under one id, a new target, a new
    device.

    :param newest: :func:`newest_trials` of the run.
    :param trial: a trial of the run.
    :param device: that the run trains on, while the log does not hold it.
    """
    own = {other.number for other in newest if other.key.ti_id == trial.key.ti_id}
    place = None if device is None else device.where
    with outlived("tell what this run shows of its job"):
        for remark in remarks(newest, device=place, reader=trial.origin.dag_id):
            if remark.number not in own or remark.kind not in kinds:
                continue
            level = logging.WARNING if remark.is_warning else logging.INFO
            log.log(level, "Zeus: %s", visible(remark.text))


def log_unmeasured(newest: Sequence[Trial], trial: Trial, device: Device) -> None:
    """Log that nothing measures energy here: at length if the newest run did not say the same.

    :param newest: :func:`newest_trials` of this run.
    :param trial: of this run.
    :param device: that this run trains on.
    """
    if device.info.energy_source is not None:
        return
    why = device.missing.get("energy_j", "no source of energy.")
    before = [other.observation for other in newest if other.recurrence != trial.recurrence]
    observations = [observation for observation in before if observation.where is not None]
    if observations:
        # the same remark at each run would hide others in the log
        newest_run = observations[-1]
        is_same_device = newest_run.where == device.info.where
        if is_same_device and newest_run.reasons.get("energy_j") == truncated(why):
            log.info("Zeus tunes the batch size on time alone, as in the run before.")
            return
    log.warning("Zeus tunes the batch size on time alone: %s", why)


def answered(
    request: AskRequest, opened: Callable[[], Store], over: threading.Event, most_s: float = 20.0
) -> tuple[Store, AskAnswer]:
    """Ask one question in a thread, so that a store that hangs does not hang the task; return the
    store and its answer.

    Errors that may pass, a lock or a lost connection, are retried. The store answers the same
    question with the same trial, so a retry after a lost answer leaves no second trial open. A
    trial that arrives after the time limit is closed as abandoned. A ``strict`` job cannot run
    without an answer, so it waits as long as a call takes.

    Raises StoreError, also when there is no answer after ``most_s`` seconds.

    :param opened: opens the store, or raises StoreError.
    :param over: is set when the thread has finished. Until then its answer may still write a row
        for this run.
    """
    too_late = threading.Event()

    def once() -> tuple[Store, AskAnswer]:
        if too_late.is_set():
            raise StoreError("The time limit of the request has passed.")
        store = opened()
        asked = store.ask(request)
        # the task no longer listens, and the row would count as running until its lease
        # ends
        if too_late.is_set():
            report = Report(observation=Observation())
            store.tell(asked.trial.key, State.ABANDONED, report, reason="answered too late")
        return store, asked

    def call() -> tuple[Store, AskAnswer]:
        try:
            return retried(once, most_s)
        finally:
            over.set()

    try:
        return bounded(call, None if request.job.strict else most_s)
    except TimeoutError:
        text = f"The store has not answered for {most_s:g} s."
        raise StoreError(text, unsure=True) from None
    finally:
        too_late.set()


def drain_for_a_while(
    store: Store,
    port: AirflowVariables,
    job_id: str,
    state_dir: Path,
    most_s: float = 5.0,
    *,
    with_outside: bool = False,
) -> None:
    """Store the costs that earlier runs of a job kept; after ``most_s`` seconds that continues in
    the background.

    :param with_outside: also those of tasks that were measured from outside.
    """
    call = partial(drain, store, port, job_id, state_dir=state_dir, with_outside=with_outside)
    try:
        bounded(call, most_s)
    except TimeoutError as error:
        log.warning(
            "Zeus no longer waits to store costs of %s that earlier runs kept: %s.",
            visible(job_id),
            error,
        )


def default_trial(request: AskRequest, error: StoreError) -> Trial:
    """The trial of a run whose store could not be asked: the default batch size, and no number
    yet.
    """
    job = request.job
    settings = read_settings(
        lambda name: bounded(lambda: AirflowVariables().get(name), SETTINGS_S),
        request.job_id,
        job.batch_sizes,
    )
    if settings:
        # A person may have set another job version, to which the result has to belong.
        job = job.with_settings(settings)
    why = "The store could not be asked."
    # Pages show the reason: other errors' texts may name an address, this one's does not.
    if isinstance(error, UndefinedConnectionError):
        why = str(error)
    if job.chooses_size:
        why += f" This run takes {job.default_batch_size}, the default."
    decision = fallback(job, why=why, finish_by_s=request.finish_by_s)
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
