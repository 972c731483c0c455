"""Runs the attempts of a plan one after the other, until one keeps its model."""

from __future__ import annotations

import gc
import logging
import random
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_zeus.errors import BelowTargetError
from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.training.signals import AttemptOver, TrainingKilled
from airflow_provider_zeus.training.swallowed import swallowing_except

if TYPE_CHECKING:
    from airflow_provider_zeus.training.attempt import LiveAttempt
    from airflow_provider_zeus.training.run import ZeusRun

log = logging.getLogger(__name__)
T = TypeVar("T")


def train(run: ZeusRun, fn: Callable[[], T]) -> T:
    """Call ``fn`` once per attempt and return the kept attempt's value.

    Raises what ``fn`` raises, TrainingKilled, and BelowTargetError when the job requires its target. After out of
    memory in the first attempt the next one runs; a value returned in spite of ``AttemptOver`` is dropped.
    """
    for index in range(len(run.plan.attempts)):
        if index:
            clean_process(run.plan.seed + index)
        live = run.begin(index)
        log.info("Zeus attempt %d: batch size %d. %s", live.number, live.planned.batch_size, live.planned.why)
        kept, value = _one(run, live, fn)
        if kept:
            return value  # type: ignore[return-value]
    raise RuntimeError("the plan's last attempt was given up")  # pragma: no cover  the last one has no bound


def _one(run: ZeusRun, live: LiveAttempt, fn: Callable[[], T]) -> tuple[bool, T | None]:
    """(whether the model is kept, the function's value)."""
    try:
        value = fn()
    except AttemptOver as over:
        _given_up(run, live, over)
        return False, None
    except TrainingKilled as killed:
        run.end(State.FAILED, f"killed: {killed}")
        raise
    except Exception as error:
        return _failed(run, live, error)
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
        raise run.killed
    if live.signal is not None:
        log.error(
            "Zeus: this attempt was given up, but %s swallowed it and the function went on. Its return value is "
            "dropped; what it saved is of a model that is not kept. Remedy: catch Exception, which AttemptOver is not.",
            swallowing_except(live.signal),
        )
        _given_up(run, live, live.signal)
        return False, None
    state, reason = live.outcome
    run.end(state, reason)
    run.finish(kept=True)
    if state is not State.CONVERGED and run.job.require_target:
        raise BelowTargetError(
            f"The model of batch size {live.planned.batch_size} is kept, but {reason} ({run.job.target}). "
            f"Remedy: a larger max_epochs, a nearer target, or require_target=False to accept it."
        )
    return True, value


def _given_up(run: ZeusRun, live: LiveAttempt, signal: BaseException) -> None:
    state, reason = live.outcome
    log.info("Zeus attempt %d (batch size %d) is given up: %s.", live.number, live.planned.batch_size, reason)
    run.end(state, reason)
    traceback.clear_frames(signal.__traceback__)  # the frames hold the model and its optimizer


def _failed(run: ZeusRun, live: LiveAttempt, error: Exception) -> tuple[bool, None]:
    """Out of memory in an attempt that another follows: go on. Anything else: written down, and raised."""
    memory = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    first = live.number == run.plan.first_attempt
    reason = f"{type(error).__name__}: {error}"[:500]
    run.end(State.FAILED, reason, out_of_memory=memory and first)
    if not (memory and not live.last):
        run.finish(kept=False)
        raise error
    log.warning("Zeus: batch size %d is out of memory here; the next attempt runs.", live.planned.batch_size)
    traceback.clear_frames(error.__traceback__)
    return False, None


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
