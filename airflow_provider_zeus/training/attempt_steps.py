"""The optimizer steps of an attempt and their samples: reported by its author, or shown by a loader
or by torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import OF_OUTSIDE, OF_TRAINER, PlannedAttempt, untaught
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.training.attempt_checks import (
    BatchSizeCheck,
    DataWait,
    EpochSteps,
    remedy,
)
from airflow_provider_zeus.training.interrupts import AttemptOver, raise_again
from airflow_provider_zeus.training.metering import AttemptMeter
from airflow_provider_zeus.training.profiling.sweep import Sweep
from airflow_provider_zeus.training.torch_steps import TorchSteps

log = guarded_log(__name__)

# As a share of an epoch: a few steps outside of it, as of a warm-up, change little of what it
# shows, and an alarm would waste the whole run.
MOST_OUTSIDE = 0.1


class AttemptSteps:
    """Counts the steps of an attempt in its meter. :meth:`step` is on the training's path: it reads
    a clock and adds.

    :param limit_found_w: that the device had before the training changed it.
    """

    def __init__(
        self, planned: PlannedAttempt, device: Device, sweep: Sweep, limit_found_w: float | None
    ) -> None:
        self.planned = planned
        self.processes = 1  # of several, each sees its own share of a step alone
        self.local_batch_size = planned.batch_size
        # Kept, since the function may swallow it: each later call raises it again.
        self.interrupt: AttemptOver | None = None
        self.ended = False  # a second end would be a second row
        self.passes = 0  # with no step, it tells an empty loader from a loop without one
        self.told = False  # reported by the author: torch's own steps would count them twice
        self._device = device
        self._sweep = sweep
        self._meter = AttemptMeter(device, sweep, limit_found_w)
        self._data_wait = DataWait(virtual=device.info.energy_source == "simulated")
        self._check = BatchSizeCheck(planned.batch_size)
        self._in_epoch = False
        self._adoptable = False  # some loops load a first batch before epochs() begins the epoch
        self._looked = False  # a look at a first batch happens once: a second pass trains
        # Not raised at once: another pass may still train in this epoch.
        self._dropped: JobSpecError | None = None
        # If they are fewer than one batch, the plan chooses the next size by them.
        self.slice_samples: int | None = None
        self._torch = TorchSteps(self.torch_stepped, self._torch_pass_over)
        self._steps_before = 0  # torch counts through all epochs: one epoch's steps are the rest
        # Of the first such epoch: one gap is enough for the attempt to teach nothing.
        self._blind: str | None = None
        # Of torch's newest step: the author may still report it, and it must not count twice.
        self._held = 0
        self._passes_before = 0
        self._outside = 0
        self._asked = False
        self._bypassed: str | None = None  # without it a size that was not used would be learnt

    def _refresh(self) -> None:
        """The sums are new."""
        raise NotImplementedError

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        """Raise AttemptOver if the attempt is not worth going on."""
        raise NotImplementedError

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass over this process's training data, of so many samples; None when the loader
        does not know.

        Returns a function to call when the pass is left early, with the samples of its last batch
        (0: none).
        """
        if not self.told:
            self._hear()
        self._start_training(first_step_done=False)
        if expected_samples is None:
            self._meter.expected = None
        elif self._meter.expected is not None:
            self._meter.expected += expected_samples * self.processes
        self.passes += 1
        return partial(self._leave_pass, self.passes)

    def step(self, samples: int) -> None:
        """Count one optimizer step over ``samples`` of this process.

        Raises ReportError: fewer than one sample.
        """
        if self.interrupt is not None:
            raise_again(self.interrupt)
        if samples < 1:
            raise ReportError(
                f"run.step({samples!r}): an optimizer step has at least one sample. Leave empty "
                "ones out."
            )
        if not self.told:
            self._hear()
        self._count(samples)

    def torch_stepped(self, samples: int) -> None:
        """Count an optimizer step of torch that the author has not reported when the next one is
        made.
        """
        if not self._in_epoch:
            return
        # One step late: the author may report this one after torch has made it.
        before = self._held
        self._held = samples
        if before:
            raise_again(self.interrupt)
            self._count(before)

    def no_batch(self, error: JobSpecError, samples: int | None) -> None:
        """A pass had samples and no batch. Raised at the end of the epoch, unless another pass
        trains in it.

        :param samples: of the pass in this process; None: it is not known how many.
        """
        if self._dropped is None:
            log.warning("Zeus: %s", error)
        self._dropped = error
        self.slice_samples = None if samples is None else samples * self.processes

    def end_pass(self, waited_s: float = 0.0, looped_s: float = 0.0, loader: Any = None) -> None:
        """End a pass over the data, which took ``looped_s``; ``waited_s`` of it went into waiting
        for batches.
        """
        self._meter.end_training()
        self._torch.pause()
        self._add_wait(waited_s, looped_s, "" if loader is None else remedy(loader))

    @property
    def no_data(self) -> bool:
        """Whether there was nothing to train on."""
        return self.untrained and self._dropped is None

    @property
    def too_few(self) -> bool:
        """Whether the slice has samples, but fewer than its batch size, and nothing was trained."""
        return self._dropped is not None and not self._meter.samples

    @property
    def untrained(self) -> bool:
        """Whether a loader of this process had no batch, and no optimizer step was made."""
        return self.passes > 0 and not self._meter.training and not self._meter.samples

    @property
    def left_after_report(self) -> bool:
        """Whether at least one epoch was reported, and no step was made since."""
        steps_on = self._in_epoch and self._meter.stepped
        return self._meter.epochs_done > 0 and not steps_on

    @property
    def optimizer_steps(self) -> int:
        """Of torch, since the first epoch began; 0 if that is not known."""
        return self._torch.by_optimizer.total()

    @property
    def learning_rate(self) -> float | None:
        """That torch's optimizer began with; None if none has stepped."""
        return self._torch.learning_rate

    @property
    def _untouched(self) -> bool:
        """Whether no epoch, pass or step has begun."""
        meter = self._meter
        return not any((meter.epochs_done, meter.samples, self._in_epoch, self.passes))

    def _begin_epoch(self) -> None:
        self._in_epoch = True
        self._torch.listen(self.local_batch_size)
        self._torch.begin_epoch()
        self._steps_before = self.optimizer_steps
        self._passes_before = self.passes
        self._outside = 0
        self._meter.start_epoch()
        self._refresh()

    def _end_epoch(self, *, is_last: bool = False) -> None:
        if not self._in_epoch:
            raise ReportError(
                "run.report() ends an epoch, and none has begun. Call it once in `for _ in "
                "run.epochs()`."
            )
        self._torch_pass_over()
        if self._blind is None and not self._meter.stepped:
            self._blind = self._why_blind()
        self._compare(at_end=True)
        self._in_epoch = False
        self._adoptable = False
        self._meter.end_epoch(is_last=is_last)

    def _compare(self, *, at_end: bool) -> None:
        """Compare the steps of this epoch with torch's own.

        :param at_end: of the epoch; else the attempt ends within it.
        """
        samples = self._meter.samples - self._meter.epoch_from
        why = None
        if at_end:
            why = self._why_outside(samples)
        if why is None:
            why = self._why_not_torchs(samples)
        if why is not None:
            self._bypass(why)

    def _why_not_torchs(self, samples: int) -> str | None:
        """Why the steps of this epoch are not of the chosen size, as torch shows."""
        # DeepSpeed makes a step of torch for each group of parameters, so their count shows no
        # size.
        if "deepspeed" in sys.modules:
            return None
        steps = self._torch.steps_in_epoch
        epoch = EpochSteps(
            samples=samples,
            is_told=self.told,
            optimizer_steps=max(steps.values(), default=0),
            of_all_optimizers=steps.total(),
            passes=max(self.passes - self._passes_before, 1),
            drawn={size * self.processes: count for size, count in self._torch.sizes.items()},
        )
        return self._check.why_not_in(epoch)

    def _why_outside(self, samples: int) -> str | None:
        """That samples of an epoch were counted before ``epochs()`` gave it, if they are many."""
        is_small = samples < 2 * self.planned.batch_size
        if is_small or self._outside <= MOST_OUTSIDE * (samples - self._outside):
            return None
        epoch = self._meter.epochs_done
        counted = f"{samples:,} samples count in epoch {epoch}"
        return f"{counted}, {self._outside:,} of them from before it{OF_OUTSIDE}"

    def _why_after(self) -> str | None:
        """That samples were counted after the last epoch, if they are many."""
        meter = self._meter
        is_after = self._asked and self._adoptable and meter.epochs_done
        if not is_after:
            return None
        size = meter.samples_per_epoch or 0.0
        after = meter.samples - meter.epoch_from
        if size < 2 * self.planned.batch_size or after <= MOST_OUTSIDE * size:
            return None
        return f"{after:,} samples were counted after epoch {meter.epochs_done - 1}{OF_OUTSIDE}"

    def _bypass(self, why: str) -> None:
        """The attempt teaches nothing of its batch size: said once, as soon as it is seen."""
        if self._bypassed is not None:
            return
        if self._torch.in_trainer and not self.told:
            why = f"{why}{OF_TRAINER}"
        self._bypassed = why
        log.warning("Zeus: %s", untaught("this run teaches nothing and counts", why))

    def _why_blind(self) -> str | None:
        """The gap in an epoch in which no step was counted; None if it may have had none.

        Slices smaller than two batches may have epochs without an optimizer step.
        """
        epoch = self._meter.epochs_done
        if self.optimizer_steps > self._steps_before:
            return f"torch made steps in epoch {epoch}, and no batch was drawn for them"
        if not epoch or self._meter.samples / epoch < 2 * self.planned.batch_size:
            return None
        return (
            f"no step was counted in epoch {epoch}, and earlier epochs had some: a generator or an "
            "iterator gives its batches once, so make it anew in each epoch"
        )

    def _check_batches(self) -> None:
        if self._dropped is not None and self.untrained:
            raise self._dropped

    def _hear(self) -> None:
        """The training reports the steps itself: those that torch showed in this epoch do not
        count.
        """
        self.told = True
        self._held = 0
        self._torch.only_compare()
        if self._meter.stepped:  # by torch's showing: with the author's, they would count twice
            self._meter.end_training()
            self._meter.samples = self._meter.epoch_from
            self._check = BatchSizeCheck(self.planned.batch_size)

    def _torch_pass_over(self) -> None:
        """The training steps that torch showed have ended, with the one that is held."""
        samples = self._held
        self._held = 0
        if samples:
            self._count(samples, looks=False)
        if self.told:
            return
        self._meter.end_training()
        if self._torch.remedy:
            waits = self._torch.take_waits()
            self._add_wait(waits.waited_s, waits.looped_s, self._torch.remedy)

    def _add_wait(self, waited_s: float, looped_s: float, to_try: str) -> None:
        """Add waits for batches. While they dominate, windows tell nothing about power limits."""
        self._data_wait.add(waited_s, looped_s, to_try)
        waste = self._data_wait.waste(self._meter.busy(in_steps=True))
        why = ""
        if waste is not None and waste.share > 0.5:
            why = "its training waits for batches most of the time, so windows of it tell nothing"
        self._sweep.profiler.know_waits(why)

    def _start_training(self, *, first_step_done: bool) -> None:
        raise_again(self.interrupt)
        # Steps need an epoch: a loop may have no epochs(), or look at a first batch before it.
        if not self._in_epoch:
            self._begin_epoch()
            self._adoptable = True
        self._torch.go_on(with_a_pass=not first_step_done)
        self._meter.start_training(first_step_done=first_step_done)

    def _leave_pass(self, number: int, samples: int) -> None:
        is_open = number == self.passes and self._meter.training
        if self.ended or not is_open:
            return
        # A first batch was looked at before epochs(), and is no step.
        is_first = self._adoptable and not self._meter.samples
        if is_first and not self._looked:
            self._looked = True
            self.passes -= 1  # the next pass gets this number: no pass is left twice
            self._meter.expected = 0.0
        elif samples:
            self._meter.samples += samples * self.processes
            self._device.on_step(samples * self.processes)
        self._meter.end_training()

    def _count(self, samples: int, *, looks: bool = True) -> None:
        """Count a step of this process; ``looks``: then take the readings that are due."""
        meter = self._meter
        device = self._device
        if not meter.training:
            self._start_training(first_step_done=True)
        if samples == self.local_batch_size:
            samples = self.planned.batch_size
        else:
            samples *= self.processes
            self._check.add(samples)
        meter.samples += samples
        device.on_step(samples)
        if not looks:
            return
        now_s = device.now_s()
        if now_s >= meter.due_s and meter.take_due_readings(now_s):
            if not meter.behind:  # else the new sums would lack their energy, which is known soon
                self._refresh()
            self._check_bound(at_end_of_epoch=False)

    def _end_steps(self) -> None:
        """The attempt ends: the steps of an unfinished epoch count up to now, if the device still
        answers.

        It is said if these steps teach nothing of the batch size.
        """
        if self._in_epoch:
            # After an error on the GPU every call may raise that error again.
            with contextlib.suppress(Exception):
                self._torch_pass_over()
                self._meter.end_training()
                self._meter.read_last(is_running=True)
            if not self._adoptable:
                self._compare(at_end=False)
        else:
            with outlived("read the GPU at the end of this attempt"):
                self._meter.read_last(is_running=False)
        self._torch.close()
        why = self._why_bypassed()
        if why is not None:
            self._bypass(why)

    def _why_bypassed(self) -> str | None:
        """Why the steps of this attempt teach nothing of the batch size; None if they do."""
        if self.no_data:
            return None
        why = self._why_after()
        if why is not None:
            return why
        meter = self._meter
        why = self._check.why_not_used(meter.samples, meter.epochs_done, meter.samples_per_epoch)
        if why is not None:
            return why
        if self._is_unsure():
            more = "torch made more steps than batches were drawn for"
            return f"{more}, and these may be of a validation"
        return self._blind

    def _is_unsure(self) -> bool:
        """Whether most samples of torch's steps may be of a validation, and each optimizer made too
        many steps.
        """
        if self.told:
            return False
        whole = self.planned.batch_size
        samples = self._meter.samples
        unsure = self._torch.unsure * whole / self.local_batch_size
        if 2 * unsure <= samples:
            return False
        # Twice as many as the passes have batches: a false alarm is worse than a miss.
        most = 2 * (samples + (self._meter.epochs_done + 1) * whole)
        return all(steps * whole > most for steps in self._torch.by_optimizer.values())
