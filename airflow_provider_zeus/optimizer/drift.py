"""Drift: have the data changed, so that every batch size needs more or fewer epochs, by one factor?

Each run of a batch size that is known well is compared with its prediction. When a common factor explains the newest
deviations better than chance, by a log Bayes factor (Basseville & Nikiforov, *Detection of Abrupt Changes*, chapter 2:
a generalised likelihood ratio over the time of the change), older runs count less, the larger the change was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

JUMP = 0.7  # prior standard deviation of a change of log Epochs
LOG_BAYES_FACTOR = 10.0  # evidence that a change needs
MOST_SDS = 4.0  # most standard deviations that one surprise counts for: a single run may be an accident
SURPRISES = 8  # newest surprises among which a change is looked for


class Surprise(NamedTuple):
    """A run against its prediction: trial number, log Epochs minus the predicted mean, and the predicted variance.

    Of a run that did not reach its target the deviation is a lower bound.
    Eq. KG-33 of docs/knowledge-gradient.md.
    """

    number: int
    deviation: float
    variance: float
    reached: bool

    @property
    def evidence(self) -> float:
        """The deviation as evidence of a change: one surprise alone is not enough, two in a row are."""
        most = MOST_SDS * math.sqrt(self.variance)
        return max(-most, min(self.deviation, most))


class Change(NamedTuple):
    """A drift of the data, seen as a change of Epochs: number of the first trial after it, logarithm of its factor."""

    since: int
    jump: float
    shown_by: tuple[int, ...]  # numbers of the trials that showed it


def change_among(surprises: Sequence[Surprise]) -> Change | None:
    """The change that explains the newest of these surprises; None where chance explains them as well.

    Eq. KG-34 of docs/knowledge-gradient.md.
    """
    precision = total = jumped = 0.0
    newest = surprises[-SURPRISES:]
    if sum([s.deviation * s.deviation / s.variance for s in newest]) <= 2 * LOG_BAYES_FACTOR:
        return None  # the evidence below is at most half of that sum (Cauchy-Schwarz inequality)
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
