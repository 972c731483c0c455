"""What a running attempt is checked against: the bounds of its plan, and the batch size that was chosen.

An exploratory attempt is given up when it passes a bound (section 4.4). An attempt whose steps do not add up to its
batch size teaches nothing about it; there a false alarm is worse than a miss.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of one attempt, in epochs and in cost [J]. Cost bounds scale with the size of this data slice."""

    planned: PlannedAttempt
    weights: Weights

    def passed(self, so_far: Observation, *, epoch_cost: float | None, at_end_of_epoch: bool) -> str | None:
        """Return why the attempt must be given up now; None while it may go on.

        At the end of an epoch the next one is counted as spent already, so that it does not begin if it cannot be
        finished.

        :param epoch_cost: EpochCost(b) [J] from a complete profile; None while there is none.
        """
        planned, text = self.planned, self.weights.text
        epochs, size, assumed_size = so_far.epochs or 0.0, so_far.samples_per_epoch, planned.bound_samples_per_epoch
        scale = size / assumed_size if size and assumed_size else 1.0
        highest = None if planned.max_epoch_cost is None else planned.max_epoch_cost * scale
        if planned.bound_epochs is not None and epochs + at_end_of_epoch > planned.bound_epochs + 1e-9:
            return f"{epochs:.3g} epochs without reaching the target; the bound is {planned.bound_epochs:.3g}"
        if epoch_cost is not None and highest is not None and epoch_cost > highest:
            return f"an epoch costs {text(epoch_cost)}; above {text(highest)} it is not worth trying"
        if planned.bound_cost is None or so_far.time_s is None or (self.weights.eta > 0 and so_far.energy_j is None):
            return None
        # The excess of profiling is not the batch size's fault.
        energy_j = None if so_far.energy_j is None else so_far.energy_j - (so_far.excess_j or 0.0)
        spent = self.weights.cost(energy_j, so_far.time_s - (so_far.excess_s or 0.0))
        next_epoch = spent / epochs if at_end_of_epoch and epochs else 0.0
        bound = planned.bound_cost * scale
        if spent + next_epoch <= bound:
            return None
        return f"{text(spent)} spent without reaching the target; the bound is {text(bound)}"


CLOSE = 1.25  # sizes that differ by less than this factor count as the same


class BatchSizeCheck:
    """Adds up the steps whose size is not the chosen one; those of the chosen size cost nothing.

    A loop that accumulates gradients may tell each of its parts. Where torch is loaded, its own count of optimizer
    steps shows that: it is asked for from the first step of another size on, by a hook that :meth:`close` removes.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._steps = self._samples = self._largest = 0  # of another size
        self._optimizer_steps: Counter[int] = Counter()  # by optimizer: a training may have several
        self._hooks: contextlib.ExitStack | None = None  # None until torch is asked

    def add(self, samples: int) -> None:
        """Count a step of another size."""
        self._steps, self._samples = self._steps + 1, self._samples + samples
        self._largest = max(self._largest, samples)
        if self._hooks is None:
            self._hooks = contextlib.ExitStack()
            torch_optimizer = sys.modules.get("torch.optim.optimizer")
            register = getattr(torch_optimizer, "register_optimizer_step_post_hook", None)
            if register is not None:
                with contextlib.suppress(Exception):  # a torch that refuses it: the check goes without
                    self._hooks.callback(register(self._count).remove)

    def why_not_used(self, samples: int, epochs: int, samples_per_epoch: float | None) -> str | None:
        """Why this attempt shows nothing of its batch size; None where it does, or where that cannot be told.

        :param samples: told in all.
        :param epochs: that ended with a report.
        """
        b = self.batch_size
        if not samples:
            return f"no step was told, so nothing shows that batch size {b} was used" if epochs else None
        even = 0.8  # mean size of a step over the largest one, from which on the steps are of one size
        if 2 * self._samples < samples or self._samples < even * self._steps * self._largest:
            return None  # most steps are of the chosen size, or sizes vary
        if (samples_per_epoch or 0.0) < 2 * max(b, self._largest) or is_close(self._largest, b):
            return None  # the last batch of an epoch may be any size
        if any(is_close(self._samples / n, b) for n in self._optimizer_steps.values()):
            return None  # gradients were accumulated
        return f"its steps had {self._largest:,} samples each, and not the {b:,} of the chosen batch size"

    def close(self) -> None:
        """Remove the hook."""
        if self._hooks is not None:
            self._hooks.close()

    def _count(self, optimizer: Any, args: object, kwargs: object) -> None:
        self._optimizer_steps[id(optimizer)] += 1


def is_close(size: float, other: float) -> bool:
    """Whether two sizes count as the same."""
    return other / CLOSE < size < other * CLOSE
