"""Whether the steps of an attempt add up to the batch size that was chosen. A false alarm is worse than a miss."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

CLOSE = 1.25  # sizes that differ by less than this factor count as the same
EVEN = 0.8  # mean size of a step over the largest one, from which on the steps are of one size


class BatchSizeCheck:
    """Adds up the steps whose size is not the chosen one; those of the chosen size cost nothing.

    A loop that accumulates gradients may tell each of its parts. Where torch is loaded, its own count of optimizer
    steps shows that: it is asked for from the first step of another size on, by a hook that :meth:`close` removes.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._steps = self._samples = self._largest = 0  # of another size
        self._optimizer_steps: Counter[int] = Counter()  # by optimizer: a training may have several
        self._remove: Callable[[], None] | None = None

    def add(self, samples: int) -> None:
        """Count a step of another size."""
        self._steps, self._samples = self._steps + 1, self._samples + samples
        self._largest = max(self._largest, samples)
        if self._remove is None:
            self._hook()

    def why_not_used(self, samples: int, epochs: int, samples_per_epoch: float | None) -> str | None:
        """Why this attempt shows nothing of its batch size; None where it does, or where that cannot be told.

        :param samples: told in all.
        :param epochs: that ended with a report.
        """
        b = self.batch_size
        if not samples:
            return f"no step was told, so nothing shows that batch size {b} was used" if epochs else None
        if 2 * self._samples < samples or self._samples < EVEN * self._steps * self._largest:
            return None  # most steps are of the chosen size, or sizes vary
        if (samples_per_epoch or 0.0) < 2 * max(b, self._largest) or is_close(self._largest, b):
            return None  # the last batch of an epoch may be any size
        if any(is_close(self._samples / n, b) for n in self._optimizer_steps.values()):
            return None  # gradients were accumulated
        return f"its steps had {self._largest:,} samples each, and not the {b:,} of the chosen batch size"

    def close(self) -> None:
        """Remove the hook."""
        if self._remove is not None:
            self._remove()

    def _hook(self) -> None:
        self._remove = _nothing
        torch_optimizer = sys.modules.get("torch.optim.optimizer")
        register = getattr(torch_optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            with contextlib.suppress(Exception):  # a torch that refuses it: the check goes without
                self._remove = register(self._count).remove

    def _count(self, optimizer: Any, args: object, kwargs: object) -> None:
        self._optimizer_steps[id(optimizer)] += 1


def is_close(size: float, other: float) -> bool:
    """Whether two sizes count as the same."""
    return other / CLOSE < size < other * CLOSE


def _nothing() -> None:
    pass
