"""Runs the attempts of a plan one after the other, until one keeps its model."""

from __future__ import annotations

import gc
import logging
import random
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_zeus.errors import BelowTargetError, ReportError
from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.training.signals import AttemptOver, raise_again
from airflow_provider_zeus.training.swallowed import swallowing_except

if TYPE_CHECKING:
    from airflow_provider_zeus.training.attempt import LiveAttempt
    from airflow_provider_zeus.training.run import ZeusRun

log = logging.getLogger(__name__)
T = TypeVar("T")

_STEERS_AIRFLOW = (  # by name: no Airflow is imported where a training runs without one
    "AirflowSkipException",
    "AirflowFailException",
    "AirflowRescheduleException",
    "DagRunTriggerException",
    "DownstreamTasksSkipped",
    "TaskDeferred",
)
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|RESOURCE_EXHAUSTED|STATUS_ALLOC_FAILED", re.IGNORECASE)


def train(run: ZeusRun, fn: Callable[[], T]) -> T:
    """Call ``fn`` once per attempt and return the kept attempt's value.

    Raises what ``fn`` raises, TrainingKilled, and BelowTargetError when the job requires its target. After out of
    memory the next attempt runs, or what stands in for the last one. After any other error the next attempt runs where
    the one that raised was exploratory and the job is not ``strict``. A value returned in spite of ``AttemptOver`` is
    dropped.
    """
    for index in range(len(run.plan.in_order)):
        if index:
            clean_process(run.plan.seed + index)
        live = run.begin(index)
        log.info("Zeus attempt %d: batch size %d. %s", live.number, live.planned.batch_size, live.planned.why)
        kept, value = _one(run, live, fn)
        if kept:
            return value  # type: ignore[return-value]
    raise AssertionError("the last attempt of a plan is never followed")


def _one(run: ZeusRun, live: LiveAttempt, fn: Callable[[], T]) -> tuple[bool, T | None]:
    """(whether the model is kept, the function's value)."""
    try:
        value = fn()
    except BaseException as error:
        if run.forked or not _goes_on(run, live, error):
            raise
        forget(error)
        return False, None
    if run.forked:  # the parent's own call decides
        return True, value
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
        raise_again(run.killed)
    if live.signal is not None:
        say_swallowed(live.signal)
        _given_up(run, live)
        forget(live.signal)
        return False, None
    _keep(run, live)
    return True, value


def _goes_on(run: ZeusRun, live: LiveAttempt, error: BaseException) -> bool:
    """Write down how the function was left; whether the next attempt runs now."""
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
        if error is not run.killed:
            raise run.killed from error
        return False
    if isinstance(error, AttemptOver) and error is live.signal:
        _given_up(run, live)
        return True
    if live.signal is not None and isinstance(error, Exception):
        log.error("Zeus: this attempt was given up, and on its way out the function raised.", exc_info=error)
        _given_up(run, live)
        return True
    no_memory, index = out_of_memory(error), live.number - run.plan.first_attempt
    run.end(State.FAILED, in_words(error), out_of_memory=no_memory and index == 0)
    if run.ranks.several:  # the others wait for this one, for good
        return False
    size = live.planned.batch_size
    if no_memory and index + 1 < len(run.plan.in_order):
        log.warning("Zeus: batch size %d is out of memory here; the next attempt runs.", size)
        return True
    if run.plan.exploratory(index) and not run.job.strict and may_be_the_size(error):
        log.warning("Zeus: batch size %d failed and is given up; the next attempt runs.", size, exc_info=error)
        return True
    return False


def may_be_the_size(error: BaseException) -> bool:
    """Whether an error may be the batch size's doing: any ``Exception`` but those by which a task steers Airflow.

    A training that calls ``sys.exit`` with an error status has failed too.
    """
    if isinstance(error, SystemExit):
        return bool(error.code)
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] == "airflow"}
    return isinstance(error, Exception) and names.isdisjoint(_STEERS_AIRFLOW)


def _keep(run: ZeusRun, live: LiveAttempt) -> None:
    """Write down that this attempt's model is kept. Raises BelowTargetError where that is not enough.

    Raises ReportError where nothing was reported: nobody knows what the model is worth, and nothing could be learnt.
    """
    live.leave()
    if not live.epochs_done and not live.no_data:
        error = ReportError(
            f"the training function returned without one run.report({run.job.parsed_target.metric}=...). "
            "Call it at the end of each epoch, inside `for epoch in run.epochs():`."
        )
        run.end(State.FAILED, str(error))
        run.finish(kept=False)
        raise error
    state, reason = live.outcome
    run.end(state, reason)
    run.finish(kept=True)
    if state is State.CONVERGED:
        return
    log.warning("Zeus: the model of batch size %d is kept, but %s.", live.planned.batch_size, reason)
    if run.job.require_target and not live.reached and not live.no_data:
        raise BelowTargetError.of(live.planned.batch_size, reason, run.job.target)


def _given_up(run: ZeusRun, live: LiveAttempt) -> None:
    state, reason = live.outcome
    log.info("Zeus attempt %d (batch size %d) is given up: %s.", live.number, live.planned.batch_size, reason)
    run.end(state, reason)


def say_swallowed(signal: BaseException) -> None:
    """An error in the log that names the ``except`` because of which a signal of ours did not leave the function."""
    log.error(
        "Zeus: this attempt was given up, but %s swallowed it and the function went on. Its return value is "
        "dropped; what it saved is of a model that is not kept. Remedy: catch Exception, which AttemptOver is not.",
        swallowing_except(signal),
    )


def forget(error: BaseException | None) -> None:
    """Drop the frames that an exception and those before it hold, for whoever keeps it: the model is in them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        earlier = error.__cause__ or error.__context__
        for name in ("__traceback__", "__cause__", "__context__"):
            BaseException.__setattr__(error, name, None)  # an exception may be frozen
        error = earlier


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is exhausted, in the words of Python, torch, CUDA, JAX or TensorFlow."""
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    return isinstance(error, Exception) and _NO_MEMORY.search(in_words(error)) is not None


def in_words(error: BaseException) -> str:
    """Kind and text of an error, also where its own ``__str__`` fails."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}"[:500]


def clean_process(seed: int) -> None:
    """Free what an earlier attempt left and seed the generators that are in use, so that attempts do not correlate."""
    gc.collect()
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
