"""Energy-time cost (Eq. 1 to 3, 5 and 7 of the paper). Energies [J], times [s], powers [W], costs [J]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, PlannedAttempt, ProfileSample
from airflow_provider_zeus.units import costs_as

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


class Weights(NamedTuple):
    """How energy and time are weighed: eta and MAXPOWER [W] of Eq. 2.

    ``time_alone``: nothing measures energy, or MAXPOWER is needed and unknown; eta counts as 0 and costs are seconds.
    ``slowdown``: how many times as long as at the highest limit measured training may take at the best one.
    """

    eta: float
    max_power_w: float
    time_alone: bool = False
    slowdown: float | None = None  # None: as long as it takes

    @classmethod
    def of(cls, job: ZeusJob, device: DeviceInfo | None) -> Weights:
        """Weights of a job on a device; the job's ``max_power_w`` takes precedence over the device's."""
        max_power_w = job.max_power_w or (device.max_power_w if device else None)
        eta = job.eta if job.chooses_size or job.mode != "measure" else 1.0  # where nothing is chosen, energy counts
        if device is None or device.energy_source is None or (max_power_w is None and eta < 1):
            return cls(0.0, 1.0, time_alone=True)
        return cls(eta, max_power_w or 1.0)  # at eta 1 MAXPOWER is unused

    @property
    def unit(self) -> str:
        """Of a cost: "J" of Eq. 2, or "s" where time alone counts."""
        return "s" if self.time_alone else "J"

    @property
    def one_alone(self) -> str:
        """What alone a cost is of, "energy" or "time"; empty where it weighs both."""
        return "time" if self.time_alone else "energy" if self.eta == 1 else ""

    @property
    def split(self) -> str:
        """How a cost weighs energy against time, in words."""
        return "half and half" if self.eta == 0.5 else f"{100 * self.eta:g} to {100 - 100 * self.eta:g}"

    def hurried(self) -> Weights:
        """The weights where time alone decides."""
        return self if self.time_alone else self._replace(eta=0.0, slowdown=None)

    @property
    def fastest(self) -> bool:
        """Whether the best limit is the one with the shortest time, regardless of energy."""
        return self.eta == 0

    def cost(self, energy_j: float | None, time_s: float) -> float:
        """Cost [J] (Eq. 2): eta x energy + (1 - eta) x MAXPOWER x time. Energy may be None only at eta 0."""
        if self.eta == 0:
            return self.max_power_w * time_s
        if energy_j is None:
            raise ValueError("energy_j is None, but eta is above 0")
        return self.eta * energy_j + (1 - self.eta) * self.max_power_w * time_s

    def best_w(self, rates: Mapping[float, Rate]) -> float | None:
        """The best power limit [W], by Eq. 7. Of two equal limits the lower; None without any.

        :param rates: power limit [W] -> (J, s) per sample.
        """
        allowed = permitted(rates, self.slowdown)
        return min(allowed, key=lambda limit_w: (self.cost(*allowed[limit_w]), limit_w), default=None)

    def text(self, cost: float) -> str:
        """A cost as text: "2.74 weighed Wh" where it is of energy and time, which would be taken for energy."""
        amount, _, unit = costs_as(self.unit)(cost).rpartition(" ")
        return f"{amount} {'' if self.one_alone else 'weighed '}{unit}"


def hurried(weights: Weights, planned: PlannedAttempt) -> Weights:
    """The weights with the slowdown that the decision allows; those of time alone where it is in a hurry."""
    in_time = planned.in_time
    if in_time is None or in_time.slowdown is None or weights.time_alone:
        return weights
    return weights.hurried() if in_time.hurry else weights._replace(slowdown=in_time.slowdown)


def weights_of(job: ZeusJob, seen: Observation) -> Weights:
    """The weights of energy and time (Eq. 2) for this job on the device of an observation."""
    unknown = DeviceInfo(model="unknown", max_power_w=seen.max_power_w, energy_source=seen.energy_source)
    return Weights.of(job, seen.device or unknown)


def observed_cost(observation: Observation, weights: Weights) -> float | None:
    """Cost [J] of a trial, profiling included (Eq. 2); None where a figure is missing."""
    if observation.time_s is None or (weights.eta > 0 and observation.energy_j is None):
        return None
    return weights.cost(observation.energy_j, observation.time_s)


def best_limit(profile: Iterable[ProfileSample], weights: Weights) -> tuple[float, float] | None:
    """(power limit [W], cost per sample [J]) of the best limit measured; None where none was measured.

    Samples of one limit are added before limits are compared (:meth:`Weights.best_w`).
    """
    sums: dict[float, tuple[int, float, float]] = {}
    for s in profile:
        n, energy_j, time_s = sums.get(s.limit_w, (0, 0.0, 0.0))
        sums[s.limit_w] = (n + s.samples, energy_j + s.energy_j, time_s + s.time_s)
    rates = {
        limit_w: (e / n, t / n)
        for limit_w, (n, e, t) in sums.items()
        if n > 0 and t > 0 and (e > 0 or weights.fastest)  # 0 J: the window was too short for the counter
    }
    best_w = weights.best_w(rates)
    return None if best_w is None else (best_w, weights.cost(*rates[best_w]))


class Rates(NamedTuple):
    """Energy [J] and time [s] of one batch size, per sample trained and per epoch outside training.

    Where no data loader counted samples, everything counts per epoch. ``epochs``: over how many they were measured.
    """

    j_per_sample: float | None
    s_per_sample: float
    rest_j: float | None  # validation and waiting, per epoch
    rest_s: float
    epochs: float
    limit_w: float | None = None  # power limit at which it ended

    @classmethod
    def of(cls, o: Observation) -> Rates | None:
        """Rates of one trial, without profiling's excess and pauses; None where it measured no time or no epoch."""
        epochs = o.epochs or (o.samples / o.samples_per_epoch if o.samples and o.samples_per_epoch else None)
        time = _split(o.samples, epochs, o.time_s, o.rest_s, _sum(o.excess_s, o.paused_s))
        if time is None or not epochs:
            return None
        j_per_sample, rest_j = _split(o.samples, epochs, o.energy_j, o.rest_j, _sum(o.excess_j, o.paused_j)) or (
            None,
            None,
        )
        return cls(j_per_sample, time[0], rest_j, time[1], epochs, o.power_limit_w)

    @property
    def power_w(self) -> float | None:
        """Mean power while training [W], of the whole epoch where no loader counted samples; None where unknown."""
        energy_j, time_s = (self.j_per_sample, self.s_per_sample) if self.s_per_sample else (self.rest_j, self.rest_s)
        return energy_j / time_s if energy_j and time_s else None

    def epoch_cost(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """EpochCost [J] for a slice of this many samples (Eq. 7); None where the size or the energy is unknown."""
        if (weights.eta > 0 and self.j_per_sample is None) or (samples_per_epoch is None and self.s_per_sample > 0):
            return None
        rest = weights.cost(self.rest_j or 0.0, self.rest_s) if self.rest_j or self.rest_s else 0.0
        return weights.cost(self.j_per_sample, self.s_per_sample) * (samples_per_epoch or 0.0) + rest


def _sum(*parts: float | None) -> float:
    """The sum of those that are known."""
    return sum(part for part in parts if part is not None)


def _split(
    samples: int | None, epochs: float | None, total: float | None, rest: float | None, excess: float
) -> tuple[float, float] | None:
    """(per sample, per epoch) of energy or time without the excess; None, never 0, where they are unknown."""
    if total is None or not epochs:
        return None
    spent, rest = total - excess, rest or 0.0
    if not samples:
        return (0.0, spent / epochs) if spent > 0 else None
    return ((spent - rest) / samples, rest / epochs) if spent > rest else None
