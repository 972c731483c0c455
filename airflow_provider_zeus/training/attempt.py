"""One attempt while it runs: its epochs, its steps, its bound, and how it stands."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.optimizer.cost import Rates, Weights
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Attempt, Observation, PowerPoint, ProfileSample, State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.meter import edge, read
from airflow_provider_zeus.training.bound import Bound
from airflow_provider_zeus.training.profiler import Profiler
from airflow_provider_zeus.training.signals import AttemptOver, raise_again
from airflow_provider_zeus.training.sweep import Sweep, taken
from airflow_provider_zeus.training.tally import Tally
from airflow_provider_zeus.training.waiting import Waiting

log = logging.getLogger(__name__)

TICK_S = 1.0  # how often a running epoch is checked against its bound [s of the device's clock]


class LiveAttempt:
    """State of the attempt that runs now. ``step`` is on the training's path: it reads a clock and adds a number.

    :param last: the plan's last attempt, whose model is kept: it is never stopped before ``max_epochs``.
    """

    def __init__(
        self,
        planned: Attempt,
        number: int,
        job: ZeusJob,
        device: Device,
        limits: LimitControl | None,
        known: Iterable[ProfileSample],
        *,
        last: bool,
    ) -> None:
        self.planned, self.number, self.last = planned, number, last
        self.local_batch_size = planned.batch_size  # of this process [samples]
        self.ended = False
        self.signal: AttemptOver | None = None
        self.reached = False
        self._device = device
        self._max_epochs = job.max_epochs or 1
        self._weights = Weights.of(job, device.info)
        profiler = Profiler(
            limits_to_measure(job, limits, self._weights),
            known,
            batch_size=planned.batch_size,
            weights=self._weights,
            min_s=job.profile_s,
            min_steps=job.profile_steps,
        )
        self._profiled = bool(profiler.limits_w)
        self._sweep = Sweep(device, limits, profiler, observe=job.mode == "observe")
        self._tally = Tally(device, self._sweep, limits.found_w if limits else None)
        self._bound = None if last else Bound(planned, self._weights)
        self._outcome: tuple[State, str] | None = None
        self._metric: float | None = None
        self._target_value: float | None = None
        self._in_epoch = False
        self._adoptable = False  # steps began the present epoch before epochs() did
        self.passes = 0  # of loaders, begun
        self._resumed = 0  # epochs that the checkpoint had trained from which this attempt goes on
        self._epochs_before = 0  # of the attempt before this one, which did not reach the target
        self._due_s = self._tick_s = 0.0
        self._waiting = Waiting()
        self.snapshot = Observation()
        self._refresh()

    def follows(self, before: LiveAttempt) -> None:
        """This attempt comes after ``before``, which was given up."""
        self._epochs_before = before.epochs_done

    # ------------------------------------------------------------------ the loop
    def resume(self, epochs: int) -> None:
        """The attempt goes on from a checkpoint of so many epochs.

        Raises ReportError: an epoch has begun, or no epoch is left.
        """
        if self._in_epoch or self._tally.epochs_done:
            raise ReportError(
                f"run.resumed(epochs={epochs}): an epoch has begun. Call it before `for _ in run.epochs()`."
            )
        if not 0 <= epochs < self._max_epochs:
            raise ReportError(
                f"run.resumed(epochs={epochs}): not between 0 and max_epochs = {self._max_epochs}. Give the epochs "
                "that the checkpoint had trained; one that is complete needs no training."
            )
        self._resumed = epochs

    def next_epoch(self, target: Target) -> int | None:
        """Number of the epoch that begins now, None when the kept model's training is over."""
        raise_again(self.signal)
        done = self._tally.epochs_done + self._resumed
        if self.reached or done >= self._max_epochs or (self.no_data and not self._adoptable):
            return None
        if self._in_epoch and self._adoptable:
            self._adoptable = False
            return done
        if self._in_epoch:
            raise self._unreported(target, done)
        self._begin_epoch()
        return done

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """A pass over the training data begins; so many samples are expected, None when the loader cannot tell.

        What it returns is to be called where the pass is left early, with the samples of its last batch (0: none).
        """
        self._start_training(first_step_done=False)
        self._tally.expect(expected_samples)
        self.passes += 1
        return partial(self._leave_pass, self.passes)

    def step(self, samples: int) -> None:
        """One optimizer step over ``samples`` was made. Raises ReportError: fewer than one sample."""
        if self.signal is not None:
            raise_again(self.signal)
        if samples < 1:
            raise ReportError(
                f"run.step({samples!r}): an optimizer step has at least one sample. Leave empty ones out."
            )
        tally = self._tally
        if not tally.training:
            self._start_training(first_step_done=True)
        tally.samples += samples
        self._device.on_step(samples)
        now_s = self._device.now_s()
        if now_s >= self._due_s:
            self._on_due(now_s)

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """The data are at their end; so many seconds of the pass were spent waiting for them."""
        self._tally.end_training()
        self._waiting.add(waited_s, looped_s)

    def report(self, target: Target, metric: float) -> None:
        """An epoch ended with this metric; raises AttemptOver when a bound or ``max_epochs`` is passed."""
        raise_again(self.signal)
        if self.no_data:  # whatever the metric is, it is not what training reached
            self._end_epoch()
            return
        reached = target.reached(metric)
        self._end_epoch()
        self.reached = self.reached or reached
        self._metric, self._target_value = metric, target.value
        self._refresh()
        if self.reached:
            self._say_too_good()
            return
        if self._tally.epochs_done + self._resumed < self._max_epochs:
            self._check_bound(at_end_of_epoch=True)
        elif not self.last:
            self._give_up(State.EXHAUSTED, self._exhausted())

    def leave(self) -> None:
        """The training function has returned."""

    # ------------------------------------------------------------------ how it stands
    @property
    def outcome(self) -> tuple[State, str | None]:
        """(state, reason) of this attempt if it ended now."""
        if self._outcome is not None:
            return self._outcome
        if self.no_data:
            return State.NO_DATA, "the data loader was empty, so no optimizer step was made"
        if not self._tally.samples and self.planned.bound_samples_per_epoch:
            return State.NO_DATA, "no optimizer step was reported, and earlier runs of this job reported theirs"
        if self.reached:
            return State.CONVERGED, None
        if self._tally.epochs_done + self._resumed >= self._max_epochs:
            return State.EXHAUSTED, self._exhausted()
        return State.EXHAUSTED, f"the loop was left after {self._tally.epochs_done} epochs, below the target"

    @property
    def untrained(self) -> bool:
        """Whether a loader of this process is at its end and held no batch: not one optimizer step has been made."""
        return self.passes > 0 and not self._tally.training and not self._tally.samples

    @property
    def no_data(self) -> bool:
        """Whether there was nothing to train on."""
        return self.untrained

    @property
    def epochs_done(self) -> int:
        """Epochs that ended with a report."""
        return self._tally.epochs_done

    @property
    def left_after_report(self) -> bool:
        """Whether at least one epoch was reported and none is under way."""
        return self._tally.epochs_done > 0 and not self._in_epoch

    @property
    def measured(self) -> Sequence[ProfileSample]:
        """Profile samples of this attempt."""
        return self._sweep.measured

    @property
    def notes(self) -> dict[str, float]:
        """Figures beside the observation: share of waiting for data; to observe, what the optimum would have saved."""
        share = self._waiting.share
        return {**({} if share is None else {"data_wait": share}), **self._sweep.missed(self._tally.samples)}

    def stop(self) -> None:
        """The attempt ends. What an epoch under way has drawn up to now is counted, where the device still answers."""
        if self._in_epoch:
            with contextlib.suppress(Exception):  # after an error on the GPU it may answer nothing but that error
                self._tally.end_training()
                self._tally.touch(read(self._device))
        self._sweep.keep()
        self._sweep.say_what_was_missed(self._tally.samples)
        self._waiting.say()
        self._refresh()

    def take_news(self) -> tuple[tuple[ProfileSample, ...], tuple[PowerPoint, ...]]:
        """Profile samples and power points since the last call; any thread may ask."""
        return self._sweep.take_news(), taken(self._tally.points)

    # ------------------------------------------------------------------ inside
    def _begin_epoch(self) -> None:
        self._in_epoch = True
        self._tally.start_epoch()
        self._refresh()

    def _end_epoch(self) -> None:
        if not self._in_epoch:
            said = "run.report() ends an epoch, and none has begun. Call it once in `for _ in run.epochs()`."
            raise ReportError(said)
        self._in_epoch = self._adoptable = False
        self._tally.end_epoch()

    def _unreported(self, target: Target, epoch: int) -> ReportError:
        return ReportError(
            f"epoch {epoch} ended without run.report({target.metric}=...). Call it once per epoch; "
            f"when you validate less often, report the last value again."
        )

    def _leave_pass(self, number: int, samples: int) -> None:
        if self.ended or number != self.passes or not self._tally.training:
            return
        if samples:
            self._tally.samples += samples
            self._device.on_step(samples)
        self._tally.end_training()

    def _start_training(self, *, first_step_done: bool) -> None:
        raise_again(self.signal)
        if not self._in_epoch:  # a loop without epochs(), or a look at the first batch before it
            self._begin_epoch()
            self._adoptable = True
        self._tally.start_training(first_step_done=first_step_done)
        self._tick_s = self._device.now_s() + TICK_S
        self._due_s = 0.0 if self._sweep.eager else self._tick_s

    def _on_due(self, now_s: float) -> None:
        """Something is to be done after this step: an edge of a profiling window, or the check of every second."""
        tally, sweep = self._tally, self._sweep
        complete = False
        if sweep.active and sweep.due(now_s):
            mark = edge(self._device)
            tally.touch(mark, phase_ends=True)
            complete = sweep.pass_edge(mark, tally.samples)
        elif sweep.active and tally.bare:
            mark = read(self._device)
        if complete or sweep.watches_next or now_s >= self._tick_s:
            self._tick_s = now_s + TICK_S
            mark = read(self._device)
            tally.touch(mark)
            sweep.watch(mark, tally.samples)
            self._refresh()
            self._check_bound(at_end_of_epoch=False)
        tally.step_done(mark if sweep.active and tally.bare else None)
        self._due_s = 0.0 if sweep.active else self._tick_s

    def _refresh(self) -> None:
        """Take the sums of the last edge into ``snapshot``, which the heartbeat's thread sends."""
        seen = replace(self._tally.observation(), metric=self._metric, target_value=self._target_value)
        self.snapshot = self._without_epochs(seen) if self._resumed else seen

    def _without_epochs(self, seen: Observation) -> Observation:
        """Where it went on from a checkpoint, nobody can say how many epochs this batch size needs."""
        why = f"it went on from a checkpoint that had trained {self._resumed} epochs"
        return replace(seen, epochs=None, reasons={**seen.reasons, "epochs": why})

    def _say_too_good(self) -> None:
        """Warn where the first epoch reaches the target after a long attempt in vain: its weights may be in use."""
        if self._tally.epochs_done == 1 and self._epochs_before > 1 and not self._resumed:
            log.warning(
                "Zeus: the first epoch at batch size %d reached the target, %d epochs of the attempt before did not. "
                "If it went on from that attempt's checkpoint, its epochs are counted wrongly: keep checkpoints in "
                "run.attempt_dir, which is fresh for each attempt, or call run.resumed(epochs=...).",
                self.planned.batch_size,
                self._epochs_before,
            )

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        if self._bound is None:
            return
        epoch_cost = self._epoch_cost(at_end_of_epoch)
        reason = self._bound.passed(self.snapshot, epoch_cost=epoch_cost, at_end_of_epoch=at_end_of_epoch)
        if reason is not None:
            self._give_up(State.GIVEN_UP, reason)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        """EpochCost [J] as the profile tells it, validation left out; as drawn, where nothing is profiled."""
        size, per_sample = self._tally.samples_per_epoch, self._sweep.cost_per_sample()
        if per_sample is not None:
            return per_sample * size if size else None
        rates = Rates.of(self.snapshot) if at_end_of_epoch and not self._profiled else None
        return rates.epoch_cost(size, self._weights) if rates else None

    def _give_up(self, state: State, reason: str) -> NoReturn:
        self._outcome, self.signal = (state, reason), AttemptOver(reason)
        raise self.signal

    def _exhausted(self) -> str:
        return f"max_epochs {self._max_epochs} done below the target"


def limits_to_measure(job: ZeusJob, limits: LimitControl | None, weights: Weights) -> Sequence[float]:
    """Limits to profile [W], highest first; the highest alone where only time counts: none below it is faster."""
    if limits is None or weights.time_alone or job.mode not in ("optimize", "observe"):
        return ()
    grid_w = limits.grid_w(job.power_limits_w)
    if weights.fastest:
        return grid_w[:1]
    if job.mode == "observe" and limits.found_w is not None:  # training goes on at it, so its rates are needed
        return sorted({*grid_w, limits.found_w}, reverse=True)
    return grid_w
