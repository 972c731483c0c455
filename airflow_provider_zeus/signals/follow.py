"""The power limit over a run by the present price or carbon intensity: fast while energy is clean, frugal while not.

Chase (Zeus's authors) weighs the energy term of Eq. 7 by the present over the mean intensity. The profile that the run
has anyway is enough; nothing is measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.objective import Rate

LEAST, MOST = 0.1, 10.0  # of present over mean: a price near 0 or below it is no reason to waste energy


def weighed(weights: Weights, present: float, mean: float) -> Weights:
    """Eq. 2 with its energy term times ``present / mean``; the given weights where the mean is not above 0.

    The cost is scaled so that both terms still share 1, which changes no choice.
    """
    if mean <= 0 or weights.time_alone:
        return weights
    ratio = min(max(present / mean, LEAST), MOST)
    energy, time = weights.eta * ratio, 1 - weights.eta
    return weights._replace(eta=energy / (energy + time)) if energy + time > 0 else weights


def limit_w(rates: Mapping[float, Rate], weights: Weights, present: float, mean: float) -> float | None:
    """The best power limit [W] for the present value of a series; None without a profile.

    :param rates: power limit [W] -> (J, s) per sample, by the profile of the run's batch size.
    :param mean: of the series over the time that the run is expected to take.
    """
    return weighed(weights, present, mean).best_w(rates)
