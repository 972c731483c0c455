"""Processes that train together: the place of this one among them, and their exchange of figures.

The place comes from the environment variables of torchrun: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
``LOCAL_WORLD_SIZE``. The exchange uses the process group that the training itself initialises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from airflow_provider_zeus.errors import JobSpecError

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

    def exchange(self, row: Sequence[float]) -> list[list[float]]:
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
        table[self.rank] = torch.tensor(row, dtype=torch.float64)
        group.all_reduce(table)  # of zeros and one row each: nothing is rounded
        return table.tolist()

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
