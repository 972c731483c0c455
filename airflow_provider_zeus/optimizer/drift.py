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
MISS = 4.0  # standard deviations that a run without its target counts for at most: it may have diverged by chance
CHANGES = 4  # newest changes remembered: what ran before them is forgotten altogether
SURPRISES = 8  # the change lies among so many newest surprises


class Surprise(NamedTuple):
    """A run against its prediction: trial number, log Epochs minus its mean, and the variance predicted.

    Of a run that did not reach its target the deviation is at least so much.
    """

    number: int
    deviation: float
    variance: float
    reached: bool

    @property
    def evidence(self) -> float:
        """The deviation as far as it tells of a change: one miss alone tells of none, two in a row do."""
        return self.deviation if self.reached else min(self.deviation, MISS * math.sqrt(self.variance))


class Change(NamedTuple):
    """Epochs jumped: trial number of the first run after it, its factor's logarithm, and by how many runs it told."""

    since: int
    jump: float
    told_by: tuple[int, ...]  # numbers of the trials that told it


def change_among(surprises: Sequence[Surprise]) -> Change | None:
    """The change that explains the newest of these surprises; None where chance explains them as well."""
    precision = total = jumped = 0.0
    newest = surprises[-SURPRISES:]
    if sum([s.deviation * s.deviation / s.variance for s in newest]) <= 2 * LOG_BAYES_FACTOR:
        return None  # what the newest of them explain together is half of that at most (Cauchy-Schwarz inequality)
    for runs, surprise in enumerate(reversed(newest), start=1):
        precision += 1.0 / surprise.variance
        total += surprise.evidence / surprise.variance
        jumped += surprise.deviation / surprise.variance
        spread = 1.0 + JUMP**2 * precision
        explained = 0.5 * total**2 * JUMP**2 / spread
        if explained > LOG_BAYES_FACTOR and explained - 0.5 * math.log(spread) > LOG_BAYES_FACTOR:
            numbers = tuple(s.number for s in newest[-runs:])
            return Change(surprise.number, jumped * JUMP**2 / spread, numbers)
    return None
