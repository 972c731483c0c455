"""Strikes: a batch size whose try raised an error is left alone for a while. Standard library only.

An attempt that another one of its decision follows may fail by itself, and the recurrence still ends with a model. Such
a failure strikes its batch size: an error of code that divides by it, a metric that is no number. Where the attempt
after it raised an error too, the fault is not the size's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_zeus.optimizer.trial import State, Trial

STRUCK_FOR = 10  # recurrences that a struck size is not tried
FAILURES_KEPT = 32  # more than ten recurrences bring, unless many fail at once


class Failure(NamedTuple):
    """An attempt that raised an error; ``followed``: another attempt of its decision was to run after it."""

    number: int
    batch_size: int
    ti_id: str
    attempt: int
    followed: bool


def failure_of(trial: Trial) -> Failure | None:
    """The failure that a trial is; None of any other end, running out of memory included."""
    if trial.state is not State.FAILED or trial.observation.out_of_memory:
        return None
    followed = trial.batch_size in [planned.batch_size for planned in trial.decision.attempts[:-1]]
    return Failure(trial.number, trial.batch_size, trial.key.ti_id, trial.key.attempt, followed)


def struck(failures: Sequence[Failure], started: Sequence[int]) -> frozenset[int]:
    """Batch sizes that may not be tried now.

    :param started: numbers of the newest :data:`STRUCK_FOR` first attempts, ascending.
    """
    since = started[0] if len(started) >= STRUCK_FOR else 0
    failed = {(f.ti_id, f.attempt) for f in failures}
    return frozenset(
        f.batch_size for f in failures if f.followed and f.number >= since and (f.ti_id, f.attempt + 1) not in failed
    )
