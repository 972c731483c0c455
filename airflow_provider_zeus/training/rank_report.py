"""What the processes of a distributed training exchange at the begin of each epoch, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_zeus.model.trial import DeviceInfo, Observation

ENERGY_SOURCES = (None, "nvml_counter", "nvml_poll", "rapl", "estimate", "simulated")
ENERGIES = ("energy_j", "rest_j", "excess_j")


class RankReport(NamedTuple):
    """Figures of one process. A missing figure is NaN; flags are 0 and 1."""

    attempt: float
    epochs: float  # done
    left: float  # it has left the loop
    unreported: float  # its last epoch ended without a report
    reached: float
    resumed: float  # epochs that the checkpoint had trained
    late: float  # the attempt after this one needs the time that is left until the deadline
    metric: float
    target_value: float
    samples: float
    samples_per_epoch: float
    profiled: float
    cost_per_sample: float  # at the chosen limit, if there is one
    measures: float  # it measures its host; of the other processes only time counts
    source: float  # position in ENERGY_SOURCES
    devices: float
    max_power_w: float
    energy_j: float
    rest_j: float
    excess_j: float
    time_s: float
    rest_s: float
    excess_s: float


def check_in_step(reports: Sequence[RankReport]) -> None:
    """Raise RuntimeError where some processes have left the loop and others go on, or epochs differ."""
    left = [rank for rank, report in enumerate(reports) if report.left]
    if left and len(left) < len(reports):
        raise RuntimeError(
            f"rank {', '.join(map(str, left))} of {len(reports)} left the loop over run.epochs() early, and the "
            "others go on: leave it on every rank in the same epoch, or on none."
        )
    places = [(int(report.attempt), int(report.epochs)) for report in reports]
    if not left and len(set(places)) > 1:
        raise RuntimeError(
            f"the ranks are in different epochs, (attempt, epochs done) = {places}: loop over run.epochs() on "
            "every rank, with equally many batches."
        )


def gathered(own: Observation, reports: Sequence[RankReport]) -> Observation:
    """The observation of one process with the sums of all: energy and MAXPOWER are added, time is the longest one."""
    first, device = reports[0], device_of(reports)
    energy_j, rest_j, excess_j = (_sum(reports, name) for name in ENERGIES)
    if device.energy_source is None and first.source:
        energy_j = rest_j = excess_j = None
    time_s = _longest(report.time_s for report in reports)
    train_s = _longest(report.time_s - report.rest_s for report in reports)
    missing = {name for name, value in zip(ENERGIES, (energy_j, rest_j, excess_j), strict=True) if value is None}
    reasons = dict(own.reasons)
    if own.time_s is not None:
        reasons |= dict.fromkeys(missing - set(reasons), "not every host measures it in the same way")
    each_j = own.gpu_energy_j if device.count == own.device_count and energy_j is not None else None
    if each_j is None and device.count > 1 and own.time_s is not None:
        several_hosts = "the GPUs train on several hosts, and each host knows only its own"
        reasons["gpu_energy_j"] = reasons.get("energy_j") or several_hosts
    busy = own.gpu_busy if device.count == own.device_count else None
    if busy is None and own.gpu_busy is not None:
        reasons["gpu_busy"] = "the GPUs train on several hosts, and each host knows only its own"
    return replace(
        own,
        samples=int(first.samples),
        samples_per_epoch=from_nan(first.samples_per_epoch),
        epochs=first.epochs,
        energy_j=energy_j,
        rest_j=rest_j,
        excess_j=excess_j,
        time_s=time_s,
        rest_s=None if time_s is None or train_s is None else max(time_s - train_s, 0.0),
        excess_s=from_nan(first.excess_s),
        gpu_energy_j=each_j,
        gpu_busy=busy,
        device_count=device.count,
        max_power_w=device.max_power_w,
        energy_source=device.energy_source,
        reasons=reasons,
    )


def device_of(reports: Sequence[RankReport]) -> DeviceInfo:
    """The devices of all hosts as one, as far as costs need it."""
    measuring = [report for report in reports if report.measures]
    sources = {report.source for report in measuring}
    return DeviceInfo(
        model="",
        count=int(sum(report.devices for report in measuring)),
        max_power_w=_sum(reports, "max_power_w"),
        energy_source=ENERGY_SOURCES[int(sources.pop())] if len(sources) == 1 else None,
    )


def or_nan(value: float | None) -> float:
    """A figure as a report holds it."""
    return math.nan if value is None else value


def from_nan(value: float) -> float | None:
    """A figure out of a report."""
    return None if math.isnan(value) else value


def _sum(reports: Sequence[RankReport], name: str) -> float | None:
    """Sum over the hosts; None where one of them lacks the figure."""
    return from_nan(sum(getattr(report, name) for report in reports if report.measures))


def _longest(times_s: Iterable[float]) -> float | None:
    return max((time_s for time_s in times_s if not math.isnan(time_s)), default=None)
