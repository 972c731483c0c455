"""Strikes: a batch size that raised an error is not tried for a while. Standard library only.

Where another attempt of the same decision follows, an attempt may fail and the recurrence still ends with a model. Such
a failure is a strike against its batch size: code that divides by it, a metric that is not a number. Where the
following attempt raises an error too, the batch size is not the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_zeus.model.trial import State, Trial

STRUCK_FOR = 10  # recurrences for which a struck size is not tried
FAILURES_KEPT = 32  # more than ten recurrences have, unless many fail at once


class Failure(NamedTuple):
    """An attempt that raised an error; ``followed``: another attempt of its decision was to run after it."""

    number: int
    batch_size: int
    ti_id: str
    attempt: int
    followed: bool


def failure_of(trial: Trial) -> Failure | None:
    """The failure of a trial that raised an error; None for other ends and for out of memory."""
    if trial.state is not State.FAILED or trial.observation.out_of_memory:
        return None
    followed = trial.batch_size in [planned.batch_size for planned in trial.decision.attempts[:-1]]
    return Failure(trial.number, trial.batch_size, trial.key.ti_id, trial.key.attempt, followed)


def struck(failures: Sequence[Failure], started: Sequence[int]) -> frozenset[int]:
    """Batch sizes that may not be tried now.

    :param started: first trials of the newest :data:`STRUCK_FOR` recurrences, ascending.
    """
    since = started[0] if len(started) >= STRUCK_FOR else 0
    failed = {(f.ti_id, f.attempt) for f in failures}
    return frozenset(
        f.batch_size for f in failures if f.followed and f.number >= since and (f.ti_id, f.attempt + 1) not in failed
    )
