"""What a running attempt is checked against: the bounds of its plan, the batch size that was chosen, and what waiting
for batches takes of it.

An exploratory attempt is given up when it passes a bound (section 4.4). An attempt whose steps do not add up to its
batch size teaches nothing about it; there a false alarm is worse than a miss.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt
from airflow_provider_zeus.units import energy_text, time_text


def bound_passed(
    planned: PlannedAttempt,
    weights: Weights,
    so_far: Observation,
    *,
    epoch_cost: float | None,
    at_end_of_epoch: bool,
) -> str | None:
    """Why an attempt must be given up now, by its bounds in epochs and in cost [J]; None while it may go on.

    Cost bounds scale with the size of this data slice. At the end of an epoch the next one is counted as spent already,
    so that it does not begin if it cannot be finished.

    :param epoch_cost: EpochCost(b) [J] from a complete profile; None while there is none.
    """
    epochs, size, assumed_size = so_far.epochs or 0.0, so_far.samples_per_epoch, planned.bound_samples_per_epoch
    scale = size / assumed_size if size and assumed_size else 1.0
    highest = None if planned.max_epoch_cost is None else planned.max_epoch_cost * scale
    if planned.bound_epochs is not None and epochs + at_end_of_epoch > planned.bound_epochs + 1e-9:
        return f"{epochs:.3g} epochs without reaching the target; the bound is {planned.bound_epochs:.3g}"
    if epoch_cost is not None and highest is not None and epoch_cost > highest:
        return f"an epoch costs {weights.text(epoch_cost)}; above {weights.text(highest)} it is not worth trying"
    if planned.bound_cost is None or so_far.time_s is None or (weights.eta > 0 and so_far.energy_j is None):
        return None
    # The excess of profiling is not the batch size's fault, and a pause is not, either.
    energy_j = so_far.energy_j
    if energy_j is not None:
        energy_j -= (so_far.excess_j or 0.0) + (so_far.paused_j or 0.0)
    spent = weights.cost(energy_j, so_far.time_s - (so_far.excess_s or 0.0) - (so_far.paused_s or 0.0))
    next_epoch = spent / epochs if at_end_of_epoch and epochs else 0.0
    bound = planned.bound_cost * scale
    if spent + next_epoch <= bound:
        return None
    return f"{weights.text(spent)} spent without reaching the target; the bound is {weights.text(bound)}"


class BatchSizeCheck:
    """Adds up the steps whose size is not the chosen one; those of the chosen size cost nothing.

    A loop that accumulates gradients may tell each of its parts: torch's own count of optimizer steps shows that.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._others: Counter[int] = Counter()  # steps of another size, by their samples

    def add(self, samples: int) -> None:
        """Count a step of another size."""
        self._others[samples] += 1

    def why_not_used(
        self, samples: int, epochs: int, samples_per_epoch: float | None, optimizer_steps: Iterable[int] = ()
    ) -> str | None:
        """Why this attempt shows nothing of its batch size; None where it does, or where that cannot be told.

        :param samples: in all.
        :param epochs: that ended with a report.
        :param optimizer_steps: of each of torch's optimizers.
        """
        b = self.batch_size
        if not samples:
            return f"no step was counted, so nothing shows that batch size {b} was used" if epochs else None
        even = 0.8  # share of the samples in steps of one size, from which on the steps are of that size
        size, steps = max(self._others.items(), key=lambda each: each[0] * each[1], default=(b, 0))
        others = sum(each * n for each, n in self._others.items())
        if 2 * others < samples or size * steps < even * others:
            return None  # most steps are of the chosen size, or sizes vary
        if (samples_per_epoch or 0.0) < 2 * max(b, size) or is_close(size, b):
            return None  # the last batch of an epoch may be any size
        if any(is_close(samples / n, b) for n in optimizer_steps):
            return None  # gradients were accumulated, or a loader gives batches in advance
        return f"its steps had {size:,} samples each, and not the {b:,} of the chosen batch size"


def is_close(size: float, other: float) -> bool:
    """Whether two sizes count as the same."""
    factor = 1.25  # sizes that differ by less count as the same
    return other / factor < size < other * factor


class Waste(NamedTuple):
    """What waiting for batches takes of an attempt."""

    waited: float  # share of the training time in which the processor waits
    share: float  # of it that is wasted
    time_s: float  # the same in seconds of training


class DataWait:
    """Adds up how long the loaders of an attempt let it wait.

    A GPU works on what is queued while its host waits, so the wait is an upper bound: it counts as waste only as far as
    the GPU does not work.
    """

    def __init__(self) -> None:
        self._waited_s = self._looped_s = 0.0
        self._remedy = ""

    def add(self, waited_s: float, looped_s: float, to_try: str = "") -> None:
        """Add ``looped_s`` seconds of training, ``waited_s`` of them spent waiting; ``to_try`` with that loader."""
        self._waited_s, self._looped_s = self._waited_s + waited_s, self._looped_s + looped_s
        self._remedy = to_try or self._remedy

    def waste(self, busy: float | None) -> Waste | None:
        """What the waits waste; None below 1 s of training, and where none is seen.

        :param busy: share of the time in which the GPU worked, 0 to 1; None: not known.
        """
        if self._looped_s < 1.0:
            return None
        waited = self._waited_s / self._looped_s
        share = waited if busy is None else min(waited, 1.0 - busy)
        return Waste(waited, share, share * self._looped_s)

    def text(self, busy: float | None, power_w: float | None) -> str:
        """What the waits took, and what to try; empty where they are no waste, or a small one.

        :param power_w: mean power of the training.
        """
        waste, named = self.waste(busy), 0.1  # share of the time that is worth a line
        if waste is None or waste.share < named:
            return ""
        energy = "" if power_w is None else f" and at most {energy_text(waste.time_s * power_w)}"
        works = "" if busy is None else f": the GPU works {100 * busy:.0f} % of the time"
        took = f"{100 * waste.share:.0f} % of the training time, {time_text(waste.time_s)}{energy}"
        return f"{took}, is spent waiting for batches{works}. Try {self._remedy or remedy(None)}"

    def notes(self, busy: float | None, power_w: float | None) -> dict[str, float]:
        """The processor's share, and what the waits waste, by name. At the mean power: a GPU that waits draws less."""
        if (waste := self.waste(busy)) is None:
            return {}
        found = {"data_wait": waste.waited, "data_wait_s": waste.time_s}
        return found if power_w is None else {**found, "data_wait_j": waste.time_s * power_w}


def remedy(loader: Any) -> str:
    """The one setting to try next: one that can apply here, and is not set already.

    :param loader: of torch, or an iterator over it; anything else: no setting of it is known.
    """

    def setting(name: str) -> Any:
        return getattr(loader, name, getattr(loader, f"_{name}", None))

    workers, processors = setting("num_workers"), len(os.sched_getaffinity(0))
    ahead = "batches that are decoded ahead of the training, or a larger batch"
    if not isinstance(workers, int):
        return ahead
    if workers == 0 and processors > 1:
        return f"num_workers={min(processors - 1, 4)} in the DataLoader ({processors} processors here)"
    if workers and setting("persistent_workers") is False:
        return f"persistent_workers=True in the DataLoader: its {workers} workers are started again for each pass"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if setting("pin_memory") is False and cuda is not None and cuda.is_initialized():
        return "pin_memory=True in the DataLoader"
    if 0 < workers < processors - 1:
        return f"num_workers={min(2 * workers, processors - 1)} in the DataLoader ({processors} processors here)"
    if workers and (setting("prefetch_factor") or 0) <= 2:
        return "prefetch_factor=4 in the DataLoader"
    return ahead
