"""Processes that train together: the place of this one among them, and their exchange of figures.

The place comes from the environment variables of torchrun: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
``LOCAL_WORLD_SIZE``. The exchange uses the process group that the training itself initialises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.trial import DeviceInfo, Observation

_BY_TORCHRUN = "start the processes by torchrun, which sets it"


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together. Rank 0 decides and writes; the first one of a host measures it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Read the environment; one process without ``WORLD_SIZE``. Raises JobSpecError where values do not fit."""
        size = _number(environ, "WORLD_SIZE", 1)
        if size <= 1:
            return cls()
        rank = _number(environ, "RANK")
        # Without either, each process is the only one of its host, as where a Kubernetes operator sets the variables.
        local_rank = _number(environ, "LOCAL_RANK", 0)
        local_size = _number(environ, "LOCAL_WORLD_SIZE", None if "LOCAL_RANK" in environ else 1)
        for name, value, below in (("RANK", rank, size), ("LOCAL_RANK", local_rank, local_size)):
            if value >= below:
                raise JobSpecError.of(name, value, f"there are {below} processes, from 0", _BY_TORCHRUN)
        return cls(rank, size, local_rank, local_size)

    @property
    def several(self) -> bool:
        """Whether more than one process trains."""
        return self.size > 1

    @property
    def measures(self) -> bool:
        """Whether this process measures its host, for all processes of the host."""
        return self.local_rank == 0

    @property
    def hosts(self) -> int:
        """How many hosts train together, each with as many processes as this one; the last may have fewer."""
        return -(-self.size // self.local_size)

    def share(self, batch_size: int) -> int:
        """The part of a global batch size that one process trains [samples]."""
        return batch_size // self.size

    def check(self, batch_sizes: Sequence[int]) -> None:
        """Raises JobSpecError where a batch size cannot be divided over the processes."""
        left = [size for size in batch_sizes if size % self.size]
        if left:
            raise JobSpecError.of(
                "ZeusJob.batch_sizes",
                list(batch_sizes),
                f"{', '.join(map(str, left))} cannot be divided over {self.size} processes: a batch size is that of "
                "all of them together",
                f"Use multiples of {self.size}, or start another number of processes",
            )

    def exchange(self, row: Sequence[float | None]) -> list[list[float | None]]:
        """The rows of all processes, by one all-reduce: the same result in each. Every process calls it equally often.

        Raises JobSpecError: there is no process group, or not the one of the environment; and what the transport
        raises where another process has died.
        """
        import torch
        import torch.distributed as group

        if not self.ready:
            raise JobSpecError.of(
                "torch.distributed",
                None,
                f"is not initialised, and {self.size} processes train together (WORLD_SIZE)",
                "call torch.distributed.init_process_group() before the loop over run.epochs()",
            )
        if (group.get_rank(), group.get_world_size()) != (self.rank, self.size):
            raise JobSpecError.of(
                "torch.distributed",
                f"rank {group.get_rank()} of {group.get_world_size()}",
                f"RANK and WORLD_SIZE say rank {self.rank} of {self.size}",
                "initialise it from the environment, by init_process_group() without rank and world_size",
            )
        kinds = [part.partition(":")[0] for part in group.get_backend_config().split(",")]
        table = torch.zeros(self.size, len(row), dtype=torch.float64, device="cpu" if "cpu" in kinds else kinds[0])
        table[self.rank] = torch.tensor([math.nan if each is None else each for each in row], dtype=torch.float64)
        group.all_reduce(table)  # of zeros and one row each: nothing is rounded
        return [[None if math.isnan(each) else each for each in row] for row in table.tolist()]

    @property
    def ready(self) -> bool:
        """Whether the process group exists (and is not yet destroyed)."""
        import torch.distributed as group

        return group.is_available() and group.is_initialized()


ALONE = Ranks()


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdigit():
        raise JobSpecError.of(name, environ.get(name), "not the number of a process", _BY_TORCHRUN)
    return int(text)


ENERGY_SOURCES = (None, "nvml_counter", "nvml_poll", "rapl", "estimate", "simulated")
ENERGIES = ("energy_j", "rest_j", "excess_j")


class RankReport(NamedTuple):
    """Figures of one process. Flags are 0 and 1."""

    attempt: float
    epochs: float  # done
    left: float  # it has left the loop
    unreported: float  # its last epoch ended without a report
    reached: float
    resumed: float  # epochs that the checkpoint had trained
    late: float  # the attempt after this one needs the time that is left until the deadline
    metric: float | None
    target_value: float | None
    samples: float | None
    samples_per_epoch: float | None
    profiled: float
    cost_per_sample: float | None  # at the chosen limit, if there is one
    measures: float  # it measures its host; of the other processes only time counts
    source: float  # position in ENERGY_SOURCES
    devices: float
    max_power_w: float | None
    energy_j: float | None
    rest_j: float | None
    excess_j: float | None
    paused_j: float | None
    time_s: float | None
    rest_s: float | None
    excess_s: float | None
    paused_s: float | None


def check_in_step(reports: Sequence[RankReport]) -> None:
    """Raise ReportError where some processes have left the loop and others go on, or epochs differ."""
    left = [rank for rank, report in enumerate(reports) if report.left]
    if left and len(left) < len(reports):
        raise ReportError(
            f"rank {', '.join(map(str, left))} of {len(reports)} left the loop over run.epochs() early, and the "
            "others go on: leave it on every rank in the same epoch, or on none."
        )
    places = [(int(report.attempt), int(report.epochs)) for report in reports]
    if not left and len(set(places)) > 1:
        raise ReportError(
            f"the ranks are in different epochs, (attempt, epochs done) = {places}: loop over run.epochs() on "
            "every rank, with equally many batches."
        )


def gathered(own: Observation, reports: Sequence[RankReport]) -> Observation:
    """The observation of one process with the sums of all: energy and MAXPOWER are added, time is the longest one."""
    first, device = reports[0], device_of(reports)
    energy_j, rest_j, excess_j = (_sum(reports, name) for name in ENERGIES)
    if device.energy_source is None and first.source:
        energy_j = rest_j = excess_j = None
    timed = [(report.time_s, report.rest_s) for report in reports if report.time_s is not None]
    time_s = max((time_s for time_s, _ in timed), default=None)
    train_s = max((time_s - rest_s for time_s, rest_s in timed if rest_s is not None), default=None)
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
        samples=int(first.samples or 0),
        samples_per_epoch=first.samples_per_epoch,
        epochs=first.epochs,
        energy_j=energy_j,
        rest_j=rest_j,
        excess_j=excess_j,
        time_s=time_s,
        rest_s=None if time_s is None or train_s is None else max(time_s - train_s, 0.0),
        excess_s=first.excess_s,
        paused_j=_sum(reports, "paused_j") if first.paused_s else None,
        paused_s=first.paused_s,
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


def _sum(reports: Sequence[RankReport], name: str) -> float | None:
    """Sum over the hosts; None where one of them lacks the figure."""
    values = [getattr(report, name) for report in reports if report.measures]
    return None if None in values else sum(values)
