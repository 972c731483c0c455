"""One attempt while it runs: its epochs, its steps, its bound and its state."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.size_bounds import MOST_EPOCHS
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    LIMIT,
    TELL_STEPS,
    Observation,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
)
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.meter import read
from airflow_provider_zeus.signals.follow import Followed
from airflow_provider_zeus.training.attempt_checks import BatchSizeCheck, Bound
from airflow_provider_zeus.training.interrupts import AttemptOver, raise_again
from airflow_provider_zeus.training.metering import AttemptMeter, DataWait
from airflow_provider_zeus.training.profiling.profiler import Conditions, Profiler, limits_to_measure
from airflow_provider_zeus.training.profiling.sweep import Sweep, drain
from airflow_provider_zeus.training.torch_steps import TorchSteps

log = logging.getLogger(__name__)


class LiveAttempt:
    """The attempt that runs now. :meth:`step` is on the training's path: it reads a clock and adds a number.

    :param known: profile samples of earlier runs and attempts on this device.
    :param last: this is the plan's last attempt. Its model is kept, so it is never stopped before ``max_epochs``.
    :param followed: the series that the power limit follows.
    :param clock: seconds since the epoch, by the device's clock.
    """

    def __init__(
        self,
        planned: PlannedAttempt,
        number: int,
        job: ZeusJob,
        device: Device,
        limits: LimitControl | None,
        known: Iterable[ProfileSample],
        *,
        last: bool,
        followed: Followed | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.planned, self.number, self.last = planned, number, last
        self.local_batch_size = planned.batch_size  # of this process [samples]
        self.ended = False  # its "end" line is written
        self.interrupt: AttemptOver | None = None  # set when the attempt is given up
        self.reached = False
        self.over = False  # the loop over the epochs of a training has ended by itself
        self.passes = 0  # passes over the data that have begun
        self.epochs_resumed = 0  # that the checkpoint had trained when this attempt began
        self.epochs_before = 0  # of the attempt before this one, which did not reach the target
        self._device, self._limits = device, limits
        self._max_epochs = job.max_epochs or 1
        self._exhausted = f"max_epochs {self._max_epochs} done below the target"
        self._followed, self._clock = followed, clock
        self._weights = hurried(Weights.of(job, device.info), planned)
        profiler = Profiler(
            limits_to_measure(job, limits, self._weights),
            known,
            batch_size=planned.batch_size,
            weights=self._weights,
            min_s=job.profile_s,
            min_steps=job.profile_steps,
        )
        self._profiled = bool(profiler.limits_w)
        self._sweep = Sweep(device, limits, profiler, observe=job.mode == "observe", conditions=self._conditions)
        self.measured: Sequence[ProfileSample] = self._sweep.measured
        self._meter = AttemptMeter(device, self._sweep, limits.found_w if limits else None)
        self._bound = None if last else Bound(planned, self._weights)
        self._outcome: tuple[State, str] | None = None
        self._metric: float | None = None
        self._metrics: list[float] = []  # by epoch
        self._infinite = False  # the newest metric, which no JSON can hold
        self._target_value: float | None = None
        self._in_epoch = False
        self.reported_names: set[str] = set()  # metrics, since epochs() began an epoch
        self._adoptable = False  # steps began the present epoch before epochs() did
        self._looked = False  # a first batch was looked at before that, and not trained on
        self._previous_good = False  # the model of an earlier run reaches the target on this slice
        self._dropped: JobSpecError | None = None  # why a loader with samples had no batch
        self._data_wait = DataWait()
        self._check = BatchSizeCheck(planned.batch_size)
        self._torch: TorchSteps | None = None  # what torch shows, once the author has loaded it
        self.told = False  # the author tells the steps
        self._steps_before = 0  # of torch, when the present epoch began
        self._blind: str | None = None  # of an epoch with steps of torch, of whose samples nothing is known
        self._held = 0  # samples of the newest step that torch showed, until another one shows that it was not told
        self._bypassed: str | None = None  # why the attempt teaches nothing of its batch size
        self.snapshot = Observation()  # sums up to the last reading; the heartbeat's thread sends it
        self._refresh()

    # ------------------------------------------------------------------ the loop
    def resume(self, epochs: int) -> None:
        """Start from a checkpoint that had trained ``epochs`` epochs.

        Raises ReportError: an epoch has begun, or no epoch is left.
        """
        if self._in_epoch or self._meter.epochs_done:
            raise ReportError(
                f"run.resumed(epochs={epochs}): an epoch has begun. Call it before `for _ in run.epochs()`."
            )
        if not 0 <= epochs < self._max_epochs:
            raise ReportError(
                f"run.resumed(epochs={epochs}): not between 0 and max_epochs = {self._max_epochs}. Give the epochs "
                "that the checkpoint had trained; one that is complete needs no training."
            )
        self.epochs_resumed = epochs

    def keep_previous(self, target: Target, metric: float) -> None:
        """The model of an earlier run reaches the target on this slice. Training after all makes this void.

        Raises ReportError: this attempt has trained.
        """
        raise_again(self.interrupt)
        if not self._untouched:
            raise ReportError("run.still_good(): this attempt trains already. Call it before `for _ in run.epochs()`.")
        self._previous_good = True
        self._take(target, metric)

    def next_epoch(self, target: Target) -> int | None:
        """Begin the next epoch and return its number; None when the training of the kept model is over.

        Raises JobSpecError where the epoch before had samples and no batch.
        """
        raise_again(self.interrupt)
        if not self._adoptable:
            self._check_batches()
        done = self._meter.epochs_done + self.epochs_resumed
        if self.reached or done >= self._max_epochs or (self.no_data and not self._adoptable):
            self.over = not self.no_data
            return None
        if self._in_epoch and not self._adoptable:
            raise self._unreported_epoch(target, done)
        self._take_epoch()
        return done

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass over the training data, of so many samples; None when the loader does not know.

        Returns a function to call when the pass is left early, with the samples of its last batch (0: none).
        """
        if not self.told:
            self._hear()
        self._start_training(first_step_done=False)
        self._meter.expect(expected_samples)
        self.passes += 1
        return partial(self._leave_pass, self.passes)

    def step(self, samples: int) -> None:
        """Count one optimizer step over ``samples``. Raises ReportError: fewer than one sample."""
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
        """Count an optimizer step of torch that the author has not told when the next one is made."""
        if not self._in_epoch:
            return
        held, self._held = self._held, samples
        if held:
            raise_again(self.interrupt)
            self._count(held)

    def _count(self, samples: int) -> None:
        meter = self._meter
        if not meter.training:
            self._start_training(first_step_done=True)
        self._add(samples)
        now_s = self._device.now_s()
        if now_s >= meter.due_s and meter.take_due_readings(now_s):
            self._refresh()
            self._check_bound(at_end_of_epoch=False)

    def no_batch(self, error: JobSpecError) -> None:
        """A pass had samples and no batch. Raised at the end of the epoch, unless another pass trains in it."""
        if self._dropped is None:
            log.warning("Zeus: %s", error)
        self._dropped = error

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """End a pass over the data, which took ``looped_s``; ``waited_s`` of it went into waiting for batches."""
        self._meter.end_training()
        self._data_wait.add(waited_s, looped_s, self._meter.gpu_busy)

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """Take metrics of an epoch; the target's metric ends it.

        Raises AttemptOver when a bound or ``max_epochs`` is passed; JobSpecError where it had samples and no batch;
        ReportError: see :meth:`.ZeusRun.report`.
        """
        metric = self._picked(target, metrics)
        if metric is None:
            return
        if self.no_data:  # the metric is not a result of training
            self._end_epoch()
            return
        reached = target.reached(metric)
        self._end_epoch()
        self.reached = self.reached or reached
        self._take(target, metric)
        if self.reached and self._meter.epochs_done == 1 and self.epochs_before > 1 and not self.epochs_resumed:
            log.warning(
                "Zeus: the first epoch at batch size %d reached the target, %d epochs of the attempt before did not. "
                "If it went on from that attempt's checkpoint, its epochs are counted wrongly: keep checkpoints in "
                "run.attempt_dir, which is fresh for each attempt, or call run.resumed(epochs=...).",
                self.planned.batch_size,
                self.epochs_before,
            )
        if self.reached:
            return
        if self._meter.epochs_done + self.epochs_resumed < self._max_epochs:
            self._check_bound(at_end_of_epoch=True)
        elif not self.last:
            self._give_up(State.EXHAUSTED, self._exhausted)

    def leave(self) -> None:
        """The training function has returned. Several processes gather their figures here; one has nothing to do."""

    def stop(self) -> None:
        """End the attempt. Energy and time of an unfinished epoch count up to now, if the device still answers."""
        if self._in_epoch:
            with contextlib.suppress(Exception):  # after an error on the GPU every call may raise that error again
                self._torch_pass_over()
                self._meter.end_training()
                self._meter.advance(read(self._device))
        meter, steps = self._meter, self._torch.by_optimizer.values() if self._torch else ()
        if self._torch is not None:
            self._torch.close()
        if not self.no_data:
            self._bypassed = self._check.why_not_used(meter.samples, meter.epochs_done, meter.samples_per_epoch, steps)
            self._bypassed = self._bypassed or self._blind
        if self._bypassed is not None:
            why = self._bypassed
            log.warning("Zeus: this run teaches nothing and counts as no saving: %s. Remedy: %s.", why, TELL_STEPS)
        self._sweep.keep()
        if (missed := self._sweep.missed_saving(meter.samples)) is not None:
            incomplete = "" if self._sweep.profiler.walked else " The profile is not complete yet."
            log.info("Zeus observed: %s%s", missed.text(meter.samples), incomplete)
        if (share := self._data_wait.share) is not None:
            log.info("Zeus: %.0f %% of this attempt's training time was spent waiting for data.", 100 * share)
        self._refresh()

    # ------------------------------------------------------------------ state
    @property
    def outcome(self) -> tuple[State, str | None]:
        """State and reason of this attempt if it ended now."""
        if self._outcome is not None:
            return self._outcome
        if self.not_needed:
            return State.NOT_NEEDED, "nothing was trained: the earlier model is still good"
        if self.no_data:
            return State.NO_DATA, "the data loader was empty, so no optimizer step was made"
        if not self._meter.samples and self.planned.bound_samples_per_epoch:
            return State.NO_DATA, "no optimizer step was reported, and earlier runs of this job reported theirs"
        if self.reached:
            return State.CONVERGED, None
        if self._meter.epochs_done + self.epochs_resumed >= self._max_epochs:
            return State.EXHAUSTED, self._exhausted
        return State.EXHAUSTED, f"the loop was left after {self._meter.epochs_done} epochs, below the target"

    @property
    def not_needed(self) -> bool:
        """Whether the model of an earlier run is good enough, and nothing was trained."""
        return self._previous_good and self._untouched

    @property
    def _untouched(self) -> bool:
        """Whether no epoch, pass or step has begun."""
        return not (self._in_epoch or self._meter.epochs_done or self._meter.samples or self.passes)

    @property
    def untrained(self) -> bool:
        """Whether a loader of this process ended without a batch, and no optimizer step was made."""
        return self.passes > 0 and not self._meter.training and not self._meter.samples

    @property
    def no_data(self) -> bool:
        """Whether there was nothing to train on."""
        return self.untrained and self._dropped is None

    @property
    def epochs_done(self) -> int:
        """Epochs that ended with a report."""
        return self._meter.epochs_done

    @property
    def optimizer_steps(self) -> int:
        """Of torch, since the first epoch began."""
        return self._torch.by_optimizer.total() if self._torch else 0

    @property
    def left_after_report(self) -> bool:
        """Whether at least one epoch was reported, and no step was made since."""
        return self._meter.epochs_done > 0 and not (self._in_epoch and self._meter.stepped)

    @property
    def notes(self) -> dict[str, float]:
        """Figures beside the observation: share of waiting for data; in mode ``observe``, the savings missed."""
        share, missed = self._data_wait.share, self._sweep.missed_saving(self._meter.samples)
        waited = {} if share is None else {"data_wait": share}
        return {**waited, **({} if missed is None else missed.notes(self._meter.samples))}

    def take_unsent(self) -> tuple[tuple[ProfileSample, ...], tuple[PowerPoint, ...]]:
        """Return profile samples and power points since the last call. Any thread may call."""
        return self._sweep.take_unsent(), drain(self._meter.points)

    # ------------------------------------------------------------------ inside
    def _take_epoch(self) -> None:
        """Begin an epoch of ours; one that steps have begun is taken as it is."""
        self.reported_names.clear()
        if self._in_epoch:
            self._adoptable = False
        else:
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._in_epoch = True
        if self._torch is None and "torch.optim.optimizer" in sys.modules:
            self._torch = TorchSteps(self.local_batch_size, self.torch_stepped, self._torch_pass_over)
            if self.told:
                self._torch.ignore_draws()
        self._steps_before = self.optimizer_steps
        self._meter.start_epoch()
        self._refresh()

    def _picked(self, target: Target, metrics: Mapping[str, Any]) -> float | None:
        """The target's metric of a report; NaN where nothing was trained; None where other metrics came alone."""
        raise_again(self.interrupt)
        self._check_batches()
        if twice := sorted(self.reported_names.intersection(metrics)):
            raise ReportError(
                f"run.report({twice[0]}=...) came twice in one epoch. Call it once at the end of each epoch, inside "
                "`for epoch in run.epochs():`, not for each batch and not in a loop of your own."
            )
        self.reported_names.update(metrics)
        if self.untrained:
            return math.nan
        return target.pick(metrics) if target.metric in metrics or not metrics else None

    def _end_epoch(self) -> None:
        if not self._in_epoch:
            problem = "run.report() ends an epoch, and none has begun. Call it once in `for _ in run.epochs()`."
            raise ReportError(problem)
        self._torch_pass_over()
        if not self._meter.stepped and self.optimizer_steps > self._steps_before:
            self._blind = f"torch made steps in epoch {self._meter.epochs_done}, and no batch was drawn for them"
        self._in_epoch = self._adoptable = False
        self._meter.end_epoch()

    def _hear(self) -> None:
        """The author tells the steps: those that torch showed in this epoch do not count."""
        self.told, self._held = True, 0
        if self._torch is not None:
            self._torch.ignore_draws()
        if self._meter.drop_epoch():
            self._check = BatchSizeCheck(self.planned.batch_size)

    def _torch_pass_over(self) -> None:
        """The training steps that torch showed have ended, with the one that is held."""
        held, self._held = self._held, 0
        if held:
            if not self._meter.training:
                self._start_training(first_step_done=True)
            self._add(held)
        if not self.told:
            self._meter.end_training()

    def _add(self, samples: int) -> None:
        self._meter.samples += samples
        if samples != self.planned.batch_size:
            self._check.add(samples)
        self._device.on_step(samples)

    def _check_batches(self) -> None:
        if self._dropped is not None and self.untrained:
            raise self._dropped

    def _take(self, target: Target, metric: float) -> None:
        """Keep the metric of an epoch; the first one that is in another unit than the target is warned of."""
        if self._metric is None and (doubt := target.doubt(metric)):
            log.warning("Zeus: %s. Report it in the unit of the target, or change the target.", doubt)
        self._infinite = math.isinf(metric)
        self._metric, self._target_value = None if self._infinite else metric, target.value
        if self._meter.epochs_done and len(self._metrics) < MOST_EPOCHS and math.isfinite(metric):  # without data: NaN
            self._metrics.append(metric)
        self._refresh()

    def _unreported_epoch(self, target: Target, epoch: int) -> ReportError:
        others = f" (only {', '.join(sorted(self.reported_names))} came)" if self.reported_names else ""
        return ReportError(
            f"epoch {epoch} ended without run.report({target.metric}=...){others}. Call it once per epoch; "
            "when you validate less often, report the last value again."
        )

    def _leave_pass(self, number: int, samples: int) -> None:
        if self.ended or number != self.passes or not self._meter.training:
            return
        if self._adoptable and not self._meter.samples and not self._looked:  # at a first batch, before epochs()
            self._looked, self.passes, samples = True, self.passes - 1, 0
            self._meter.expected = 0.0
        if samples:
            self._meter.samples += samples
            self._device.on_step(samples)
        self._meter.end_training()

    def _start_training(self, *, first_step_done: bool) -> None:
        raise_again(self.interrupt)
        if not self._in_epoch:  # a loop without epochs(), or a first batch that is looked at before the loop
            self._begin_epoch()
            self._adoptable = True
        self._meter.start_training(first_step_done=first_step_done)

    def _refresh(self) -> None:
        """Put the sums of the last reading into ``snapshot``."""
        seen = replace(
            self._meter.observation(),
            metric=self._metric,
            target_value=self._target_value,
            epoch_metrics=tuple(self._metrics) or None,
        )
        if self._infinite:
            seen = replace(
                seen, reasons={**seen.reasons, "metric": "it was infinite, or not evaluated yet, in the newest epoch"}
            )
        if self._bypassed:
            seen = replace(seen, reasons={**seen.reasons, BATCH_SIZE: self._bypassed})
        if self._limits is not None and self._limits.why_not_set:
            seen = replace(seen, reasons={**seen.reasons, LIMIT: self._limits.why_not_set})
        self.snapshot = self._without_epochs(seen) if self.epochs_resumed else seen

    def _without_epochs(self, seen: Observation) -> Observation:
        """Leave the epochs out: after a checkpoint it is unknown how many epochs this batch size needs."""
        why = f"it went on from a checkpoint that had trained {self.epochs_resumed} epochs"
        return replace(seen, epochs=None, reasons={**seen.reasons, "epochs": why})

    def _conditions(self) -> Conditions:
        """What the best limit depends on now: the followed signal, and the time that is left."""
        now_s, in_time = self._clock(), self.planned.in_time
        ratio = self._followed.ratio(now_s) if self._followed else 1.0
        if in_time is None or in_time.finish_by_s is None:
            return Conditions(ratio)
        size, done = self._meter.samples_per_epoch or self.planned.bound_samples_per_epoch, self._meter.epochs_done
        sample_s, rest_s = self._sweep.profiler.fastest_sample_s, self.snapshot.rest_s
        fastest_s = sample_s * size + (rest_s / done if done and rest_s else 0.0) if sample_s and size else None
        trained = (self._meter.epochs or 0.0) + self.epochs_resumed
        return Conditions(ratio, in_time.slowdown_at(now_s, trained, self._max_epochs, fastest_s))

    @property
    def _late(self) -> bool:
        """Whether the attempt after this one needs all of the time that is left."""
        in_time = self.planned.in_time
        if in_time is None or in_time.finish_by_s is None or not in_time.reserve_s:
            return False
        return self._clock() > in_time.finish_by_s - in_time.reserve_s

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        if self._bound is None:
            return
        if self._late:
            self._give_up(State.GIVEN_UP, "the attempt after it needs the time that is left until the deadline")
        epoch_cost = self._epoch_cost(at_end_of_epoch)
        reason = self._bound.passed(self.snapshot, epoch_cost=epoch_cost, at_end_of_epoch=at_end_of_epoch)
        if reason is not None:
            self._give_up(State.GIVEN_UP, reason)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        """EpochCost [J] by the profile, without validation; as measured, where nothing is profiled."""
        size, per_sample = self._meter.samples_per_epoch, self._sweep.cost_per_sample()
        if per_sample is not None:
            return per_sample * size if size else None
        rates = Rates.of(self.snapshot) if at_end_of_epoch and not self._profiled else None
        return rates.epoch_cost(size, self._weights) if rates else None

    def _give_up(self, state: State, reason: str) -> NoReturn:
        self._outcome, self.interrupt = (state, reason), AttemptOver(reason)
        raise self.interrupt
