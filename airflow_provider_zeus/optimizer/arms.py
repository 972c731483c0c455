"""Belief per batch size, as costs on one device: what Thompson sampling samples from."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.cost import Rates, Weights, best_limit
from airflow_provider_zeus.optimizer.trial import DeviceInfo, ProfileSample

RELATIVE_SD = 0.14  # run-to-run spread of TTA where none was observed yet (section 3.2)
KEPT = 1024  # mean EpochCosts that are kept, per size of a slice and weights

Entries = tuple[tuple[int, Rates], ...]  # trial number, rates
Kept = dict[int, tuple[Entries, float | None]]  # by the id of the entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One batch size: the posterior of its mean cost under a flat prior (Algorithm 2)."""

    batch_size: int
    runs: int  # converged runs in the window
    mean_epochs: float
    mean: float  # believed cost of a run [J]
    sd: float  # posterior standard deviation of that mean [J]
    epoch_cost: float  # [J]


def mean_epochs(converged: Sequence[float], stopped: Sequence[float]) -> tuple[float, list[float]] | None:
    """Believed Epochs(b) and the values behind it; None without a converged run.

    A stopped run counts as ``max(its epochs, the mean)`` (upstream trap 5). Taken as a fixed point that is: it counts
    as it stands where it is above the mean of all that count, else not at all. So it never lowers the mean, in
    whatever order runs arrive.
    """
    if not converged:
        return None
    values = list(converged)
    mean = math.fsum(values) / len(values)
    for epochs in sorted(stopped, reverse=True):
        if epochs <= mean:
            break
        values.append(epochs)
        mean = math.fsum(values) / len(values)
    return mean, values


def arms_of(belief: Belief, costs: Mapping[int, float]) -> dict[int, Arm]:
    """Arms with a converged run in the window and a known EpochCost (:func:`epoch_costs`), by batch size."""
    converged: dict[int, list[float]] = defaultdict(list)
    stopped: dict[int, list[float]] = defaultdict(list)
    for _, b, epochs in belief.converged:
        converged[b].append(epochs)
    oldest = belief.window_start()
    for n, b, epochs in belief.stopped:
        if n >= oldest:
            stopped[b].append(epochs)
    found = {b: mean_epochs(converged[b], stopped[b]) for b in sorted(converged) if b in costs}
    known = {b: m for b, m in found.items() if m is not None}
    spread = _pooled_spread(known)
    return {b: _arm(b, len(converged[b]), mean, values, costs[b], spread) for b, (mean, values) in known.items()}


def _arm(b: int, runs: int, mean: float, values: list[float], epoch_cost: float, spread: float) -> Arm:
    """Posterior of Algorithm 2 under the flat prior; one value or equal values borrow the other arms' spread."""
    n = len(values)
    own = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / n)
    sd = (own if len(set(values)) > 1 else spread * mean) / math.sqrt(n) * epoch_cost
    return Arm(batch_size=b, runs=runs, mean_epochs=mean, mean=mean * epoch_cost, sd=sd, epoch_cost=epoch_cost)


def _pooled_spread(known: Mapping[int, tuple[float, list[float]]]) -> float:
    """Relative run-to-run spread over all arms that show any, else :data:`RELATIVE_SD`."""
    squares = [((v - mean) / mean) ** 2 for mean, values in known.values() if len(set(values)) > 1 for v in values]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else RELATIVE_SD


def epoch_costs(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> dict[int, float]:
    """EpochCost(b) [J] at the newest slice's size for every batch size measured on this device (Eq. 7).

    What complete runs drew, averaged over the newest; a batch size that only a killed run profiled is taken from its
    profile. A figure per sample says nothing of an epoch until a run has told the size of its slice.
    """
    size = belief.slice_size[1] if belief.slice_size else None
    where = device.where if device else None
    costs: dict[int, float] = {}
    for b in {s.batch_size for s in profiles} if size else ():
        best = best_limit((s for s in profiles if s.batch_size == b), weights)
        if best is not None:
            costs[b] = best[1] * (size or 0.0)
    kept = _kept(size, weights)
    for (b, measured_on), entries in belief.rates.items():
        if measured_on == where:
            known = kept.get(id(entries))
            cost = known[1] if known is not None and known[0] is entries else _mean_cost(entries, size, weights, kept)
            if cost is not None:
                costs[b] = cost
    return costs


def epoch_costs_elsewhere(belief: Belief, device: DeviceInfo | None, weights: Weights) -> dict[int, float]:
    """EpochCost(b) [J], at the weights of this device, on the other device that ran most batch sizes."""
    here = device.where if device else None
    elsewhere = [where for _, where in belief.rates if where != here]
    if not elsewhere:
        return {}
    others = Counter(elsewhere)
    model, count, source = max(others, key=lambda where: (others[where], str(where)))
    return epoch_costs(belief, DeviceInfo(model=model, count=count, energy_source=source), (), weights)


def loads(belief: Belief, device: DeviceInfo | None) -> dict[int, float]:
    """Share of MAXPOWER that training drew on this device, by batch size, averaged over the newest runs."""
    if device is None or not device.max_power_w:
        return {}
    found: dict[int, float] = {}
    for (b, measured_on), entries in belief.rates.items():
        drawn_w = [w for w in (rates.power_w for _, rates in entries) if w is not None]
        if measured_on == device.where and drawn_w:
            found[b] = math.fsum(drawn_w) / len(drawn_w) / device.max_power_w
    return found


def translated(here: Mapping[int, float], there: Mapping[int, float]) -> dict[int, float]:
    """EpochCost(b) [J] of every batch size known ``here`` or ``there``: another GPU's curve, shifted (section 7).

    The shift is the mean log ratio over the batch sizes measured on both; without one it is none, which is enough to
    rank them.
    """
    both = [math.log(cost / there[b]) for b, cost in here.items() if b in there]
    shift = math.exp(math.fsum(both) / len(both)) if both else 1.0
    return {**{b: cost * shift for b, cost in there.items()}, **here}


def _mean_cost(entries: Entries, size: float | None, weights: Weights, kept: Kept) -> float | None:
    known = [c for c in [r.epoch_cost(size, weights) for _, r in entries] if c is not None]
    mean = math.fsum(known) / len(known) if known else None
    if len(kept) >= KEPT:
        kept.clear()
    kept[id(entries)] = entries, mean
    return mean


@lru_cache(maxsize=64)
def _kept(size: float | None, weights: Weights) -> Kept:
    """Mean EpochCosts by whose they are: a run tells one batch size anew, a hash would ask all of their entries."""
    return {}
