"""The power limit over a run by the present price or carbon intensity: fast while energy is clean, frugal while not.

Chase (Zeus's authors) weighs the energy term of Eq. 7 by the present over the mean intensity. The profile that the run
has anyway is enough; nothing is measured again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.signals.series import Series, Step
from airflow_provider_zeus.signals.start import DAY_S, LEAST_STEP_S, forecast

AHEAD_S = 2 * DAY_S  # of the series that a plan holds; after that the run trains as without a signal


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
