"""What the jobs of a family tell each other about the batch size. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a job shares: the shape of its curve of log Epochs, at no level, and what an epoch cost it.

    It stands in the job's row. Another job reads numbers of two curves there and nothing else.
    """

    sizes: tuple[int, ...]
    precision: tuple[float, ...]  # information about c: (size, size), row by row
    shift: tuple[float, ...]  # the same times the curve
    reached: tuple[int, ...] = ()  # sizes that have reached the target
    device: str = ""  # that measured the costs
    eta: float = 0.5
    cost_sizes: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()  # EpochCost [J] of these sizes

    reads_newer: ClassVar[bool] = True

    @property
    def learnt(self) -> float:
        """How much is known: sum of its information about each size."""
        return sum(self.precision[:: len(self.sizes) + 1])

    def __post_init__(self) -> None:
        n = len(self.sizes)
        if (len(self.precision), len(self.shift), len(self.costs)) != (n * n, n, len(self.cost_sizes)):
            raise ValueError("the lengths of the lists do not fit each other")
        if not n or min(self.sizes + self.cost_sizes) < 1 or min(self.costs, default=1.0) <= 0:
            raise ValueError("a batch size or a cost is not above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the others told a job, as its decision used it: by the hypothesis that they are no relatives, and others."""

    members: int
    sizes: tuple[int, ...]
    log_weights: tuple[float, ...]  # of each hypothesis, no relatives first
    precisions: tuple[tuple[float, ...], ...]  # of each other hypothesis, as in :class:`Told`
    shifts: tuple[tuple[float, ...], ...]
    reached: tuple[int, ...] = ()
    tried: tuple[int, ...] = ()  # sizes that enough relatives try now: they are about to tell the outcome
    cost_sizes: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()  # EpochCost of these sizes against that of one of them

    reads_newer: ClassVar[bool] = True
