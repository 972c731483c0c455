"""How a loop over ``run.epochs()`` ends where no ``run.train(fn)`` is around it, and how a process leaves a plan."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.training.attempts import in_words, out_of_memory

if TYPE_CHECKING:
    from airflow_provider_zeus.training.attempt import LiveAttempt
    from airflow_provider_zeus.training.run import ZeusRun

_SKIPPED = "epochs() outside of run.train(fn) keeps what it trains, so it runs the best known batch size"

log = logging.getLogger(__name__)


class Epochs:
    """Iterator over epochs; not a generator, so that a swallowed signal is raised again at the next epoch."""

    def __init__(self, following: Callable[[], int]) -> None:
        self._following = following

    def __iter__(self) -> Epochs:
        return self

    def __next__(self) -> int:
        return self._following()


def skip(run: ZeusRun, count: int) -> None:
    """Write down that the plan's first ``count`` attempts do not run."""
    for index, planned in enumerate(run.plan.attempts[:count]):
        log.warning("Zeus: batch size %d is not tried: %s.", planned.batch_size, _SKIPPED)
        run.never_ran(index, f"not run: {_SKIPPED}")


def write_down(run: ZeusRun, live: LiveAttempt | None, *, alone: bool, error_before: BaseException | None) -> None:
    """The process leaves an attempt that did not end. One left right after a report stopped early: its model is kept.

    :param live: the attempt, None where none began.
    :param alone: no ``train()`` is around the loop.
    :param error_before: what ``sys.last_value`` was when the run began: of an earlier cell of a notebook, say.
    """
    error, kept = getattr(sys, "last_value", None), False
    if error is error_before:
        error = None
    if live is None:
        run.never_ran(0, "the process ended before it began to train")
    elif not live.ended:
        stopped = error or live.signal or run.killed  # a signal that was swallowed is none the less its end
        kept = alone and live.left_after_report and stopped is None
        reason = in_words(error) if error else "the process left the loop before its end"
        over = kept or live.signal is not None
        no_memory = error is not None and out_of_memory(error) and live.number == run.plan.first_attempt
        run.end(*(live.outcome if over else (State.FAILED, reason)), out_of_memory=no_memory)
    run.finish(kept=kept)
