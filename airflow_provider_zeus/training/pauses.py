"""Pauses that a training finds in itself: a container that was frozen, a file system that stalled.
Pure.

An epoch that takes far longer than those before it was paused: its excess over a usual one says
nothing of its batch size. Its time and energy stay in the log; the rates that the policy learns
leave them out.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from airflow_provider_zeus.model.groups import known_values, of_all
from airflow_provider_zeus.power.meter import difference

KNOWN = 3  # with fewer epochs nothing says what is usual
TIMES_AS_LONG = 3.0  # epochs differ, and a pause, as of a laptop, lasts far longer
LEAST_S = 1.0  # short epochs vary by more than they last [s]
# Two long epochs that differ by less than this factor are of the training itself: it validates
# now and then.
ALIKE = 2.0
REMEMBERED = 15  # a training may become slower for good


class EpochSpent(NamedTuple):
    """Time [s] and energy [J] of one epoch; ``rest_*``: the part outside its training steps.

    None: not known.
    """

    time_s: float
    energy_j: float | None
    rest_s: float
    rest_j: float | None

    def plus(self, other: EpochSpent) -> EpochSpent:
        """The sum of both."""
        return EpochSpent._make(of_all(sum, pair) for pair in zip(self, other, strict=True))

    def minus(self, other: EpochSpent) -> EpochSpent:
        """The difference, figure by figure."""
        return EpochSpent._make(map(difference, self, other))


NO_PAUSE = EpochSpent(0.0, 0.0, 0.0, rest_j=0.0)


def pause_of(epoch: EpochSpent, before: Collection[EpochSpent]) -> EpochSpent | None:
    """The excess of the epoch over a usual one; None if it was not paused, or too few epochs came
    before it.
    """
    if len(before) < KNOWN:
        return None
    usual_s = statistics.median(e.time_s for e in before)
    pause_s = epoch.time_s - usual_s
    if pause_s < LEAST_S or epoch.time_s < TIMES_AS_LONG * usual_s:
        return None
    usual_rest_s = statistics.median(e.rest_s for e in before)
    return EpochSpent(
        time_s=pause_s,
        energy_j=_beyond(epoch.energy_j, [e.energy_j for e in before]),
        rest_s=min(max(epoch.rest_s - usual_rest_s, 0.0), pause_s),
        rest_j=_beyond(epoch.rest_j, [e.rest_j for e in before]),
    )


class Pauses:
    """The pauses of one attempt, found as its epochs end."""

    def __init__(self) -> None:
        self._usual: deque[EpochSpent] = deque(maxlen=REMEMBERED)
        self._found: list[EpochSpent] = []

    def end_epoch(self, epoch: EpochSpent) -> None:
        """Take one more epoch."""
        pause = pause_of(epoch, self._usual)
        if pause is None:
            self._usual.append(epoch)
            return
        alike = [p for p in self._found if pause.time_s / ALIKE < p.time_s < ALIKE * pause.time_s]
        if alike:  # no two pauses are alike by chance: such epochs belong to this training
            self._found = [p for p in self._found if p not in alike]
            self._usual.append(epoch)
        else:
            self._found.append(pause)

    def total(self, present: EpochSpent) -> EpochSpent:
        """The sum of all pauses, with that of the present epoch, which has not ended."""
        own = pause_of(present, self._usual)
        total = NO_PAUSE if own is None else own
        for pause in self._found:
            total = total.plus(pause)
        return total


def _beyond(energy_j: float | None, before: list[float | None]) -> float | None:
    values = known_values(before)
    if energy_j is None or len(values) < len(before):
        return None
    return max(energy_j - statistics.median(values), 0.0)
