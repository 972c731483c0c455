"""Processes that train together: the place of this one among them, and their exchange of figures.

The place comes from the environment variables of torchrun: ``RANK``, ``WORLD_SIZE``,
``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``. The exchange uses the process group that the training itself
initialises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.groups import known_values, of_all
from airflow_provider_zeus.model.trial import DeviceInfo, Observation
from airflow_provider_zeus.power.meter import difference

_BY_TORCHRUN = "start the processes by torchrun, which sets it"


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together.

    Rank 0 decides and writes; the first one of a host measures it.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Read the environment; one process without ``WORLD_SIZE``.

        Raises JobSpecError if values do not fit.
        """
        size = _number(environ, "WORLD_SIZE", 1)
        if size <= 1:
            return cls()
        rank = _number(environ, "RANK")
        # Without either, each process is the only one of its host, as when a Kubernetes operator
        # sets the variables.
        local_rank = _number(environ, "LOCAL_RANK", 0)
        local_size = _number(environ, "LOCAL_WORLD_SIZE", None if "LOCAL_RANK" in environ else 1)
        for name, value, below in (("RANK", rank, size), ("LOCAL_RANK", local_rank, local_size)):
            if value >= below:
                raise JobSpecError.of(
                    name, value, f"there are {below} processes, from 0", _BY_TORCHRUN
                )
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
        """How many hosts train together, each with as many processes as this one; the last may have
        fewer.
        """
        return -(-self.size // self.local_size)

    def share(self, batch_size: int) -> int:
        """The part of a global batch size that one process trains [samples]."""
        return batch_size // self.size

    def check(self, batch_sizes: Sequence[int]) -> None:
        """Raises JobSpecError if a batch size cannot be divided over the processes."""
        # The sum over processes is the batch size that is compared, so none may be rounded.
        odd = [size for size in batch_sizes if size % self.size]
        if odd:
            raise JobSpecError.of(
                "ZeusJob.batch_sizes",
                list(batch_sizes),
                f"{', '.join(map(str, odd))} cannot be divided over {self.size} processes: a batch "
                "size is that of all of them together",
                f"Use multiples of {self.size}, or start another number of processes",
            )

    def exchange(self, row: Sequence[float | None]) -> list[list[float | None]]:
        """The rows of all processes, by one all-reduce: the same result in each. Every process
        calls it equally often.

        Raises JobSpecError: there is no process group, or not the one of the environment; and what
        the transport raises if another process has died.
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
                "initialise it from the environment, by init_process_group() without rank and "
                "world_size",
            )
        # NCCL, for example, takes no tensor of the processor's memory.
        kinds = [part.partition(":")[0] for part in group.get_backend_config().split(",")]
        table = torch.zeros(
            self.size, len(row), dtype=torch.float64, device="cpu" if "cpu" in kinds else kinds[0]
        )
        numbers = [math.nan if value is None else value for value in row]  # a tensor holds no None
        table[self.rank] = torch.tensor(numbers, dtype=torch.float64)
        group.all_reduce(table)  # of zeros and one row each: nothing is rounded
        return [[_known(number) for number in row] for row in table.tolist()]

    @property
    def ready(self) -> bool:
        """Whether the process group exists (and is not yet destroyed)."""
        import torch.distributed as group

        return group.is_available() and group.is_initialized()


ALONE = Ranks()


def _known(number: float) -> float | None:
    """A figure of another process; NaN is none."""
    return None if math.isnan(number) else number


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
    epochs: float
    has_left: float
    unreported: float  # the error has to come on all ranks, or the others hang
    reached: float
    resumed: float
    late: float  # by the clock of rank 0: others would differ, and leave the loop elsewhere
    metric: float | None
    target_value: float | None
    samples: float | None
    samples_per_epoch: float | None
    profiled: float
    cost_per_sample: float | None
    measures: float  # one process of a host measures it, or its energy would count twice
    source: float  # an exchange holds numbers alone
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
    """Raise ReportError if some processes have left the loop and others go on, or epochs differ."""
    leavers = [rank for rank, report in enumerate(reports) if report.has_left]
    if leavers and len(leavers) < len(reports):
        raise ReportError(
            f"rank {', '.join(map(str, leavers))} of {len(reports)} left the loop over "
            "run.epochs() early, and the others go on: leave it on every rank in the same epoch, "
            "or on none."
        )
    places = [(int(report.attempt), int(report.epochs)) for report in reports]
    if not leavers and len(set(places)) > 1:
        raise ReportError(
            f"the ranks are in different epochs, (attempt, epochs done) = {places}: loop over "
            "run.epochs() on every rank, with equally many batches."
        )


def gathered(own: Observation, reports: Sequence[RankReport]) -> Observation:
    """The observation of one process with the sums of all: energy and MAXPOWER are added, time is
    the longest one.
    """
    first = reports[0]
    device = device_of(reports)
    sums: dict[str, float | None] = {name: _sum(reports, name) for name in ENERGIES}
    if device.energy_source is None and first.source:
        sums = dict.fromkeys(ENERGIES)
    time_s = max((report.time_s for report in reports if report.time_s is not None), default=None)
    reasons: dict[str, str] = dict(own.reasons)
    several_hosts = "the GPUs train on several hosts, and each host knows only its own"
    is_one_host = device.count == own.device_count
    each_j = None
    if is_one_host and sums["energy_j"] is not None:
        each_j = own.gpu_energy_j
    if own.time_s is not None:
        missing = [name for name in ENERGIES if sums[name] is None]
        unlike = "not every host measures it in the same way"
        reasons = {**dict.fromkeys(missing, unlike), **reasons}
        if device.count > 1 and each_j is None:
            reasons["gpu_energy_j"] = reasons.get("energy_j", several_hosts)
    busy = own.gpu_busy
    if busy is not None and not is_one_host:
        busy = None
        reasons["gpu_busy"] = several_hosts
    return replace(
        own,
        **sums,  # type: ignore[arg-type]  # its values are floats or None
        samples=int(first.samples or 0),
        samples_per_epoch=first.samples_per_epoch,
        epochs=first.epochs,
        time_s=time_s,
        rest_s=_rest_s(reports, time_s),
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


def _rest_s(reports: Sequence[RankReport], longest_s: float | None) -> float | None:
    """The part [s] of the longest time that the longest training steps leave."""
    differences = (difference(report.time_s, report.rest_s) for report in reports)
    trained_s = known_values(differences)
    if longest_s is None or not trained_s:
        return None
    return max(longest_s - max(trained_s), 0.0)


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
    """Sum over the hosts; None if one of them lacks the figure."""
    return of_all(sum, [getattr(report, name) for report in reports if report.measures])
