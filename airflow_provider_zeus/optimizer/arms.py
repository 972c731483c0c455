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
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample
from airflow_provider_zeus.model.wire import without_none
from airflow_provider_zeus.optimizer.belief import Belief, Entries, where_of

BETA = 2.0  # no try may cost more than so many times the incumbent (section 4.4)
RECENT = 5  # three of five runs show a change, which a mean would hide
ALIKE = 0.15  # three times a noise of 5 %: a run beside it was disturbed, as by a shared host
# a run that is so many times as dear as expected is wild: the machine may have paused it
DOUBT = 2.0
RELATIVE_SD = 0.14  # run-to-run spread of TTA where none was observed yet (section 3.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One batch size: the posterior of its mean cost under a flat prior (Algorithm 2)."""

    runs: int
    mean_epochs: float
    mean: float
    sd: float
    epoch_cost: float


def mean_epochs(converged: Sequence[float], stopped: Sequence[float]) -> tuple[float, list[float]]:
    """Mean of Epochs(b) and the values that it averages. One run at least has converged.

    A stopped run counts as ``max(its epochs, the mean)`` (docs/policy.md, trap 5). As a fixed
    point: it counts with its own epochs if they are above the mean of all values that count,
    else not at all. So it never lowers the mean, in any order of arrival.
    """
    values = list(converged)
    mean = math.fsum(values) / len(values)
    for epochs in sorted(stopped, reverse=True):
        if epochs <= mean:
            break
        values.append(epochs)
        mean = math.fsum(values) / len(values)
    return mean, values


def arms_of(belief: Belief, costs: Mapping[int, float]) -> dict[int, Arm]:
    """Arms by batch size: with a converged run in the window and a known EpochCost.

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
    means: dict[int, float] = {}
    averaged: dict[int, list[float]] = {}
    for b in sorted(costs.keys() & converged.keys()):
        means[b], averaged[b] = mean_epochs(converged[b], stopped[b])
    varying = [b for b, values in averaged.items() if len(set(values)) > 1]
    # An arm with one value, or equal ones, must stay uncertain: it varies as the others do
    # (docs/policy.md, trap 2).
    squares = [((v - means[b]) / means[b]) ** 2 for b in varying for v in averaged[b]]
    spread = math.sqrt(math.fsum(squares) / len(squares)) if squares else RELATIVE_SD
    arms = {}
    for b, values in averaged.items():
        sd_epochs = spread * means[b]
        if b in varying:
            sd_epochs = math.sqrt(math.fsum((v - means[b]) ** 2 for v in values) / len(values))
        arms[b] = Arm(
            runs=len(converged[b]),
            mean_epochs=means[b],
            mean=means[b] * costs[b],
            sd=sd_epochs / math.sqrt(len(values)) * costs[b],
            epoch_cost=costs[b],
        )
    return arms


class _Here(NamedTuple):
    """What the runs on one device show of EpochCost."""

    rates: Mapping[int, Entries]
    weights: Weights
    size: float | None  # the next run trains on a slice like the newest
    rests: Mapping[int, float]  # a try that ends within an epoch shows no cost of validation

    @classmethod
    def of(cls, belief: Belief, device: DeviceInfo | None, weights: Weights) -> _Here:
        """The runs on this device; None stands for an unknown one."""
        where = where_of(device)
        rates = {
            b: entries for (b, measured_on), entries in belief.rates.items() if measured_on == where
        }
        size = belief.slice_size[1] if belief.slice_size else None
        rests: dict[int, float] = {}
        for b, entries in rates.items():
            whole = [entry for entry in entries if _is_whole(entry[1])]
            measured = _measured(tuple(whole), 0.0, weights)
            if measured is not None:
                rests[b] = measured.mean
        return cls(rates, weights, size, rests)

    def rest(self, b: int) -> float:
        """Cost of validation [J]; of a size without a whole epoch, the mean of the others."""
        if b in self.rests:
            return self.rests[b]
        return math.fsum(self.rests.values()) / max(len(self.rests), 1)

    def measured(self) -> dict[int, _Measured]:
        """EpochCost as the runs of each size show it."""
        shown = {
            b: _measured(entries, self.size, self.weights, rest=self.rest(b))
            for b, entries in self.rates.items()
        }
        return without_none(shown)

    def profiled(self, profiles: Sequence[ProfileSample]) -> dict[int, float]:
        """EpochCost [J] by the profile; nothing before a run has reported the size of its slice."""
        costs: dict[int, float] = {}
        if not self.size:
            return costs
        for b in {sample.batch_size for sample in profiles}:
            best = best_limit((s for s in profiles if s.batch_size == b), self.weights)
            if best is not None:
                costs[b] = best[1] * self.size + self.rest(b)
        return costs

    def costs(self, profiles: Sequence[ProfileSample]) -> dict[int, float]:
        """EpochCost [J] as the runs show it; by the profile for a size that has not run."""
        costs = self.profiled(profiles)
        costs |= {b: shown.mean for b, shown in self.measured().items() if shown.mean > 0}
        return costs

    def doubted(self, costs: Mapping[int, float]) -> frozenset[int]:
        """Sizes with one run that is :data:`DOUBT` times as dear as another size's runs permit.

        A step takes ``a + c b`` seconds. So an epoch costs no more than one of a smaller size, and
        at most ``other / b`` times as much as one of a larger size.
        """
        doubted = set()
        for b, entries in self.rates.items():
            if b not in costs or len(entries) > 1:
                continue
            permitted = [cost * max(1.0, other / b) for other, cost in costs.items() if other != b]
            if permitted and costs[b] > DOUBT * min(permitted):
                doubted.add(b)
        return frozenset(doubted)


def _is_whole(rates: Rates) -> bool:
    """Whether a run counted its samples over a whole epoch: it shows what validation costs."""
    return rates.s_per_sample > 0 and rates.epochs >= 1


def epoch_costs(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> dict[int, float]:
    """EpochCost(b) [J] at the newest slice's size for every batch size measured on this device.

    Eq. 7 of the paper.

    The mean of those runs that are like the median of the newest, so that one paused training does
    not ban its size; for a batch size that was profiled and has not run, its profile. The profile's
    cost per sample gives no cost per epoch until a run has reported the size of its slice. A batch
    size of which no whole epoch was seen is supposed to validate as the others do. Doubted sizes
    (:func:`doubted`) are left out: their cost is predicted from the others.
    """
    here = _Here.of(belief, device, weights)
    costs = here.costs(profiles)
    doubted = here.doubted(costs)
    return {b: cost for b, cost in costs.items() if b not in doubted}


def doubted(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> frozenset[int]:
    """Batch sizes whose only run here was too dear to believe: they should run once more."""
    here = _Here.of(belief, device, weights)
    return here.doubted(here.costs(profiles))


def profiled_epoch_costs(
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    weights: Weights,
    slowdowns: Mapping[int, float],
) -> dict[int, float]:
    """EpochCost(b) [J] by the profile alone, for an epoch of the newest slice.

    At the best power limit that is fast enough.

    Validation is that of the size's own runs, else that of the others. A size whose runs counted no
    samples is left out, and all are before a run has reported the size of its slice.

    :param slowdowns: how many times as long as at its highest limit a size may take; others:
        as long as it takes.
    """
    here = _Here.of(belief, device, weights)
    costs: dict[int, float] = {}
    for b in {sample.batch_size for sample in profiles}:
        if all(rates.s_per_sample for _, rates in here.rates.get(b, ())):
            permitted = here._replace(weights=weights._replace(slowdown=slowdowns.get(b)))
            costs |= permitted.profiled([s for s in profiles if s.batch_size == b])
    return costs


def pace(belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> float:
    """How many times as long as its profile a sample took in the newest runs on this device.

    At the same limit. 1 if no run can be compared. A machine may be slower than the one that was
    profiled: other cores, other disks.
    """
    profiled_s = {
        (s.batch_size, round(s.limit_w)): s.time_s / s.samples
        for s in summed(profiles)
        if s.samples
    }
    slower = []
    for (b, measured_on), entries in belief.rates.items():
        if measured_on != where_of(device):
            continue
        for _, rates in entries[-RECENT:]:
            limit_w = round(rates.limit_w or 0.0)  # drivers round, each by itself
            expected_s = profiled_s.get((b, limit_w))
            if rates.limit_w and rates.s_per_sample > 0 and expected_s:
                slower.append(rates.s_per_sample / expected_s)
    return statistics.median(slower or [1.0])


def arms_here(
    belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample], weights: Weights
) -> dict[int, Arm]:
    """Arms on this device. What it has not run has the EpochCost of another one (section 7)."""
    here = epoch_costs(belief, device, profiles, weights)
    return arms_of(belief, translated(here, epoch_costs_elsewhere(belief, device, weights)))


def run_variance(
    belief: Belief, device: DeviceInfo | None, weights: Weights
) -> tuple[float, dict[int, int]]:
    """(Variance of ln EpochCost between the runs of one batch size on this device,
    how many of each size show it).

    The runs of all sizes are taken to vary alike. The variance is 0 while each has one run.
    A wild run does not show how training varies,
    so it adds nothing.
    """
    measured = _Here.of(belief, device, weights).measured()
    squares = math.fsum(shown.squares for shown in measured.values())
    freedom = sum(shown.varying - 1 for shown in measured.values())
    return squares / max(freedom, 1), {b: shown.runs for b, shown in measured.items()}


class _Measured(NamedTuple):
    """EpochCost of one batch size."""

    mean: float
    runs: int
    varying: int  # without wild ones, which show a paused machine and not how EpochCost varies
    squares: float  # a sum, so that several sizes can pool their spread


@lru_cache(maxsize=1024)  # one trial changes the entries of one batch size alone
def _measured(
    entries: Entries, size: float | None, weights: Weights, rest: float = 0.0
) -> _Measured | None:
    """The EpochCost that these runs show; None if none does.

    :param size: samples of an epoch.
    :param rest: cost of validation [J], for a run that ended within its first epoch:
        its own share is wrong.
    """
    costs = []
    for _, rates in entries:
        more = 0.0
        if rates.s_per_sample > 0 and rates.epochs < 1:
            rates = rates._replace(rest_j=None, rest_s=0.0)
            more = rest
        cost = rates.epoch_cost(size, weights)
        if cost is not None and cost >= 0:
            costs.append(cost + more)
    if not costs:
        return None
    newest = costs[-RECENT:]
    # of two runs the cheaper one is believed: a paused machine makes a run dearer, never cheaper
    wild_from = DOUBT * statistics.median_low(newest)
    tame = [cost for cost in newest if cost < wild_from]
    typical = statistics.median(tame or newest)
    alike = [cost for cost in costs if abs(cost - typical) <= ALIKE * typical]
    mean = typical  # of two runs that disagree none is like their median
    if alike:
        mean = math.fsum(alike) / len(alike)
    logs = [math.log(cost) for cost in costs if typical / DOUBT < cost < typical * DOUBT]
    middle = math.fsum(logs) / max(len(logs), 1)
    squares = math.fsum([(log - middle) ** 2 for log in logs])
    return _Measured(mean, max(len(alike), 1), max(len(logs), 1), squares)


def epoch_costs_elsewhere(
    belief: Belief, device: DeviceInfo | None, weights: Weights
) -> dict[int, float]:
    """EpochCost(b) [J] of the other device that has run most sizes, at this one's weights."""
    here = where_of(device)
    elsewhere = [where for _, where in belief.rates if where != here]
    if not elsewhere:
        return {}
    others = Counter(elsewhere)
    model, count, source = max(others, key=lambda where: (others[where], str(where)))
    return epoch_costs(
        belief, DeviceInfo(model=model, count=count, energy_source=source), (), weights
    )


def loads(belief: Belief, device: DeviceInfo | None) -> dict[int, float]:
    """Median share of MAXPOWER that the newest runs drew on this device, by batch size."""
    if device is None or not device.max_power_w:
        return {}
    shares: dict[int, float] = {}
    for (b, measured_on), entries in belief.rates.items():
        powers_w = [rates.power_w for _, rates in entries[-RECENT:]]
        drawn_w = known_values(powers_w)
        if measured_on == device.where and drawn_w:
            shares[b] = statistics.median(drawn_w) / device.max_power_w
    return shares


def translated(here: Mapping[int, float], there: Mapping[int, float]) -> dict[int, float]:
    """EpochCost(b) [J] of every batch size known ``here`` or ``there``.

    Another GPU's curve is shifted to this one's level (section 7 of the paper).

    The shift is the mean log ratio over the batch sizes measured on both. Without such a size there
    is no shift; the curve still ranks batch sizes.
    """
    both = [math.log(cost / there[b]) for b, cost in here.items() if b in there]
    shift = math.exp(math.fsum(both) / len(both)) if both else 1.0
    return {**{b: cost * shift for b, cost in there.items()}, **here}
