"""What the best power limit minimises, and how much it may slow training. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping

OBJECTIVES = ("cost", "energy", "time")
_SLOWDOWN = "max_slowdown="
HALF_WIDTH = 0.02  # half of the 95 % confidence interval of J and s per sample at a profiled limit: aimed at [relative]

Rate = tuple[float, float]  # (J, s) per sample


def slowdown_of(objective: str) -> float | None:
    """The factor of the deprecated ``"max_slowdown=1.05"``; None for any other objective. Raises ValueError below 1."""
    if not objective.startswith(_SLOWDOWN):
        return None
    factor = float(objective.removeprefix(_SLOWDOWN))
    if not math.isfinite(factor) or factor < 1:
        raise ValueError(f"{factor:g} is not a factor of at least 1")
    return factor


def permitted(
    rates: Mapping[float, Rate], slowdown: float | None, slack: Mapping[float, float] | None = None
) -> Mapping[float, Rate]:
    """The rates of those limits [W] at which a sample takes at most ``slowdown`` times as long as at the highest one.

    :param slack: limit [W] -> how much more it may slow training [relative], where its time is uncertain.
    """
    if slowdown is None or not rates:
        return rates
    most_s = slowdown * rates[max(rates)][1]  # against the highest limit measured
    return {
        w: rate for w, rate in rates.items() if w == max(rates) or rate[1] <= most_s * (1 + (slack or {}).get(w, 0))
    }
