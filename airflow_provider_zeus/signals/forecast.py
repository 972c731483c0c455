"""What a run does by a forecast of a signal: when it starts, and which power limit is the best while it trains. Pure.

Where values are published they count; elsewhere the mean of the last seven days at the same time of day. A start waits
only where the forecast saving is at least :data:`WORTH`. Any fault of a signal means: start at once, and say why.

The limit follows the present price or carbon intensity: fast while energy is clean, frugal while not. Chase (Zeus's
authors) weighs the energy term of Eq. 7 by the present over the mean intensity. The profile that the run has anyway is
enough; nothing is measured again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.signals.series import Series, Step

WORTH = 0.05  # least share that waiting has to save
DAY_S = 86_400.0
AHEAD_S = 2 * DAY_S  # of the series that a plan holds; after that the run trains as without a signal
LEAST_STEP_S = 300.0  # of a forecast: a signal of very short steps would take minutes to plan

WAITS, NOW_IS_BEST, NOT_WORTH_IT = "waits", "now is cheapest", "waiting saves too little"
NO_VALUES, NO_FORECAST, TOO_LATE = "no value for now", "no forecast for later", "the latest start has come"


@dataclass(frozen=True, slots=True)
class Start:
    """When to start [s since the epoch], and what that is expected to save against starting at once.

    Means are those of the series over the run, in its unit; None: not known. ``reason``: one of the constants above.
    """

    at_s: float
    reason: str
    mean_at_once: float | None = None
    mean_then: float | None = None

    @property
    def saving(self) -> float:
        """Difference of the means, in the unit of the series; 0 where nothing is waited for."""
        return 0.0 if self.mean_at_once is None or self.mean_then is None else self.mean_at_once - self.mean_then


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
    :param worth: least share of the mean that waiting has to save; it is compared by difference, so that prices at or
        below 0 are no special case.
    """
    longest_s = 7 * DAY_S  # that a start may wait, or a run may take
    latest_s, duration_s = min(latest_s, now_s + longest_s), min(max(duration_s, 1.0), longest_s)
    if latest_s <= now_s:
        return Start(now_s, TOO_LATE)
    known = forecast(published, past, now_s=now_s, until_s=latest_s + duration_s)
    at_once = known.mean(now_s, now_s + duration_s)
    if at_once is None:
        return Start(now_s, NO_VALUES)
    later = [
        (mean, at_s)
        for at_s in candidates(known, now_s, latest_s, duration_s)
        if (mean := known.mean(at_s, at_s + duration_s)) is not None
    ]
    if not later:
        return Start(now_s, NO_FORECAST, at_once, at_once)
    best = min(mean for mean, _ in later)
    at_s = next(at_s for mean, at_s in later if math.isclose(mean, best, abs_tol=1e-12))  # the first of equal ones
    if best >= at_once:
        return Start(now_s, NOW_IS_BEST, at_once, at_once)
    scale = max(abs(at_once), fmean(abs(mean) for mean, _ in later))
    if at_once - best < worth * scale:
        return Start(now_s, NOT_WORTH_IT, at_once, at_once)
    return Start(at_s, WAITS, at_once, best)


def candidates(known: Series, now_s: float, latest_s: float, duration_s: float, most: int = 1_000) -> list[float]:
    """The starts after now of which one is the cheapest: where a run begins or ends with a step, and the latest one.

    Of very short steps at most ``most`` of each kind, beside the latest one: every ten minutes of a week.
    """
    least_s = (latest_s - now_s) / most

    def thinned(edges: Iterable[float]) -> list[float]:
        found: list[float] = []
        for at_s in edges:
            if now_s < at_s < latest_s and (not found or at_s >= found[-1] + least_s):
                found.append(at_s)
        return found

    later = [step for step in known.steps if step.start_s > now_s]
    begins, ends = thinned(step.start_s for step in later), thinned(step.end_s - duration_s for step in later)
    return [*sorted({*begins, *ends}), latest_s]


def forecast(published: Series, past: Series, *, now_s: float, until_s: float) -> Series:
    """Published values from now on, and the mean of the last days at the same time of day where there are none."""
    lengths = [s for s in (published.step_s(), past.step_s()) if s is not None]
    if not lengths:
        return published
    step_s = max(min(lengths), LEAST_STEP_S)
    begin_s = math.floor(now_s / step_s) * step_s
    count = math.ceil((until_s - begin_s) / step_s)
    means = [
        Step(at_s, at_s + step_s, value, estimated=True)
        for i in range(count)
        if (value := usual_value(past, at_s := begin_s + i * step_s, at_s + step_s, now_s)) is not None
    ]
    ahead = [step for step in published.steps if step.end_s > begin_s and step.start_s < until_s]
    return Series.of(published.unit, means).merged(Series.of(published.unit, ahead))


def usual_value(past: Series, start_s: float, end_s: float, now_s: float) -> float | None:
    """Mean of the last seven days at the same time of day (UTC), of what was over by now; None: of fewer than three."""
    first = max(math.ceil((end_s - now_s) / DAY_S), 1)
    values = [past.mean(start_s - n * DAY_S, end_s - n * DAY_S) for n in range(first, first + 7)]
    found = [v for v in values if v is not None]
    return fmean(found) if len(found) >= 3 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The series that the limit of a run follows, as the run's plan holds it. Times are seconds since the epoch."""

    signal: str  # as the job names it
    mean: float  # of the week before the run, in the unit of the values; above 0
    steps: tuple[tuple[float, float, float], ...]  # (start, end, value), ascending

    @classmethod
    def of(cls, signal: str, series: Series, now_s: float) -> Self | None:
        """From the past week's values and what is known or forecast of the next two days.

        None where over a day of the past week is missing, or its mean is not above 0: there is nothing to compare the
        present with.
        """
        mean = series.mean(now_s - 7 * DAY_S, now_s, covered=6 / 7)
        if mean is None or mean <= 0:
            return None
        ahead = forecast(series, series, now_s=now_s, until_s=now_s + AHEAD_S).steps
        groups: list[list[Step]] = []  # of at least LEAST_STEP_S: a plan is handed over as one variable
        for step in (s for s in ahead if s.end_s > now_s):
            is_short = step.end_s - step.start_s < LEAST_STEP_S
            if is_short and groups and step.start_s < groups[-1][0].start_s + LEAST_STEP_S:
                groups[-1].append(step)
            else:
                groups.append([step])
        steps = []
        for group in groups:
            weighed_s = [(each.value, each.end_s - each.start_s) for each in group]
            value = math.fsum(v * s for v, s in weighed_s) / math.fsum(s for _, s in weighed_s)
            steps.append((group[0].start_s, group[-1].end_s, value if len(group) > 1 else group[0].value))
        return cls(signal=signal, mean=mean, steps=tuple(steps))

    def ratio(self, now_s: float) -> float:
        """The present value over the mean, from 0.1 to 10; 1 where the present one is not known.

        A price near 0 or below it is no reason to waste energy.
        """
        i = bisect_right(self.steps, (now_s, math.inf, math.inf)) - 1
        if i < 0 or now_s >= self.steps[i][1] or self.mean <= 0:
            return 1.0
        return min(max(self.steps[i][2] / self.mean, 0.1), 10.0)


def weighed(weights: Weights, ratio: float) -> Weights:
    """Eq. 2 with its energy term times ``ratio``, scaled so that both terms still share 1, which changes no choice."""
    if weights.time_alone:
        return weights
    energy, time = weights.eta * ratio, 1 - weights.eta
    return weights._replace(eta=energy / (energy + time)) if energy + time > 0 else weights
