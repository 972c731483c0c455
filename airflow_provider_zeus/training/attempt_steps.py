"""The optimizer steps of an attempt and their samples: reported by its author, or shown by a loader or by torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import OF_TRAINER, PlannedAttempt
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.training.attempt_checks import BatchSizeCheck, DataWait, remedy
from airflow_provider_zeus.training.interrupts import AttemptOver, raise_again
from airflow_provider_zeus.training.metering import AttemptMeter
from airflow_provider_zeus.training.profiling.sweep import Sweep
from airflow_provider_zeus.training.torch_steps import TorchSteps

log = guarded_log(__name__)


class AttemptSteps:
    """Counts the steps of an attempt in its meter. :meth:`step` is on the training's path: it reads a clock and adds.

    :param limit_found_w: that the device had before the training changed it.
    """

    def __init__(self, planned: PlannedAttempt, device: Device, sweep: Sweep, limit_found_w: float | None) -> None:
        self.planned = planned
        self.processes = 1  # that train together: as many samples as in this one count in each
        self.local_batch_size = planned.batch_size  # of this process [samples]
        self.interrupt: AttemptOver | None = None  # set when the attempt is given up
        self.ended = False  # the "end" line of the attempt is written
        self.passes = 0  # passes over the data that have begun
        self.told = False  # the training reports the steps itself
        self._device, self._sweep = device, sweep
        self._meter = AttemptMeter(device, sweep, limit_found_w)
        self._data_wait = DataWait()
        self._check = BatchSizeCheck(planned.batch_size)
        self._in_epoch = False
        self._adoptable = False  # steps began the present epoch before epochs() did
        self._looked = False  # a first batch was looked at before that, and not trained on
        self._dropped: JobSpecError | None = None  # why a loader with samples had no batch
        self.slice_samples: int | None = None  # of all processes, where a loader had no batch of them
        self._torch: TorchSteps | None = None  # what torch shows, once the author has loaded it
        self._steps_before = 0  # of torch, when the present epoch began
        self._blind: str | None = None  # of the first epoch whose steps, and so their samples, were not seen
        self._held = 0  # samples of the newest step that torch showed, until another one shows that it was not reported

    def _refresh(self) -> None:
        """The sums are new."""
        raise NotImplementedError

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        """Raise AttemptOver where the attempt is not worth going on."""
        raise NotImplementedError

    # ------------------------------------------------------------------ of the training
    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass over this process's training data, of so many samples; None when the loader does not know.

        Returns a function to call when the pass is left early, with the samples of its last batch (0: none).
        """
        if not self.told:
            self._hear()
        self._start_training(first_step_done=False)
        before, more = self._meter.expected, expected_samples
        self._meter.expected = None if before is None or more is None else before + more * self.processes
        self.passes += 1
        return partial(self._leave_pass, self.passes)

    def step(self, samples: int) -> None:
        """Count one optimizer step over ``samples`` of this process. Raises ReportError: fewer than one sample."""
        if self.interrupt is not None:
            raise_again(self.interrupt)
        if samples < 1:
            raise ReportError(
                f"run.step({samples!r}): an optimizer step has at least one sample. Leave empty ones out."
            )
        if not self.told:
            self._hear()
        self._count(samples)

    def torch_stepped(self, samples: int) -> None:
        """Count an optimizer step of torch that the author has not reported when the next one is made."""
        if not self._in_epoch:
            return
        held, self._held = self._held, samples
        if held:
            raise_again(self.interrupt)
            self._count(held)

    def no_batch(self, error: JobSpecError, samples: int | None) -> None:
        """A pass had samples and no batch. Raised at the end of the epoch, unless another pass trains in it.

        :param samples: of the pass in this process; None: it is not known how many.
        """
        if self._dropped is None:
            log.warning("Zeus: %s", error)
        self._dropped = error
        self.slice_samples = None if samples is None else samples * self.processes

    def end_pass(self, waited_s: float = 0.0, looped_s: float = 0.0, loader: Any = None) -> None:
        """End a pass over the data, which took ``looped_s``; ``waited_s`` of it went into waiting for batches."""
        self._meter.end_training()
        self._add_wait(waited_s, looped_s, "" if loader is None else remedy(loader))

    # ------------------------------------------------------------------ state
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
        """Whether a loader of this process ended without a batch, and no optimizer step was made."""
        return self.passes > 0 and not self._meter.training and not self._meter.samples

    @property
    def left_after_report(self) -> bool:
        """Whether at least one epoch was reported, and no step was made since."""
        return self._meter.epochs_done > 0 and not (self._in_epoch and self._meter.stepped)

    @property
    def optimizer_steps(self) -> int:
        """Of torch, since the first epoch began; 0 where that is not known."""
        return self._torch.by_optimizer.total() if self._torch else 0

    @property
    def _untouched(self) -> bool:
        """Whether no epoch, pass or step has begun."""
        return not (self._in_epoch or self._meter.epochs_done or self._meter.samples or self.passes)

    # ------------------------------------------------------------------ inside
    def _begin_epoch(self) -> None:
        self._in_epoch = True
        if self._torch is None and "torch.optim.optimizer" in sys.modules:
            self._torch = TorchSteps(self.local_batch_size, self.torch_stepped, self._torch_pass_over)
            if self.told:
                self._torch.ignore_draws()
        self._steps_before = self.optimizer_steps
        self._meter.start_epoch()
        self._refresh()

    def _end_epoch(self, *, is_last: bool = False) -> None:
        if not self._in_epoch:
            problem = "run.report() ends an epoch, and none has begun. Call it once in `for _ in run.epochs()`."
            raise ReportError(problem)
        self._torch_pass_over()
        if self._blind is None and not self._meter.stepped:
            self._blind = self._why_blind()
        self._in_epoch = self._adoptable = False
        self._meter.end_epoch(is_last=is_last)

    def _why_blind(self) -> str | None:
        """What is not known of an epoch in which no step was counted; None where it may have had none.

        Slices smaller than two batches may have epochs without an optimizer step.
        """
        epoch = self._meter.epochs_done
        if self.optimizer_steps > self._steps_before:
            return f"torch made steps in epoch {epoch}, and no batch was drawn for them"
        if not epoch or self._meter.samples / epoch < 2 * self.planned.batch_size:
            return None
        return (
            f"no step was counted in epoch {epoch}, and earlier epochs had some: a generator or an iterator gives its "
            "batches once, so make it anew in each epoch"
        )

    def _check_batches(self) -> None:
        if self._dropped is not None and self.untrained:
            raise self._dropped

    def _hear(self) -> None:
        """The training reports the steps itself: those that torch showed in this epoch do not count."""
        self.told, self._held = True, 0
        if self._torch is not None:
            self._torch.ignore_draws()
        if self._meter.stepped:
            self._meter.end_training()
            self._meter.samples = self._meter.epoch_from
            self._check = BatchSizeCheck(self.planned.batch_size)

    def _torch_pass_over(self) -> None:
        """The training steps that torch showed have ended, with the one that is held."""
        held, self._held = self._held, 0
        if held:
            self._count(held, looks=False)
        if not self.told:
            self._meter.end_training()
            if self._torch is not None and self._torch.remedy:
                self._add_wait(*self._torch.take_waits(), self._torch.remedy)

    def _add_wait(self, waited_s: float, looped_s: float, to_try: str) -> None:
        """Add waits for batches; as long as they dominate, windows tell nothing about power limits."""
        self._data_wait.add(waited_s, looped_s, to_try)
        waste = self._data_wait.waste(self._meter.busy(in_steps=True))
        why = ""
        if waste is not None and waste.share > 0.5:
            why = f"{100 * waste.share:.0f} % of the training time is spent waiting for batches"
            why += ": windows of it tell nothing about power limits"
        self._sweep.profiler.know(waits=why)

    def _start_training(self, *, first_step_done: bool) -> None:
        raise_again(self.interrupt)
        if not self._in_epoch:  # a loop without epochs(), or a first batch that is looked at before the loop
            self._begin_epoch()
            self._adoptable = True
        self._meter.start_training(first_step_done=first_step_done)

    def _leave_pass(self, number: int, samples: int) -> None:
        if self.ended or number != self.passes or not self._meter.training:
            return
        if self._adoptable and not self._meter.samples and not self._looked:  # at a first batch, before epochs()
            self._looked, self.passes, samples = True, self.passes - 1, 0
            self._meter.expected = 0.0
        if samples:
            self._meter.samples += samples * self.processes
            self._device.on_step(samples * self.processes)
        self._meter.end_training()

    def _count(self, samples: int, *, looks: bool = True) -> None:
        """Count a step of this process; ``looks``: then take the readings that are due."""
        meter, device = self._meter, self._device
        if not meter.training:
            self._start_training(first_step_done=True)
        if samples == self.local_batch_size:
            samples = self.planned.batch_size
        else:
            samples *= self.processes
            self._check.add(samples)
        meter.samples += samples
        device.on_step(samples)
        if looks and (now_s := device.now_s()) >= meter.due_s and meter.take_due_readings(now_s):
            if not meter.behind:
                self._refresh()
            self._check_bound(at_end_of_epoch=False)

    def _end_steps(self) -> str | None:
        """The attempt ends: the steps of an unfinished epoch count up to now, if the device still answers.

        Returns why these steps teach nothing of the batch size; None where they do.
        """
        if self._in_epoch:
            with contextlib.suppress(Exception):  # after an error on the GPU every call may raise that error again
                self._torch_pass_over()
                self._meter.end_training()
                self._meter.read_last(is_running=True)
        else:
            with outlived("read the GPU at the end of this attempt"):
                self._meter.read_last(is_running=False)
        if self._torch is not None:
            self._torch.close()
        why = self._why_bypassed()
        if why is not None and self._torch is not None and self._torch.in_trainer:
            return f"{why}{OF_TRAINER}"
        return why

    def _why_bypassed(self) -> str | None:
        """Why the steps of this attempt teach nothing of the batch size; None where they do."""
        if self.no_data:
            return None
        meter, whole = self._meter, self.planned.batch_size
        steps = self._torch.by_optimizer.values() if self._torch else ()
        if why := self._check.why_not_used(meter.samples, meter.epochs_done, meter.samples_per_epoch, steps):
            return why
        unsure = self._torch.unsure * whole / self.local_batch_size if self._torch else 0.0
        most = 2 * (meter.samples + (meter.epochs_done + 1) * whole)  # twice as many steps as passes have batches
        if not self.told and 2 * unsure > meter.samples and not any(n * whole <= most for n in steps):
            return "torch made more steps than batches were drawn for, and these may be of a validation"
        return self._blind
