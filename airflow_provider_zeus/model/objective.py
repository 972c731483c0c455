"""How much a power limit may slow training. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

HALF_WIDTH = 0.02  # half of the 95 % confidence interval of J and s per sample at a profiled limit: aimed at [relative]

Rate = tuple[float, float]  # (J, s) per sample


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
