"""One attempt while it runs: its epochs, its reports, its bound and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.size_bounds import MOST_EPOCHS
from airflow_provider_zeus.model.target import Target, remark
from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    DATA_WAIT,
    LIMIT,
    PAUSED,
    TO_TRY,
    UNCAPPED,
    Observation,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
)
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.signals.forecast import Followed
from airflow_provider_zeus.training.attempt_checks import bound_passed
from airflow_provider_zeus.training.attempt_steps import AttemptSteps
from airflow_provider_zeus.training.interrupts import AttemptOver, raise_again
from airflow_provider_zeus.training.profiling.profiler import Conditions, profiler_of
from airflow_provider_zeus.training.profiling.sweep import Sweep, drain
from airflow_provider_zeus.training.starts import Taken
from airflow_provider_zeus.units import counted, time_text

log = guarded_log(__name__)


class LiveAttempt(AttemptSteps):
    """The attempt that runs now: its epochs, their reports, and when it ends.

    :param known: profile samples of earlier runs and attempts on this device.
    :param last: this is the plan's last attempt. Its model is kept, so it is never stopped before
        ``max_epochs``.
    :param followed: the series that the power limit follows.
    :param clock: seconds since the epoch, by the device's clock.
    """

    def __init__(
        self,
        planned: PlannedAttempt,
        number: int,
        job: ZeusJob,
        device: Device,
        limits: LimitControl,
        known: Iterable[ProfileSample],
        *,
        last: bool,
        followed: Followed | None,
        clock: Callable[[], float],
    ) -> None:
        self._weights = hurried(Weights.of(job, device.info), planned)
        profiler = profiler_of(job, limits, self._weights, known, planned.batch_size)
        sweep = Sweep(
            device, limits, profiler, observe=job.mode == "observe", conditions=self._conditions
        )
        super().__init__(planned, device, sweep, limits.found_w)
        self.number = number
        self.last = last
        self.reached = False
        self.over = False  # a loop that ended by itself leaves a whole model: no other may train it
        self.epochs_resumed = 0  # a checkpoint's epochs were paid by an earlier attempt
        # Of the attempt before: one that goes on from its checkpoint reaches the target at once.
        self.epochs_before = 0
        # An error names them: the target's may be among them under another name.
        self.names: set[str] = set()
        self.metric: float | None = None
        self.target_value: float | None = None
        self._infinite = False  # no JSON holds an infinite metric
        self._by_epoch: list[float] = []  # ``metric`` is the newest alone, and the chart shows each
        self.taken = Taken(planned.start)
        self.measured: Sequence[ProfileSample] = sweep.measured
        self._limits = limits
        self._max_epochs = job.max_epochs or 1
        self._exhausted = f"max_epochs {self._max_epochs} done below the target"
        self._followed = followed
        self._clock = clock
        self._profiled = bool(profiler.limits_w)
        self._outcome: tuple[State, str] | None = None
        self._previous_good = False  # not enough for not_needed: it may train after all
        self._paused_told_s = 0.0  # the sum of pauses would tell the same one in each later epoch
        self._to_try = ""
        self._waits = ""  # told once, at the end: until then their share still changes
        # Replaced as a whole, since the heartbeat's thread may send it at any moment.
        self.snapshot = Observation()
        self._refresh()

    def resume(
        self,
        epochs: int,
        target: Target,
        *,
        retried: bool,
        reported: Observation,
    ) -> None:
        """Start from a checkpoint that had trained ``epochs`` epochs.

        :param retried: an earlier try left it, so that it may be complete: then nothing is trained.
        :param reported: the report of that try about the checkpoint: of a complete one its metric
            counts.

        Raises ReportError: an epoch has begun, or no epoch is left.
        """
        if self._in_epoch or self._meter.epochs_done:
            raise ReportError(
                f"run.resumed(epochs={epochs}): an epoch has begun. Call it before `for _ in "
                "run.epochs()`."
            )
        is_complete = epochs >= self._max_epochs
        is_over = is_complete and not retried
        if epochs < 0 or is_over:
            raise ReportError(
                f"run.resumed(epochs={epochs}): not between 0 and max_epochs = {self._max_epochs}. "
                "Give the epochs that the checkpoint had trained; one that is complete needs no "
                "training."
            )
        self.epochs_resumed = epochs
        if not is_complete or reported.metric is None:
            return
        if reported.target_value is not None:
            target = replace(target, value=reported.target_value)
            self.reached = target.reached(reported.metric)
            self._take(target, reported.metric)

    def take_start(self, start: Start, why_cold: str | None = None) -> None:
        """Note the start of a model. Raises ReportError: this attempt has trained."""
        self._check_untouched("run.start()", "after the model is built")
        self.taken.take(start, why_cold)
        self._refresh()

    def serve(self, metric: float) -> None:
        """Note the metric of the earlier model on this slice."""
        if math.isfinite(metric):
            self.taken.served = metric
            self._refresh()

    def keep_previous(self, target: Target, metric: float) -> None:
        """The model of an earlier run reaches the target on this slice. Training after all makes
        this void.

        Raises ReportError: this attempt has trained.
        """
        self._check_untouched("run.still_good()", "before `for _ in run.epochs()`")
        self._previous_good = True
        self._take(target, metric)

    def _check_untouched(self, call: str, when: str) -> None:
        raise_again(self.interrupt)
        if not self._untouched:
            raise ReportError(f"{call}: this attempt trains already. Call it {when}.")

    def next_epoch(self, target: Target) -> int | None:
        """Begin the next epoch and return its number; None when the training of the kept model is
        over.

        Raises JobSpecError if the epoch before had samples and no batch.
        """
        raise_again(self.interrupt)
        if not self._adoptable:
            self._check_batches()
        done = self._epochs_trained
        is_empty = self.no_data and not self._adoptable
        if any((is_empty, self.reached, done >= self._max_epochs)):
            self.over = not self.no_data
            return None
        if self._is_ours:
            raise self._missing(target, done)
        self._take_epoch()
        return done

    def take_back(self) -> None:
        """Let another loop begin the epoch that the one before began and left at once, as after
        early stopping.
        """
        if self._in_epoch and self.left_after_report:
            self._adoptable = True

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """Take metrics of an epoch; the target's metric ends it.

        Raises AttemptOver when a bound or ``max_epochs`` is passed; JobSpecError if it had samples
        and no batch; ReportError: see :meth:`.ZeusRun.report`.
        """
        metric = self._picked(target, metrics)
        if metric is None:
            return
        # No result of training: such a metric must not reach the target.
        if self.no_data or math.isnan(metric):
            self._end_epoch()
            return
        reached = self.reached or target.reached(metric)
        # First: it raises if no epoch has begun, and such a report must not count.
        self._end_epoch(is_last=reached or self._epochs_trained + 1 >= self._max_epochs)
        self._tell_pause()
        self.reached = reached
        self._take(target, metric)
        if self.reached:
            self._doubt_first_epoch()
            return
        if self._epochs_trained < self._max_epochs:
            self._check_bound(at_end_of_epoch=True)
        elif not self.last:
            self._give_up(State.EXHAUSTED, self._exhausted)

    def leave(self) -> None:
        """The training function has returned.

        Several processes gather their figures here; one has nothing to do.
        """

    def stop(self) -> None:
        """End the attempt.

        Energy and time of an unfinished epoch count up to now, if the device still answers.
        """
        self._end_steps()
        samples = self._meter.samples
        self.taken.end(trained=not self._untouched)
        self._sweep.keep()
        missed = self._sweep.missed_saving(samples)
        if missed is not None:
            incomplete = ""
            if not self._sweep.profiler.walked:
                incomplete = " The profile is not complete yet."
            log.info("Zeus observed: %s%s", missed.text(samples), incomplete)
        self._waits = self._data_wait.text(
            self._meter.busy(in_steps=True),
            self._meter.train.power_w,
            self._meter.observation().time_s,
        )
        # without the time: the run's page says it, of its last attempt the task's last line too
        if self._waits:
            self._to_try = self._data_wait.to_try
            log.warning("Zeus: this training waits for its batches. Try %s.", self._to_try)
        self._refresh()
        self._meter.close()

    @property
    def outcome(self) -> tuple[State, str | None]:
        """State and reason of this attempt if it ended now."""
        if self._outcome is not None:
            return self._outcome
        if self.not_needed:
            return State.NOT_NEEDED, "nothing was trained: the earlier model is still good"
        if self.no_data:
            return State.NO_DATA, "the data loader was empty, so no optimizer step was made"
        if self.complete:
            return self._outcome_of_complete()
        if self._is_untold:
            unreported = "no optimizer step was reported, and earlier runs of this job reported "
            return State.NO_DATA, f"{unreported}theirs"
        if self.reached:
            return State.CONVERGED, None
        return State.EXHAUSTED, self._why_below

    @property
    def _why_below(self) -> str:
        """Why the target was not reached."""
        if self._epochs_trained >= self._max_epochs:
            return self._exhausted
        done = self._meter.epochs_done
        why = f"the loop was left after {counted(done, 'epoch')}, below the target"
        if done == 1:
            why += " (is a `return` inside the loop?)"
        return why

    def _outcome_of_complete(self) -> tuple[State, str | None]:
        """State and reason of an attempt whose checkpoint had trained all epochs."""
        if self.reached:
            return State.CONVERGED, None
        why = f"its checkpoint had trained all of max_epochs {self._max_epochs}"
        if self.metric is None:
            return State.NO_METRIC, why
        return State.EXHAUSTED, why

    @property
    def _epochs_trained(self) -> int:
        """Epochs that ended in this attempt, and those that its checkpoint had trained."""
        return self._meter.epochs_done + self.epochs_resumed

    @property
    def _is_first_epoch(self) -> bool:
        """Whether one epoch has ended in this attempt, and its checkpoint had trained none."""
        return self._meter.epochs_done == 1 and not self.epochs_resumed

    @property
    def _is_untold(self) -> bool:
        """Whether no step was reported, while earlier runs of this job reported theirs."""
        return not self._meter.samples and bool(self.planned.bound_samples_per_epoch)

    @property
    def complete(self) -> bool:
        """Whether the checkpoint that it goes on from had trained all epochs."""
        return self.epochs_resumed >= self._max_epochs

    @property
    def within_epoch(self) -> bool:
        """Whether ``epochs()`` gave an epoch that is not reported yet: an error then is one of the
        training.
        """
        return self._is_ours and not self.over

    @property
    def _is_ours(self) -> bool:
        """Whether ``epochs()`` gave the present epoch, which has not ended."""
        return self._in_epoch and not self._adoptable

    @property
    def within_loop(self) -> bool:
        """Whether ``epochs()`` gave an epoch, and its loop has not ended by itself.

        Of several processes one fails between two epochs if another one has failed within its own.
        """
        if self.over:
            return False
        return self._is_ours or self.epochs_done > 0

    @property
    def not_needed(self) -> bool:
        """Whether the model of an earlier run is good enough, and nothing was trained."""
        return self._previous_good and self._untouched

    @property
    def epochs_done(self) -> int:
        """Epochs that ended with a report."""
        return self._meter.epochs_done

    @property
    def notes(self) -> dict[str, float]:
        """Figures beside the observation: share of waiting for data; in mode ``observe``, the
        savings missed.
        """
        notes = self._data_wait.notes(self._meter.busy(in_steps=True), self._meter.train.power_w)
        # Of the highest limit alone: any lower one is set so that it binds.
        at_top = self._sweep.windows.cap.at[self._sweep.profiler.top_w]
        figures = {"capped": at_top.share, "sm_clock_mhz": at_top.clock_mhz}
        notes |= wire.without_none(figures)
        missed = self._sweep.missed_saving(self._meter.samples)
        if missed is not None:
            notes |= missed.notes(self._meter.samples)
        return notes

    def take_unsent(self) -> tuple[tuple[ProfileSample, ...], tuple[PowerPoint, ...]]:
        """Return profile samples and power points since the last call. Any thread may call."""
        return self._sweep.take_unsent(), drain(self._meter.points)

    def _take_epoch(self) -> None:
        """Begin an epoch of ours; one that steps have begun is taken as it is."""
        self.names.clear()
        self._asked = True
        if self._in_epoch:
            self._outside = self._meter.samples - self._meter.epoch_from
            self._adoptable = False
        else:
            self._begin_epoch()

    def _picked(self, target: Target, metrics: Mapping[str, Any]) -> float | None:
        """The target's metric of a report; NaN if nothing was trained; None if other metrics came
        alone.

        Raises ReportError: a metric comes twice in an epoch, or the target's is none.
        """
        raise_again(self.interrupt)
        self._check_batches()
        twice = sorted(self.names.intersection(metrics))
        if twice:
            raise ReportError(
                f"run.report({twice[0]}=...) came twice in one epoch. Call it once at the end of "
                "each epoch, inside `for epoch in run.epochs():`, not for each batch and not in a "
                "loop of your own."
            )
        self.names.update(metrics)
        value = metrics.get(target.metric)
        is_nan = isinstance(value, float) and math.isnan(value)
        is_of_nothing = is_nan and self._is_untold
        if self.untrained or is_of_nothing:
            return math.nan
        if metrics and target.metric not in metrics:
            return None
        return target.pick(metrics)

    def _take(self, target: Target, metric: float) -> None:
        """Keep a metric; with the first one of a run, warn if the target looks wrong."""
        is_first = self.metric is None and not self._infinite
        if is_first and not self.epochs_before:
            self._doubt(target, metric)
        # An overflow, for example: kept as a reason, since no JSON can hold the value.
        self._infinite = math.isinf(metric)
        self.metric = None if self._infinite else metric
        self.target_value = target.value
        # The chart's values are JSON too: no overflow, and no NaN of an epoch without data.
        if self._meter.epochs_done and math.isfinite(metric):
            self._by_epoch = [*self._by_epoch, metric][:MOST_EPOCHS]
        self._refresh()

    def _doubt(self, target: Target, first: float) -> None:
        """Log a doubt about the target that the first metric of a run raises."""
        doubt = target.doubt(first)
        if doubt is not None:
            log.warning("Zeus: %s", remark(doubt))
            return
        is_cold = self.planned.start in (None, Start.COLD)
        if not is_cold or not self._is_first_epoch:
            return
        at_once = target.at_once(first)
        if at_once is not None:
            log.info("Zeus: %s", remark(at_once))

    def _doubt_first_epoch(self) -> None:
        """Warn if the target was reached at once, and the attempt before did not reach it in
        several epochs.
        """
        if self._is_first_epoch and self.epochs_before > 1:
            log.warning(
                "Zeus: the first epoch at batch size %d reached the target, %d epochs of the "
                "attempt before did not. If it went on from that attempt's checkpoint, its epochs "
                "are counted wrongly: keep checkpoints in run.attempt_dir, which is fresh for each "
                "attempt, or call run.resumed(epochs=...).",
                self.planned.batch_size,
                self.epochs_before,
            )

    def _tell_pause(self) -> None:
        """Log a pause once, when the epoch in which it was has ended."""
        paused_s = self._meter.paused_s
        if paused_s > self._paused_told_s:
            log.warning(
                "Zeus: paused for %s in epoch %d: an epoch that takes so much longer than the "
                "others shows nothing of batch size %d. It is paid for and not learnt.",
                time_text(paused_s - self._paused_told_s),
                self._meter.epochs_done - 1,
                self.planned.batch_size,
            )
        self._paused_told_s = paused_s

    def _missing(self, target: Target, epoch: int) -> ReportError:
        """The error of an epoch that ended without the target's metric."""
        others = ""
        if self.names:
            others = f" (only {', '.join(sorted(self.names))} came)"
        return ReportError(
            f"epoch {epoch} ended without run.report({target.metric}=...){others}. Call it once "
            "per epoch; when you validate less often, report the last value again."
        )

    def _refresh(self) -> None:
        """Put the sums of the last reading into ``snapshot``, with the reports and the reasons of
        missing figures.
        """
        so_far = self.taken.put_into(self._meter.observation())
        waste = self._data_wait.waste(self._meter.busy(in_steps=True))
        so_far = replace(
            so_far,
            metric=self.metric,
            target_value=self.target_value,
            epoch_metrics=tuple(self._by_epoch) or None,
            data_wait_s=None if waste is None else waste.time_s,
            reasons={**so_far.reasons, **self._reasons(so_far)},
        )
        self.snapshot = self._without_epochs(so_far) if self.epochs_resumed else so_far

    def _reasons(self, seen: Observation) -> dict[str, str]:
        """Why figures are missing or say less, beside the reasons that the meter names."""
        profiler = self._sweep.profiler
        reasons = {
            BATCH_SIZE: self._bypassed,
            DATA_WAIT: self._waits,
            TO_TRY: self._to_try,
            UNCAPPED: profiler.why_uncapped,
            LIMIT: self._limits.why_not_set or profiler.slow,
        }
        if self._infinite:
            reasons["metric"] = "it was infinite, or not evaluated yet, in the newest epoch"
        if seen.paused_s:
            reasons[PAUSED] = f"paused for {time_text(seen.paused_s)}"
        return {name: why for name, why in reasons.items() if why}

    def _without_epochs(self, seen: Observation) -> Observation:
        """Leave the epochs out: after a checkpoint it is unknown how many epochs this batch size
        needs.
        """
        why = (
            f"it went on from a checkpoint that had trained {counted(self.epochs_resumed, 'epoch')}"
        )
        return replace(seen, epochs=None, reasons={**seen.reasons, "epochs": why})

    def _conditions(self) -> Conditions:
        """The conditions of the best limit now: the followed signal, and the time that is left."""
        now_s = self._clock()
        in_time = self.planned.in_time
        ratio = 1.0
        if self._followed is not None:
            ratio = self._followed.ratio(now_s)
        if in_time is None:
            return Conditions(ratio)
        trained = (self._meter.epochs or 0.0) + self.epochs_resumed
        fastest_s = self._fastest_epoch_s()
        return Conditions(
            ratio, in_time.slowdown_at(now_s, trained, self._max_epochs, epoch_s=fastest_s)
        )

    def _fastest_epoch_s(self) -> float | None:
        """Time of an epoch at the highest limit that was measured [s], with its validation; None if
        not known.
        """
        size = self._meter.samples_per_epoch or self.planned.bound_samples_per_epoch
        profiler = self._sweep.profiler
        rate = profiler.rate_at(max(profiler.measured, default=None))
        if rate is None or not size:
            return None
        fastest_s = rate.time_s * size
        done = self._meter.epochs_done
        rest_s = self.snapshot.rest_s
        if done and rest_s:
            fastest_s += rest_s / done
        return fastest_s

    @property
    def _late(self) -> bool:
        """Whether the attempt after this one needs all of the time that is left."""
        in_time = self.planned.in_time
        if in_time is None or not in_time.reserve_s:
            return False
        return self._clock() > in_time.finish_by_s - in_time.reserve_s

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        if self.last:
            return
        # Before the bounds: a kept model in time is worth more than another size.
        if self._late:
            self._give_up(
                State.GIVEN_UP,
                "the attempt after it needs the time that is left until the deadline",
            )
        reason = bound_passed(
            self.planned,
            self._weights,
            self.snapshot,
            epoch_cost=self._epoch_cost(at_end_of_epoch),
            at_end_of_epoch=at_end_of_epoch,
        )
        if reason is not None:
            self._give_up(State.GIVEN_UP, reason)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        """EpochCost [J] by the profile, without validation; as measured, if nothing is profiled."""
        return self._cost_of_epoch(
            self._meter.samples_per_epoch,
            self._sweep.cost_per_sample(),
            is_measured=at_end_of_epoch and not self._is_profiled,
        )

    @property
    def _is_profiled(self) -> bool:
        """Whether EpochCost comes from a profile, once that is complete."""
        return self._profiled and not self._sweep.profiler.slow

    def _cost_of_epoch(
        self, size: float | None, per_sample: float | None, *, is_measured: bool
    ) -> float | None:
        """EpochCost [J].

        :param size: samples of an epoch.
        :param per_sample: cost by the profile [J].
        :param is_measured: without a profile, whole epochs tell it.
        """
        # By energy per sample, as slices differ in size.
        if per_sample is not None:
            return per_sample * size if size else None
        if not is_measured:
            return None
        rates = Rates.of(self.snapshot)
        return None if rates is None else rates.epoch_cost(size, self._weights)

    def _give_up(self, state: State, reason: str) -> NoReturn:
        self._outcome = (state, reason)
        # Kept: each later call raises it again, if the function swallows it.
        self.interrupt = AttemptOver(reason)
        raise self.interrupt
