"""Posteriors of the cost of each batch size on one device: Thompson sampling draws from them."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Rates, Weights, best_limit
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample, summed
from airflow_provider_zeus.optimizer.belief import Belief

BETA = 2.0  # no try may cost more than so many times the incumbent (section 4.4)
RECENT = 5  # newest runs whose median says which runs count: three of them show a change
ALIKE = 0.15  # how far from that median a run may be to count [relative]
DOUBT = 2.0  # a run that is so many times as dear as expected is wild: the machine may have paused it
RELATIVE_SD = 0.14  # run-to-run spread of TTA where none was observed yet (section 3.2)

Entries = tuple[tuple[int, Rates], ...]  # of one batch size on one device: trial number, rates


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

    The mean of those runs that are like the median of the newest, so that one paused training does not ban its size;
    for a batch size that was profiled and has not run, its profile. The profile's cost per sample gives no cost per
    epoch until a run has reported the size of its slice. A batch size of which no whole epoch was seen is supposed to
    validate as the others do. Doubted sizes (:func:`doubted`) are left out: their cost is predicted from the others.
    """
    costs = _believed_and_doubted(belief, device, profiles, weights)
    for b in _doubted(_rates_here(belief, device), costs):
        del costs[b]
    return costs


def doubted(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> frozenset[int]:
    """Batch sizes whose only run here was too dear to believe: they should run once more."""
    costs = _believed_and_doubted(belief, device, profiles, weights)
    return _doubted(_rates_here(belief, device), costs)


def _doubted(here: Mapping[int, Entries], costs: Mapping[int, float]) -> frozenset[int]:
    """Sizes with one run that is :data:`DOUBT` times as dear as another size's runs permit.

    A step takes ``a + c b`` seconds. So an epoch costs no more than one of a smaller size, and at most ``other / b``
    times as much as one of a larger size.
    """
    found = set()
    for b, entries in here.items():
        others = [cost * max(1.0, other / b) for other, cost in costs.items() if other != b]
        if len(entries) == 1 and others and costs.get(b, 0.0) > DOUBT * min(others):
            found.add(b)
    return frozenset(found)


def _believed_and_doubted(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> dict[int, float]:
    size = belief.slice_size[1] if belief.slice_size else None
    here = _rates_here(belief, device)
    rests, usual_rest = _rests(here, weights)
    costs: dict[int, float] = {}
    if size:
        for b in {s.batch_size for s in profiles}:
            best = best_limit((s for s in profiles if s.batch_size == b), weights)
            if best is not None:
                costs[b] = best[1] * size + rests.get(b, usual_rest)
    for b, entries in here.items():
        measured = _measured(entries, size, weights, rests.get(b, usual_rest))
        if measured is not None and measured.mean > 0:
            costs[b] = measured.mean
    return costs


def _rests(here: Mapping[int, Entries], weights: Weights) -> tuple[dict[int, float], float]:
    """(Cost of validation per epoch [J], by batch size; their mean, for the sizes of which no whole epoch was seen)."""
    rests: dict[int, float] = {}
    for b, entries in here.items():
        whole = tuple((n, rates) for n, rates in entries if rates.s_per_sample and rates.epochs >= 1)
        measured = _measured(whole, 0.0, weights)
        if measured is not None:
            rests[b] = measured.mean
    return rests, math.fsum(rests.values()) / max(len(rests), 1)


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
    rests, usual_rest = _rests(here, weights)
    costs: dict[int, float] = {}
    for b in {s.batch_size for s in profiles}:
        if all(rates.s_per_sample for _, rates in here.get(b, ())):
            permitted = weights._replace(slowdown=slowdowns.get(b))
            best = best_limit((s for s in profiles if s.batch_size == b), permitted)
            if best is not None:
                costs[b] = best[1] * size + rests.get(b, usual_rest)
    return costs


def pace(belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> float:
    """How many times as long as the profile says, at the same limit, a sample took in the newest runs on this device.

    1 where no run can be compared. A machine may be slower than the one that was profiled: other cores, other disks.
    """
    profiled_s = {(s.batch_size, round(s.limit_w)): s.time_s / s.samples for s in summed(profiles) if s.samples}
    slower = [
        r.s_per_sample / expected_s
        for b, entries in _rates_here(belief, device).items()
        for _, r in entries[-RECENT:]
        if r.limit_w and r.s_per_sample > 0 and (expected_s := profiled_s.get((b, round(r.limit_w))))  # drivers round
    ]
    return statistics.median(slower) if slower else 1.0


def epoch_cost_variance(belief: Belief, device: DeviceInfo | None, weights: Weights) -> dict[int, float]:
    """Variance of ln EpochCost(b) of every batch size that ran on this device. Eq. KG-18 of docs/knowledge-gradient.md.

    The runs of all sizes are taken to vary alike (:func:`run_variance`).
    """
    variance, runs = run_variance(belief, device, weights)
    return {b: variance / n for b, n in runs.items()}


def run_variance(belief: Belief, device: DeviceInfo | None, weights: Weights) -> tuple[float, dict[int, int]]:
    """(Variance of ln EpochCost between the runs of one batch size on this device, how many of each size show it).

    The variance is 0 while each size has one run. A wild run does not show how training varies, so it adds nothing.
    """
    size, here = belief.slice_size[1] if belief.slice_size else None, _rates_here(belief, device)
    rests, usual_rest = _rests(here, weights)
    measured = {b: _measured(entries, size, weights, rests.get(b, usual_rest)) for b, entries in here.items()}
    of_size = {b: found for b, found in measured.items() if found is not None}
    squares = math.fsum(found.squares for found in of_size.values())
    freedom = sum(found.varying - 1 for found in of_size.values())
    return squares / max(freedom, 1), {b: found.runs for b, found in of_size.items()}


def _rates_here(belief: Belief, device: DeviceInfo | None) -> dict[int, Entries]:
    """By batch size."""
    where = device.where if device else None
    return {b: entries for (b, measured_on), entries in belief.rates.items() if measured_on == where}


class _Measured(NamedTuple):
    """EpochCost of one batch size."""

    mean: float  # [J], of the runs that are alike
    runs: int  # that are
    varying: int  # runs that are not wild: they show how EpochCost varies
    squares: float  # sum of the squared deviations of their ln EpochCost


@lru_cache(maxsize=1024)  # one trial changes the entries of one batch size
def _measured(entries: Entries, size: float | None, weights: Weights, rest: float = 0.0) -> _Measured | None:
    """The EpochCost that these runs show; None if none does.

    :param size: samples of an epoch.
    :param rest: cost of validation [J], for a run that ended within its first epoch: its own share is wrong.
    """
    costs = []
    for _, rates in entries:
        within_first = rates.s_per_sample > 0 and rates.epochs < 1
        training = rates._replace(rest_j=None, rest_s=0.0) if within_first else rates
        cost = training.epoch_cost(size, weights)
        if cost is not None and cost >= 0:
            costs.append(cost + rest if within_first else cost)
    if not costs:
        return None
    newest = costs[-RECENT:]
    wild_from = DOUBT * statistics.median_low(newest)
    typical = statistics.median([cost for cost in newest if cost < wild_from] or newest)
    alike = [cost for cost in costs if abs(cost - typical) <= ALIKE * typical]
    mean = math.fsum(alike) / len(alike) if alike else typical  # none is: two runs that disagree
    logs = [math.log(cost) for cost in costs if typical / DOUBT < cost < typical * DOUBT]
    middle = math.fsum(logs) / max(len(logs), 1)
    squares = math.fsum([(log - middle) ** 2 for log in logs])
    return _Measured(mean, max(len(alike), 1), max(len(logs), 1), squares)


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
    """Share of MAXPOWER that training drew on this device, by batch size: the median of the newest runs."""
    if device is None or not device.max_power_w:
        return {}
    found: dict[int, float] = {}
    for (b, measured_on), entries in belief.rates.items():
        drawn_w = [w for w in (rates.power_w for _, rates in entries[-RECENT:]) if w is not None]
        if measured_on == device.where and drawn_w:
            found[b] = statistics.median(drawn_w) / device.max_power_w
    return found


def translated(here: Mapping[int, float], there: Mapping[int, float]) -> dict[int, float]:
    """EpochCost(b) [J] of every batch size known ``here`` or ``there``: another GPU's curve, shifted (section 7).

    The shift is the mean log ratio over the batch sizes measured on both. Without such a size there is no shift; the
    curve still ranks batch sizes.
    """
    both = [math.log(cost / there[b]) for b, cost in here.items() if b in there]
    shift = math.exp(math.fsum(both) / len(both)) if both else 1.0
    return {**{b: cost * shift for b, cost in there.items()}, **here}
