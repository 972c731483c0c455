"""The choices of a run by a forecast of a signal: when it starts, and which power limit is the best
while it trains. Pure.

A published value counts. Without one the mean of the last seven days at the same time of day stands
in. A start waits only if the forecast saving is at least :data:`WORTH`. If a signal has any fault,
the run starts at once and says why.

The limit follows the present price or carbon intensity: fast while energy is clean, frugal while
not. Chase (Zeus's authors) weighs the energy term of Eq. 7 by the present over the mean intensity.
The profile that the run has anyway is enough; nothing is measured again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.signals.series import Series, Step

WORTH = 0.05  # a forecast errs: a smaller saving may be none
DAY_S = 86_400.0
# A plan travels in one variable of the environment, which has to stay small: it holds so much of
# the series, and a longer run then trains as without a signal.
AHEAD_S = 2 * DAY_S
LEAST_STEP_S = 300.0  # a signal of very short steps would take minutes to plan

WAITS = "waits"
NOW_IS_BEST = "now is cheapest"
NOT_WORTH_IT = "waiting saves too little"
NO_VALUES = "no value for now"
NO_FORECAST = "no forecast for later"
TOO_LATE = "the latest start has come"


@dataclass(frozen=True, slots=True)
class Start:
    """When to start [s since the epoch], and the expected saving against starting at once.

    Means are those of the series over the run, in its unit; None: not known. ``reason``: one of the
    constants above.
    """

    at_s: float
    reason: str
    mean_at_once: float | None = None
    mean_then: float | None = None

    @property
    def saving(self) -> float:
        """Difference of the means, in the unit of the series; 0 if nothing is waited for."""
        if self.mean_at_once is None or self.mean_then is None:
            return 0.0
        return self.mean_at_once - self.mean_then


def plan_start(
    published: Series,
    past: Series,
    *,
    now_s: float,
    latest_s: float,
    duration_s: float,
    worth: float = WORTH,
) -> Start:
    """Choose the start of a run that takes ``duration_s``, from ``now_s`` to ``latest_s``.

    :param published: values of the future, as far as there are any, of the same unit as ``past``.
    :param past: values of at least the last three days.
    :param worth: least share of the mean that waiting has to save; it is compared by difference, so
        that prices at or below 0 are no special case.
    """
    longest_s = 7 * DAY_S  # a forecast repeats after a week, so a later start tells nothing new
    latest_s = min(latest_s, now_s + longest_s)
    duration_s = min(max(duration_s, 1.0), longest_s)
    # The wait is over, whatever a forecast says: the run must not wait for ever.
    if latest_s <= now_s:
        return Start(now_s, TOO_LATE)
    expected = forecast(published, past, now_s=now_s, until_s=latest_s + duration_s)
    # Against a start at once: waiting has to pay by itself.
    at_once = expected.mean(now_s, now_s + duration_s)
    if at_once is None:
        return Start(now_s, NO_VALUES)
    # The mean over a run changes only where a step begins or ends, so these starts are enough.
    starts_s = candidates(expected, now_s, latest_s, duration_s)
    all_means = [(start_s, expected.mean(start_s, start_s + duration_s)) for start_s in starts_s]
    means = {start_s: mean for start_s, mean in all_means if mean is not None}
    if not means:
        return Start(now_s, NO_FORECAST, at_once, mean_then=at_once)
    lowest = min(means.values())
    # A later start at the same price only makes the model older.
    if lowest >= at_once:
        return Start(now_s, NOW_IS_BEST, at_once, mean_then=at_once)
    # A price near 0 at once would make any saving look large: the usual price counts, too.
    scale = max(abs(at_once), fmean(abs(mean) for mean in means.values()))
    if at_once - lowest < worth * scale:
        return Start(now_s, NOT_WORTH_IT, at_once, mean_then=at_once)
    # Sums of equal steps differ in their last digits. Of equally cheap starts the first one counts.
    cheapest = [s for s, mean in means.items() if math.isclose(mean, lowest, abs_tol=1e-12)]
    return Start(cheapest[0], WAITS, at_once, mean_then=lowest)


def candidates(expected: Series, now_s: float, latest_s: float, duration_s: float) -> list[float]:
    """The starts after now of which one is the cheapest.

    A run begins or ends with a step in each of them, but for the latest one. If steps are very
    short, there are at most 1,000 of each kind, for example one every ten minutes of a week.
    """
    # Prices of each minute over a week would be 10,000 starts, each with a mean of its own.
    least_s = (latest_s - now_s) / 1_000

    def thinned(edges: Iterable[float]) -> list[float]:
        starts: list[float] = []
        next_s = now_s
        for at_s in edges:
            if now_s < at_s < latest_s and at_s >= next_s:
                starts.append(at_s)
                next_s = at_s + least_s
        return starts

    later = [step for step in expected.steps if step.start_s > now_s]
    begins = thinned(step.start_s for step in later)
    ends = thinned(step.end_s - duration_s for step in later)
    return [*sorted({*begins, *ends}), latest_s]


def forecast(published: Series, past: Series, *, now_s: float, until_s: float) -> Series:
    """Published values from now on; in their gaps the mean of the last days at the same time of
    day.
    """
    lengths = known_values((published.step_s(), past.step_s()))
    if not lengths:
        return published
    # The shorter steps of both: longer ones would blur the cheapest hour.
    step_s = max(min(lengths), LEAST_STEP_S)
    # From the begin of the present step on: a start now falls within it.
    begin_s = math.floor(now_s / step_s) * step_s
    count = math.ceil((until_s - begin_s) / step_s)
    means = []
    for i in range(count):
        start_s = begin_s + i * step_s
        value = usual_value(past, start_s, start_s + step_s, now_s)
        if value is not None:
            means.append(Step(start_s, start_s + step_s, value, estimated=True))
    ahead = [step for step in published.steps if step.end_s > begin_s and step.start_s < until_s]
    return Series.of(published.unit, means).merged(Series.of(published.unit, ahead))


def usual_value(past: Series, start_s: float, end_s: float, now_s: float) -> float | None:
    """Mean of the last seven days that were over by now, at the same time of day (UTC).

    None if fewer than three of them have a value.
    """
    # A start of next week has no value of yesterday: days count back from those that are over.
    first = max(math.ceil((end_s - now_s) / DAY_S), 1)
    earlier_s = [days * DAY_S for days in range(first, first + 7)]
    means = [past.mean(start_s - shift_s, end_s - shift_s) for shift_s in earlier_s]
    values = known_values(means)
    # One or two days may be a holiday or a storm.
    return fmean(values) if len(values) >= 3 else None


# A plain tuple, since a plan is JSON: start, end [s since the epoch] and the value between.
FollowedStep = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The series that the limit of a run follows, as the run's plan holds it.

    Times are seconds since the epoch.
    """

    signal: str  # messages name it as the author did
    # of the past week, since cheap is what is below the usual; above 0: values are divided by it
    mean: float
    steps: tuple[FollowedStep, ...]  # ascending, so that the present one is found by halving

    @classmethod
    def of(cls, signal: str, series: Series, now_s: float) -> Self | None:
        """From the past week's values and those that are known or forecast of the next two days.

        None if over a day of the past week is missing, or its mean is not above 0: there is nothing
        to compare the present with.
        """
        # Services publish late: a day of the week may be missing.
        mean = series.mean(now_s - 7 * DAY_S, now_s, covered=6 / 7)
        if mean is None or mean <= 0:
            return None
        ahead = forecast(series, series, now_s=now_s, until_s=now_s + AHEAD_S).steps
        groups = _joined([step for step in ahead if step.end_s > now_s])
        steps = tuple(_as_one(group) for group in groups)
        return cls(signal=signal, mean=mean, steps=steps)

    def ratio(self, now_s: float) -> float:
        """The present value over the mean, from 0.1 to 10; 1 if the present one is not known.

        A price near 0 or below it is no reason to waste energy.
        """
        i = bisect_right(self.steps, (now_s, math.inf, math.inf)) - 1
        if i < 0 or self.mean <= 0:
            return 1.0
        _, end_s, value = self.steps[i]
        if now_s >= end_s:
            return 1.0
        # An outlier of the market must not make the limit the lowest or the highest for an hour.
        return min(max(value / self.mean, 0.1), 10.0)


def _joined(steps: Sequence[Step]) -> list[list[Step]]:
    """Groups of steps of which each takes about :data:`LEAST_STEP_S` or longer.

    A plan is handed over as one variable of the environment, which has to stay small.
    """
    groups: list[list[Step]] = []
    for step in steps:
        is_short = step.end_s - step.start_s < LEAST_STEP_S
        # A limit that changes each minute would cost more than it saves.
        if is_short and groups and step.start_s < groups[-1][0].start_s + LEAST_STEP_S:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _as_one(group: Sequence[Step]) -> FollowedStep:
    """One step with the mean over time of a group."""
    # A single step keeps its value: a mean of it would differ in the last digits.
    first = group[0]
    last = group[-1]
    if first is last:
        return first.start_s, first.end_s, first.value
    total = math.fsum(step.value * (step.end_s - step.start_s) for step in group)
    length_s = math.fsum(step.end_s - step.start_s for step in group)
    return first.start_s, last.end_s, total / length_s


def weighed(weights: Weights, ratio: float) -> Weights:
    """Eq. 2 with its energy term times ``ratio``, scaled so that both terms still share 1, which
    changes no choice.
    """
    energy = weights.eta * ratio
    time = 1 - weights.eta
    return weights._replace(eta=energy / (energy + time))
