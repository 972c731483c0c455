"""How often a complete run of each batch size misses its target, by itself or with its slice.

Needs numpy.

A slice of the data may lie out of reach of every batch size, and a size may miss on any other
slice. Both rates are unknown: mostly near 0, and now and then anything, with the mean ``P_FAIL``. A
run that reached its target shows that its slice is in reach. So sizes that miss alike have bad
slices, and a size that misses more often than others has a rate of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, Vector
from airflow_provider_zeus.optimizer.slices import Slice


class Counts(NamedTuple):
    """Complete runs of one batch size."""

    reached: int = 0
    missed: int = 0  # no size reached it there, so the slice may be out of reach
    missed_alone: int = 0  # another size reached it there, so the slice is not to blame


class MissRates(NamedTuple):
    """Probabilities that a complete run misses its target."""

    slices: float  # a slice that no size can do says nothing against any
    own: Mapping[int, float]


def counted(slices: Iterable[Slice], max_epochs: float, since: int) -> dict[int, Counts]:
    """Complete runs by batch size.

    :param since: number of the first trial that counts.
    """
    counts: dict[int, Counts] = {}
    for item in slices:
        in_reach = any(run.reached for run in item.runs)
        for run in item.runs:
            if run.number < since:
                continue
            before = counts.get(run.batch_size, Counts())
            if run.reached:
                counts[run.batch_size] = before._replace(reached=before.reached + 1)
            elif run.missed(max_epochs) and in_reach:
                counts[run.batch_size] = before._replace(missed_alone=before.missed_alone + 1)
            elif run.missed(max_epochs):
                counts[run.batch_size] = before._replace(missed=before.missed + 1)
    return counts


def miss_rates(counts: Mapping[int, Counts]) -> MissRates:
    """Posterior means of the rates after these runs. Eq. KG-24 of docs/knowledge-gradient.md."""
    log_prior = np.log(_prior())
    log_weight = log_prior
    means = {}
    for b, runs in counts.items():
        joint = _log_likelihood(runs) + log_prior
        # the weights of a long log are too small to be numbers: only their logarithms are
        highest = joint.max(axis=1, keepdims=True)
        weight = np.exp(joint - highest)
        of_rate = weight.sum(axis=1)
        log_weight = log_weight + np.log(of_rate) + highest[:, 0]
        means[b] = (weight @ _RATES) / of_rate
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    own = {b: float(weight @ mean) for b, mean in means.items()}
    return MissRates(float(weight @ _RATES), own)


def _log_likelihood(runs: Counts) -> Vector:
    """Of the runs of one batch size, by the rate of the slices and its own."""
    of_slices = _RATES[:, None]
    of_size = _RATES
    missed = max(runs.missed - 1, 0)  # one miss may be an accident
    reached = np.log1p(-of_slices) + np.log1p(-of_size)
    alone = np.log1p(-of_slices) + np.log(of_size)
    either = np.log(of_slices + (1.0 - of_slices) * of_size)
    likelihood: Vector = runs.reached * reached + missed * either + runs.missed_alone * alone
    return likelihood


def _prior() -> Vector:
    """Probability of each rate in advance."""
    density: Vector = _RATES ** (2.0 * P_FAIL) * (1.0 - _RATES) ** (2.0 - 2.0 * P_FAIL)
    density /= density.sum()
    return density


# equal steps of the logit resolve rates near 0 and 1
_RATES: Vector = 1.0 / (1.0 + np.exp(-np.linspace(-9.0, 6.0, 21)))
