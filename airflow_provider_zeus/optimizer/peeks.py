"""When a look at an EpochCost is worth its price. Standard library only."""

from __future__ import annotations

PEEK_S = 10.0  # most seconds that a peek may train; never longer than one epoch
SHARE = 0.05  # of the run before it that a peek may take


def worth_a_peek(run_s: float, epoch_s: float) -> bool:
    """Whether peeks follow a kept attempt that took so long [s], an epoch of it so long [s].

    Where a run is short beside a peek, the first epoch of a real try tells EpochCost as cheaply, and tells of Epochs
    besides.
    """
    return min(PEEK_S, epoch_s) <= SHARE * run_s
