"""Checks of a running attempt: the bounds of its plan, the batch size that was chosen, and its
waits for batches.

An exploratory attempt is given up when it passes a bound (section 4.4). An attempt whose steps do
not add up to its batch size teaches nothing about it; there a false alarm is worse than a miss.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt
from airflow_provider_zeus.power.nvml.visible import torch_cuda
from airflow_provider_zeus.units import counted, energy_text, epochs_text, share_text, time_text


def bound_passed(
    planned: PlannedAttempt,
    weights: Weights,
    so_far: Observation,
    *,
    epoch_cost: float | None,
    at_end_of_epoch: bool,
) -> str | None:
    """Why an attempt must be given up now, by its bounds in epochs and in cost [J]; None while it
    may go on.

    Cost bounds scale with the size of this data slice. At the end of an epoch the next one is
    counted as spent already, so that it does not begin if it cannot be finished.

    :param epoch_cost: EpochCost(b) [J] from a complete profile; None while there is none.
    """
    epochs = so_far.epochs or 0.0
    most_epochs = math.inf if planned.bound_epochs is None else planned.bound_epochs
    # A bound of whole epochs must not be passed by the rounding of a sum of fractions.
    if epochs + at_end_of_epoch > most_epochs + 1e-9:
        bound_text = f"the bound is {most_epochs:.3g}"
        return f"{epochs_text(epochs)} without reaching the target; {bound_text}"
    scale = 1.0
    if so_far.samples_per_epoch and planned.bound_samples_per_epoch:
        scale = so_far.samples_per_epoch / planned.bound_samples_per_epoch
    if epoch_cost is not None and planned.max_epoch_cost is not None:
        highest = planned.max_epoch_cost * scale
        if epoch_cost > highest:
            takes = f"{weights.text(epoch_cost)}{weights.of_both}"
            return f"an epoch costs {takes}; above {weights.text(highest)} it is not worth trying"
    spent = _spent(weights, so_far)
    if planned.bound_cost is None or spent is None:
        return None
    bound = planned.bound_cost * scale
    with_next = spent
    if at_end_of_epoch and epochs:
        with_next += spent / epochs
    if with_next <= bound:
        return None
    took = f"{weights.text(spent)}{weights.of_both}"
    return f"{took} spent without reaching the target; the bound is {weights.text(bound)}"


def _spent(weights: Weights, so_far: Observation) -> float | None:
    """The cost so far [J], without the parts that are not the batch size's fault: the excess of
    profiling, and pauses.
    """
    time_s = so_far.time_s
    energy_j = so_far.energy_j
    lacks_energy = energy_j is None and weights.eta > 0
    if time_s is None or lacks_energy:
        return None
    if energy_j is not None:
        energy_j -= sum(filter(None, (so_far.excess_j, so_far.paused_j)))
    return weights.cost(energy_j, time_s - sum(filter(None, (so_far.excess_s, so_far.paused_s))))


MOST_SEEN = 0.8  # the last batch of a pass may be smaller, so not all steps need to agree


class EpochSteps(NamedTuple):
    """The steps of one epoch: counted by the run, and seen of torch.

    Samples are those of all processes. ``is_told``: the author or his loader counted them.
    """

    samples: int
    is_told: bool = True  # else they are those of ``drawn``, and a comparison would show nothing
    optimizer_steps: int = 0  # of one alone: two may share a step, as in a GAN
    of_all_optimizers: int = 0  # a sum, since two optimizers may also take turns
    passes: int = 1  # each may end with a smaller batch, and so have one step more
    # They show the size of a step even if nobody counts it.
    drawn: Mapping[int, int] = MappingProxyType({})

    @property
    def drawn_samples(self) -> int:
        """Samples that torch's loaders gave for the steps."""
        return sum(size * steps for size, steps in self.drawn.items())

    @property
    def drawn_steps(self) -> int:
        """Steps for which torch's loaders gave samples."""
        return sum(self.drawn.values())

    def drew_for_each(self, batch_size: int) -> bool:
        """Whether loaders gave a batch of this size for each step, of whichever optimizer, and no
        other samples.
        """
        drawn = _main_size(self.drawn)
        if drawn is None or not is_close(drawn, batch_size):
            return False
        if not is_close(self.drawn_samples, self.samples):
            return False
        return self.drawn_steps >= MOST_SEEN * self.of_all_optimizers

    def may_be_of(self, batch_size: int, samples: int) -> bool:
        """Whether the optimizer steps over so many samples may be of this size.

        A pass may end with a smaller batch, and parts that are too few for a step may be left over.
        """
        steps = self.optimizer_steps
        fewest = batch_size / SAME * (steps - self.passes)
        most = batch_size * SAME * (steps + 1)
        return fewest <= samples <= most


class BatchSizeCheck:
    """Compares the steps of an attempt with the chosen batch size; those of the chosen size cost
    nothing.

    A loop that accumulates gradients may tell each of its parts: torch's own count of optimizer
    steps shows that.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._others: Counter[int] = Counter()  # the error names the size that was seen
        self._fits = False  # one epoch that fits settles it: a false alarm is worse than a miss

    def add(self, samples: int) -> None:
        """Count a step of another size."""
        self._others[samples] += 1

    def why_not_in(self, epoch: EpochSteps) -> str | None:
        """Why an epoch shows that its steps are of another size; None if they may be of the chosen
        one.
        """
        b = self.batch_size
        if epoch.samples < 2 * b or not epoch.optimizer_steps:
            return None
        if epoch.drew_for_each(b):  # first: of two that take turns, optimizer_steps counts one
            self._fits = True
            return None
        if epoch.is_told and self._size_counted(epoch.samples) is not None:
            if not epoch.may_be_of(b, epoch.samples):
                return not_chosen(epoch.samples / epoch.optimizer_steps, b)
            self._fits = True
        size = _main_size(epoch.drawn)
        if size is None or is_close(size, b):
            return None
        # Several steps on one batch, or a thread that loads in advance, hide the size of a single
        # step; the mean still shows it.
        if epoch.may_be_of(b, epoch.drawn_samples):
            self._fits = True
            return None
        if epoch.drawn_steps < MOST_SEEN * epoch.optimizer_steps:
            return None
        return not_chosen(epoch.drawn_samples / epoch.optimizer_steps, b)

    def why_not_used(
        self, samples: int, epochs: int, samples_per_epoch: float | None
    ) -> str | None:
        """Why this attempt shows nothing of its batch size; None if it does, or if that cannot be
        told.

        :param samples: in all.
        :param epochs: that ended with a report.
        """
        b = self.batch_size
        if epochs and not samples:
            return f"no step was counted, so nothing shows that batch size {b} was used"
        size = self._size_counted(samples)
        if self._fits or size is None:
            return None  # gradients were accumulated, or sizes vary: that proves nothing
        # The last batch of an epoch may be any size, and a small slice has few others.
        if (samples_per_epoch or 0.0) < 2 * max(b, size):
            return None
        return None if is_close(size, b) else not_chosen(size, b)

    def _size_counted(self, samples: int) -> int | None:
        """The size that most of the counted samples were in; None if sizes vary."""
        others = sum(size * steps for size, steps in self._others.items())
        sizes = Counter(self._others)
        sizes[self.batch_size] = max(samples - others, 0) // self.batch_size
        return _main_size(sizes)


def not_chosen(size: float, batch_size: int) -> str:
    """That steps had another size than the chosen one."""
    samples = counted(round(size), "sample")
    return f"its steps had {samples} each, and not the {batch_size:,} of the chosen batch size"


def _main_size(steps: Mapping[int, int]) -> int | None:
    """The size that holds most of the samples; None if the steps vary, or there are none.

    :param steps: samples of a step -> how many steps had so many.
    """
    even = 0.8  # the last batch of a pass may be smaller, so not all samples need to agree
    samples = {size: size * count for size, count in steps.items()}
    in_all = sum(samples.values())
    if not in_all:
        return None
    size = max(samples, key=samples.__getitem__)
    return size if samples[size] >= even * in_all else None


SAME = 1.1  # a loader may drop or repeat some samples


def is_close(size: float, other: float) -> bool:
    """Whether two sizes count as the same."""
    return other / SAME < size < other * SAME


class Waste(NamedTuple):
    """The part of an attempt that goes into waiting for batches; ``waited``: by the processor."""

    waited: float
    share: float  # at most the GPU's idle time: it works on its queue while the processor waits
    time_s: float


class DataWait:
    """Adds up how long the loaders of an attempt let it wait.

    A GPU works on what is queued while its host waits, so the wait is an upper bound: it counts as
    waste only as far as the GPU does not work.

    :param virtual: whether the time of the device is computed: waits are real, so that nothing is
        known of them there.
    """

    def __init__(self, *, virtual: bool = False) -> None:
        self._virtual = virtual
        self._waited_s = 0.0
        self._looped_s = 0.0
        self.to_try = remedy(None)

    def add(self, waited_s: float, looped_s: float, to_try: str = "") -> None:
        """Add ``looped_s`` seconds of training, ``waited_s`` of them spent waiting; ``to_try`` with
        that loader.
        """
        if self._virtual:
            return
        self._waited_s += waited_s
        self._looped_s += looped_s
        self.to_try = to_try or self.to_try

    def waste(self, busy: float | None) -> Waste | None:
        """The waste of the waits; None below 1 s of training, and if none is seen.

        :param busy: share of the time in which the GPU worked, 0 to 1; None: not known.
        """
        if self._looped_s < 1.0:
            return None
        waited = self._waited_s / self._looped_s
        share = waited
        if busy is not None:
            share = min(waited, 1.0 - busy)
        return Waste(waited=waited, share=share, time_s=share * self._looped_s)

    def text(self, busy: float | None, power_w: float | None, time_s: float | None) -> str:
        """The time of the waits; empty if they are no waste, or a small one.

        :param power_w: mean power of the training.
        :param time_s: of the attempt.
        """
        waste = self.waste(busy)
        if waste is None or not time_s:
            return ""
        share = waste.time_s / time_s
        worth = 0.1  # below a tenth, mending it saves next to nothing
        if share < worth:
            return ""
        text = f"{share_text(min(share, 1.0))} of its time, {time_text(waste.time_s)}"
        if power_w is not None:
            text += f" and at most {energy_text(waste.time_s * power_w)}"
        text += ", was spent waiting for batches"
        if busy is not None:
            text += f": the GPU works {100 * busy:.0f} % of the time"
        return text

    def notes(self, busy: float | None, power_w: float | None) -> dict[str, float]:
        """The processor's share, and the waste of the waits, by name.

        At the mean power: a GPU that waits draws less.
        """
        waste = self.waste(busy)
        if waste is None:
            return {}
        notes = {"data_wait": waste.waited, "data_wait_s": waste.time_s}
        if power_w is not None:
            notes["data_wait_j"] = waste.time_s * power_w
        return notes


def remedy(loader: Any) -> str:
    """The one setting to try next: one that can apply here, and is not set already.

    :param loader: of torch, or an iterator over it; anything else: no setting of it is known.
    """

    def setting(name: str) -> Any:
        return getattr(loader, name, getattr(loader, f"_{name}", None))

    workers = setting("num_workers")
    processors = len(os.sched_getaffinity(0))
    ahead = "batches that are decoded ahead of the training, or a larger batch"
    here = f"in the DataLoader ({processors} processors here)"
    if not isinstance(workers, int):
        return ahead
    again = f"{counted(workers, 'worker')} started again for each pass"
    factor = setting("prefetch_factor") or 0  # None without workers, which compares with no number
    may_have_some = workers == 0 and processors > 1
    may_keep_them = workers > 0 and setting("persistent_workers") is False
    may_pin = torch_cuda() is not None and setting("pin_memory") is False
    may_have_more = 0 < workers < processors - 1
    may_be_ahead = workers > 0 and factor <= 2
    settings = (  # the first that can apply, alone: two at once would not tell which one helped
        (may_have_some, f"num_workers={min(processors - 1, 4)} {here}"),
        (may_keep_them, f"persistent_workers=True in the DataLoader: {again}"),
        (may_pin, "pin_memory=True in the DataLoader"),
        (may_have_more, f"num_workers={min(2 * workers, processors - 1)} {here}"),
        (may_be_ahead, "prefetch_factor=4 in the DataLoader"),
    )
    return next((text for can_apply, text in settings if can_apply), ahead)
