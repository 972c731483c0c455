"""Change detection over recurrences: have Epochs(b) jumped, for all batch sizes alike?

Each run of a batch size that is known well is compared with what was predicted for it. When a common jump explains the
newest of these surprises better than chance, by a log Bayes factor (Basseville & Nikiforov, *Detection of Abrupt
Changes*, chapter 2: a generalised likelihood ratio over the time of the change), older runs count no longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

JUMP = 0.7  # sd of a jump of log Epochs, where there is one
LOG_BAYES_FACTOR = 10.0  # evidence needed to believe in one
SURPRISES = 8  # the change lies among so many newest surprises


class Surprise(NamedTuple):
    """A run against its prediction: trial number, log Epochs minus its mean, and the variance predicted."""

    number: int
    deviation: float
    variance: float


def change_at(surprises: Sequence[Surprise]) -> int | None:
    """Number of the first trial after a change; None where chance explains the surprises as well."""
    precision = total = 0.0
    for surprise in reversed(surprises[-SURPRISES:]):
        precision += 1.0 / surprise.variance
        total += surprise.deviation / surprise.variance
        spread = 1.0 + JUMP**2 * precision
        if 0.5 * total**2 * JUMP**2 / spread - 0.5 * math.log(spread) > LOG_BAYES_FACTOR:
            return surprise.number
    return None
