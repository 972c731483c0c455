"""Which power limit of a profile is the best one: the job's ``power_objective``. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping

OBJECTIVES = ("cost", "energy", "time")
_SLOWDOWN = "max_slowdown="
_ROUNDING = 1e-9

Rate = tuple[float, float]  # (J, s) per sample


def slowdown_of(objective: str) -> float | None:
    """The factor of ``"max_slowdown=1.05"``; None for any other objective. Raises ValueError: no number from 1 on."""
    if not objective.startswith(_SLOWDOWN):
        return None
    factor = float(objective.removeprefix(_SLOWDOWN))
    if not math.isfinite(factor) or factor < 1:
        raise ValueError(f"{factor:g} is no factor from 1 on")
    return factor


def permitted(
    rates: Mapping[float, Rate], objective: str, slack: Mapping[float, float] | None = None
) -> Mapping[float, Rate]:
    """Rates of the limits [W] that the objective allows: none that slows training more than it says.

    :param slack: limit -> how much more than that it may [relative], because nobody knows its time any better.
    """
    factor = slowdown_of(objective)
    if factor is None or not rates:
        return rates
    most_s = factor * rates[max(rates)][1]  # against the highest limit measured
    return {
        w: rate for w, rate in rates.items() if w == max(rates) or rate[1] <= most_s * (1 + (slack or {}).get(w, 0))
    }
