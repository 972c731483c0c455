"""Energy-time cost (Eq. 1 to 3, 5 and 7 of the paper).

Energies [J], times [s], powers [W], costs [J].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, PlannedAttempt, ProfileSample
from airflow_provider_zeus.units import costs_as

# Neighbouring limits differ by a few per cent: J and s per sample whose 95 % confidence interval
# has a wider half [relative] would not tell which one is better.
HALF_WIDTH = 0.02
# NVML refreshes a counter every 20 to 100 ms: so much of a window may miss its energy.
TICK_S = 0.1


class Rate(NamedTuple):
    """Energy [J] and time [s] of one sample."""

    energy_j: float
    time_s: float


def permitted(
    rates: Mapping[float, Rate], slowdown: float | None, slack: Mapping[float, float] | None = None
) -> Mapping[float, Rate]:
    """The rates of the limits [W] at which a sample takes at most ``slowdown`` times as long as at
    the highest one.

    :param slack: limit [W] -> how much more it may slow training [relative], if its time is
        uncertain.
    """
    if slowdown is None or not rates:
        return rates
    highest_w = max(rates)
    allowed_s = slowdown * rates[highest_w].time_s
    more = slack or {}
    most_s = {w: allowed_s * (1 + more.get(w, 0.0)) for w in rates}
    # the highest limit measured is what others are compared with
    most_s[highest_w] = math.inf
    return {w: rate for w, rate in rates.items() if rate.time_s <= most_s[w]}


class Weights(NamedTuple):
    """How energy and time are weighed: eta and MAXPOWER [W] of Eq. 2.

    ``time_alone``: nothing measures energy, or MAXPOWER is needed and not known. Then eta counts
    as 0, and costs are seconds.
    ``slowdown``: how many times as long as at the highest limit measured training may take at the
    best one.
    """

    eta: float
    max_power_w: float
    time_alone: bool = False
    slowdown: float | None = None  # None: no deadline, so training may take as long as it takes

    @classmethod
    def of(cls, job: ZeusJob, device: DeviceInfo | None) -> Weights:
        """Weights of a job on a device; the job's ``max_power_w`` comes before the device's."""
        # Seconds still rank batch sizes where nothing measures energy.
        time_alone = cls(0.0, 1.0, time_alone=True)
        if device is None or device.energy_source is None:
            return time_alone
        # A task that is only measured has no cost to weigh: its energy is told as it is.
        is_measured_alone = job.mode == "measure" and not job.chooses_size
        eta = 1.0 if is_measured_alone else job.eta
        max_power_w = job.max_power_w or device.max_power_w
        # Without MAXPOWER energy and time have no common unit.
        if max_power_w is None and eta < 1:
            return time_alone
        return cls(eta, max_power_w or 1.0)  # at eta 1 MAXPOWER is not used

    @property
    def unit(self) -> str:
        """Of a cost: "J" of Eq. 2, or "s" if time alone counts."""
        if self.time_alone:
            return "s"
        return "J"

    @property
    def one_alone(self) -> str:
        """The only part of a cost, "energy" or "time"; empty if it weighs both."""
        if self.time_alone:
            return "time"
        if self.eta == 1:
            return "energy"
        return ""

    @property
    def split(self) -> str:
        """How a cost weighs energy against time, in words."""
        if self.eta == 0.5:
            return "half and half"
        return f"{100 * self.eta:g} to {100 - 100 * self.eta:g}"

    def hurried(self) -> Weights:
        """The weights if time alone decides."""
        if self.time_alone:
            return self
        return self._replace(eta=0.0, slowdown=None)

    @property
    def fastest(self) -> bool:
        """Whether the best limit is the one with the shortest time, regardless of energy."""
        return self.eta == 0

    def cost(self, energy_j: float | None, time_s: float) -> float:
        """Cost [J] (Eq. 2): eta x energy + (1 - eta) x MAXPOWER x time.

        Energy may be None at eta 0 alone.
        """
        # Energy may be unknown then, and 0 times unknown is 0.
        if self.eta == 0:
            return self.max_power_w * time_s
        if energy_j is None:
            raise ValueError("energy_j is None, but eta is above 0")
        return self.eta * energy_j + (1 - self.eta) * self.max_power_w * time_s

    def best_w(self, rates: Mapping[float, Rate]) -> float | None:
        """The best power limit [W], by Eq. 7. Of two equal limits the lower; None without any.

        :param rates: power limit [W] -> (J, s) per sample.
        """
        # A deadline comes before energy: too slow limits are no choice.
        allowed = permitted(rates, self.slowdown)
        return min(
            allowed, key=lambda limit_w: (self.cost(*allowed[limit_w]), limit_w), default=None
        )

    def text(self, cost: float) -> str:
        """A cost as text, for example "2.74 Wh"; ``of_both`` says once in a sentence the meaning
        of costs of.
        """
        return costs_as(self.unit)(cost)

    @property
    def of_both(self) -> str:
        """Words after a cost of energy and time, which would be taken for energy; else empty."""
        if self.one_alone:
            return ""
        return " of energy and time together"


def hurried(weights: Weights, planned: PlannedAttempt) -> Weights:
    """The weights with the slowdown that the decision allows; those of time alone if it is in a
    hurry.
    """
    in_time = planned.in_time
    # Without energy the fastest limit is chosen anyhow.
    if in_time is None or weights.time_alone:
        return weights
    if in_time.slowdown is None:
        return weights
    if in_time.hurry:
        return weights.hurried()
    return weights._replace(slowdown=in_time.slowdown)


def weights_of(job: ZeusJob, seen: Observation) -> Weights:
    """The weights of energy and time (Eq. 2) for this job on the device of an observation."""
    unknown = DeviceInfo(
        model="unknown", max_power_w=seen.max_power_w, energy_source=seen.energy_source
    )
    return Weights.of(job, seen.device or unknown)


def observed_cost(observation: Observation, weights: Weights) -> float | None:
    """Cost [J] of a trial, profiling included (Eq. 2); None if a figure is missing."""
    # An attempt without a time has no cost, and 0 would make it look free.
    if observation.time_s is None:
        return None
    if weights.eta > 0 and observation.energy_j is None:
        return None
    return weights.cost(observation.energy_j, observation.time_s)


def best_limit(profile: Iterable[ProfileSample], weights: Weights) -> tuple[float, float] | None:
    """(power limit [W], cost per sample [J]) of the best limit measured; None if none was measured.

    Samples of one limit are added before limits are compared (:meth:`Weights.best_w`).
    """
    rates: dict[float, Rate] = {}
    for total in summed(profile):
        # 0 J: the window was too short for the counter
        has_energy = total.energy_j > 0 or weights.fastest
        if has_energy and total.samples > 0 and total.time_s > 0:
            rate = Rate(total.energy_j / total.samples, total.time_s / total.samples)
            rates[total.limit_w] = rate
    best_w = weights.best_w(rates)
    if best_w is None:
        return None
    return best_w, weights.cost(*rates[best_w])


class Rates(NamedTuple):
    """Energy [J] and time [s] of one batch size, per sample trained and per epoch outside training.

    If no data loader counted samples, everything counts per epoch. ``epochs``: over how many they
    were measured.
    """

    j_per_sample: float | None
    s_per_sample: float
    rest_j: float | None  # validation and waiting do not grow with the samples
    rest_s: float
    epochs: float
    limit_w: float | None = None  # rates at two limits do not compare

    @classmethod
    def of(cls, o: Observation) -> Rates | None:
        """Rates of one trial, without profiling's excess and pauses; None if no time or epoch was
        measured.
        """
        epochs = o.epochs
        if not epochs and o.samples and o.samples_per_epoch:
            epochs = o.samples / o.samples_per_epoch
        if not epochs:
            return None
        parts = _Parts(o.samples, epochs)
        time = parts.of(o.time_s, rest=o.rest_s, beside=(o.excess_s, o.paused_s))
        if time is None:
            return None
        energy = parts.of(o.energy_j, rest=o.rest_j, beside=(o.excess_j, o.paused_j))
        return cls(
            j_per_sample=None if energy is None else energy.per_sample,
            s_per_sample=time.per_sample,
            rest_j=None if energy is None else energy.per_epoch,
            rest_s=time.per_epoch,
            epochs=epochs,
            limit_w=o.power_limit_w,
        )

    @property
    def power_w(self) -> float | None:
        """Mean power while training [W], of the whole epoch if no loader counted samples; None if
        not known.
        """
        energy_j = self.j_per_sample
        time_s = self.s_per_sample
        if not time_s:
            energy_j = self.rest_j
            time_s = self.rest_s
        if energy_j and time_s:
            return energy_j / time_s
        return None

    def epoch_cost(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """EpochCost [J] for a slice of this many samples (Eq. 7); None if its size or the energy is
        not known.
        """
        if weights.eta > 0 and self.j_per_sample is None:
            return None
        # A rate per sample gives no cost of an epoch without its size.
        if samples_per_epoch is None and self.s_per_sample > 0:
            return None
        per_sample = weights.cost(self.j_per_sample, self.s_per_sample)
        rest = weights.cost(self.rest_j or 0.0, self.rest_s)
        return per_sample * (samples_per_epoch or 0.0) + rest


class _Part(NamedTuple):
    """Energy or time."""

    per_sample: float
    per_epoch: float


class _Parts(NamedTuple):
    """How much a trial trained."""

    samples: int | None
    epochs: float

    def of(
        self, total: float | None, *, rest: float | None, beside: Iterable[float | None]
    ) -> _Part | None:
        """The parts of energy or time; None, never 0, if they are not known.

        :param rest: in all epochs, outside training steps.
        :param beside: measurements that count for no batch size.
        """
        if total is None:
            return None
        # Profiling and pauses happen once, whatever the batch size.
        spent = total - sum(known_values(beside))
        rest = rest or 0.0
        if not self.samples:
            if spent > 0:
                return _Part(0.0, spent / self.epochs)
            return None
        # More was validated than trained: such an epoch says nothing of a batch size.
        if spent <= rest:
            return None
        return _Part((spent - rest) / self.samples, rest / self.epochs)
