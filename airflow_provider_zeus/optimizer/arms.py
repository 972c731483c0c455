"""Posteriors of the cost of each batch size on one device: Thompson sampling draws from them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Rates, Weights, best_limit
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample, summed
from airflow_provider_zeus.optimizer.belief import Belief

BETA = 2.0  # no try may cost more than so many times the incumbent (section 4.4)
RELATIVE_SD = 0.14  # run-to-run spread of TTA where none was observed yet (section 3.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One batch size: the posterior of its mean cost under a flat prior (Algorithm 2)."""

    runs: int  # converged runs in the window
    mean_epochs: float
    mean: float  # posterior mean of the cost of a run [J]
    sd: float  # posterior standard deviation of that mean [J]
    epoch_cost: float  # [J]


def mean_epochs(converged: Sequence[float], stopped: Sequence[float]) -> tuple[float, list[float]] | None:
    """Mean of Epochs(b) and the values that it averages; None without a converged run.

    A stopped run counts as ``max(its epochs, the mean)`` (docs/policy.md, trap 5). As a fixed point: it counts with its
    own epochs where they are above the mean of all values that count, else not at all. So it never lowers the mean, in
    any order of arrival.
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
    """Arms with a converged run in the window and a known EpochCost (:func:`epoch_costs`), by batch size.

    The posterior is that of Algorithm 2 under the flat prior.
    """
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
    # relative run-to-run spread, pooled over all arms that have one: for arms with one value or equal values
    squares = [((v - mean) / mean) ** 2 for mean, values in known.values() if len(set(values)) > 1 for v in values]
    spread = math.sqrt(math.fsum(squares) / len(squares)) if squares else RELATIVE_SD
    arms = {}
    for b, (mean, values) in known.items():
        own = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        sd_epochs = (own if len(set(values)) > 1 else spread * mean) / math.sqrt(len(values))
        arms[b] = Arm(
            runs=len(converged[b]),
            mean_epochs=mean,
            mean=mean * costs[b],
            sd=sd_epochs * costs[b],
            epoch_cost=costs[b],
        )
    return arms


def epoch_costs(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> dict[int, float]:
    """EpochCost(b) [J] at the newest slice's size for every batch size measured on this device (Eq. 7).

    The mean of the newest runs; for a batch size that was profiled and has not run, its profile. The profile's cost per
    sample gives no cost per epoch until a run has reported the size of its slice. A batch size of which no whole epoch
    was seen is supposed to validate as the others do.
    """
    size = belief.slice_size[1] if belief.slice_size else None
    here = _rates_here(belief, device)
    whole = {b for b, entries in here.items() if any(rates.epochs >= 1 for _, rates in entries)}
    costs: dict[int, float] = {}
    for b in {s.batch_size for s in profiles} if size else ():
        best = best_limit((s for s in profiles if s.batch_size == b), weights)
        if best is not None:
            costs[b] = best[1] * (size or 0.0)
    for b, entries in here.items():
        if b not in whole:  # without validation, where samples were counted: of less than an epoch its share is wrong
            entries = tuple((n, r._replace(rest_j=None, rest_s=0.0) if r.s_per_sample else r) for n, r in entries)
        measured = _measured(entries, size, weights)
        if measured is not None and measured.mean > 0:
            costs[b] = measured.mean
    uncounted = {b for b, entries in here.items() if not all(rates.s_per_sample for _, rates in entries)}
    if early := costs.keys() - whole - uncounted:
        rests = [rest.mean for b in whole - uncounted if (rest := _measured(here[b], 0.0, weights)) is not None]
        costs.update({b: costs[b] + math.fsum(rests) / max(len(rests), 1) for b in early})
    return costs


def profiled_epoch_costs(
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    weights: Weights,
    slowdowns: Mapping[int, float],
) -> dict[int, float]:
    """EpochCost(b) [J] by the profile alone, at the newest slice's size: at the best limit that is fast enough.

    Validation is that of the size's own runs, else that of the others. A size whose runs counted no samples is left
    out, and all are before a run has reported the size of its slice.

    :param slowdowns: how many times as long as at its highest limit a size may take; others: as long as it takes.
    """
    size, here = belief.slice_size[1] if belief.slice_size else None, _rates_here(belief, device)
    if not size:
        return {}
    rests = {b: rest.mean for b, entries in here.items() if (rest := _measured(entries, 0.0, weights)) is not None}
    usual = math.fsum(rests.values()) / max(len(rests), 1)
    costs: dict[int, float] = {}
    for b in {s.batch_size for s in profiles}:
        if all(rates.s_per_sample for _, rates in here.get(b, ())):
            permitted = weights._replace(slowdown=slowdowns.get(b))
            best = best_limit((s for s in profiles if s.batch_size == b), permitted)
            if best is not None:
                costs[b] = best[1] * size + rests.get(b, usual)
    return costs


def pace(belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> float:
    """How many times as long as the profile says, at the same limit, a sample took in the newest runs on this device.

    1 where no run can be compared. A machine may be slower than the one that was profiled: other cores, other disks.
    """
    profiled_s = {(s.batch_size, round(s.limit_w)): s.time_s / s.samples for s in summed(profiles) if s.samples}
    slower = [
        (math.log(r.s_per_sample / expected_s), r.epochs)
        for b, entries in _rates_here(belief, device).items()
        for _, r in entries
        if r.limit_w and r.s_per_sample > 0 and (expected_s := profiled_s.get((b, round(r.limit_w))))  # drivers round
    ]
    epochs = math.fsum(n for _, n in slower)
    return math.exp(math.fsum(log * n for log, n in slower) / epochs) if epochs else 1.0


def epoch_cost_variance(belief: Belief, device: DeviceInfo | None, weights: Weights) -> dict[int, float]:
    """Variance of ln EpochCost(b) of every batch size that ran on this device. Eq. KG-18 of docs/knowledge-gradient.md.

    The runs of all sizes are taken to vary alike (:func:`run_variance`).
    """
    variance, runs = run_variance(belief, device, weights)
    return {b: variance / n for b, n in runs.items()}


def run_variance(belief: Belief, device: DeviceInfo | None, weights: Weights) -> tuple[float, dict[int, int]]:
    """(Variance of ln EpochCost between the runs of one batch size on this device, how many of each size show it).

    The variance is 0 while each size has one run.
    """
    size, here = belief.slice_size[1] if belief.slice_size else None, _rates_here(belief, device)
    known = {b: found for b, entries in here.items() if (found := _measured(entries, size, weights)) is not None}
    runs = {b: found.runs for b, found in known.items()}
    return math.fsum(found.squares for found in known.values()) / max(sum(runs.values()) - len(runs), 1), runs


Entries = tuple[tuple[int, Rates], ...]  # of one batch size on one device: trial number, rates


def _rates_here(belief: Belief, device: DeviceInfo | None) -> dict[int, Entries]:
    """By batch size."""
    where = device.where if device else None
    return {b: entries for (b, measured_on), entries in belief.rates.items() if measured_on == where}


class _Measured(NamedTuple):
    """EpochCost of one batch size."""

    mean: float  # [J], each run weighted by its epochs
    runs: int
    squares: float  # sum of the squared deviations of ln EpochCost


@lru_cache(maxsize=1024)  # one trial changes the entries of one batch size
def _measured(entries: Entries, size: float | None, weights: Weights) -> _Measured | None:
    known = [(cost, r.epochs) for _, r in entries if (cost := r.epoch_cost(size, weights)) is not None and cost >= 0]
    if not known:
        return None
    mean = math.fsum([cost * epochs for cost, epochs in known]) / math.fsum([epochs for _, epochs in known])
    logs = [math.log(cost) for cost, _ in known if cost > 0]
    middle = math.fsum(logs) / max(len(logs), 1)
    return _Measured(mean, len(known), math.fsum([(log - middle) ** 2 for log in logs]))


def epoch_costs_elsewhere(belief: Belief, device: DeviceInfo | None, weights: Weights) -> dict[int, float]:
    """EpochCost(b) [J], at the weights of this device, on the other device that has run most batch sizes."""
    here = device.where if device else None
    elsewhere = [where for _, where in belief.rates if where != here]
    if not elsewhere:
        return {}
    others = Counter(elsewhere)
    model, count, source = max(others, key=lambda where: (others[where], str(where)))
    return epoch_costs(belief, DeviceInfo(model=model, count=count, energy_source=source), (), weights)


def loads(belief: Belief, device: DeviceInfo | None) -> dict[int, float]:
    """Share of MAXPOWER that training drew on this device, by batch size: the mean of the newest runs."""
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

    The shift is the mean log ratio over the batch sizes measured on both. Without such a size there is no shift; the
    curve still ranks batch sizes.
    """
    both = [math.log(cost / there[b]) for b, cost in here.items() if b in there]
    shift = math.exp(math.fsum(both) / len(both)) if both else 1.0
    return {**{b: cost * shift for b, cost in there.items()}, **here}
