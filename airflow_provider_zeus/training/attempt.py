"""One attempt while it runs: its epochs, its reports, its bound and its state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.size_bounds import MOST_EPOCHS
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    DATA_WAIT,
    LIMIT,
    PAUSED,
    UNCAPPED,
    Observation,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
    remedy_of_steps,
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
from airflow_provider_zeus.units import time_text

log = guarded_log(__name__)


class LiveAttempt(AttemptSteps):
    """The attempt that runs now: its epochs, their reports, and when it ends.

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
        self._weights = hurried(Weights.of(job, device.info), planned)
        profiler = profiler_of(job, limits, self._weights, known, planned.batch_size)
        sweep = Sweep(device, limits, profiler, observe=job.mode == "observe", conditions=self._conditions)
        super().__init__(planned, device, sweep, limits.found_w if limits else None)
        self.number, self.last = number, last
        self.reached = False
        self.over = False  # the loop over the epochs of a training has ended by itself
        self.epochs_resumed = 0  # that the checkpoint had trained when this attempt began
        self.epochs_before = 0  # of the attempt before this one, which did not reach the target
        self.names: set[str] = set()  # of the metrics reported since epochs() began an epoch
        self.metric: float | None = None  # of the newest epoch
        self.target_value: float | None = None
        self._infinite = False  # the newest metric, which no JSON can hold
        self._by_epoch: list[float] = []  # the target's metric
        self.taken = Taken(planned.start)
        self.measured: Sequence[ProfileSample] = sweep.measured
        self._limits = limits
        self._max_epochs = job.max_epochs or 1
        self._exhausted = f"max_epochs {self._max_epochs} done below the target"
        self._followed, self._clock = followed, clock
        self._profiled = bool(profiler.limits_w)
        self._outcome: tuple[State, str] | None = None
        self._previous_good = False  # the model of an earlier run reaches the target on this slice
        self._paused_told_s = 0.0  # pauses that the log names already
        self._waits = ""  # what waiting for batches took, where it is worth mending
        self._bypassed: str | None = None  # why the attempt teaches nothing of its batch size
        self.snapshot = Observation()  # sums up to the last reading; the heartbeat's thread sends it
        self._refresh()

    # ------------------------------------------------------------------ the loop
    def resume(
        self, epochs: int, target: Target, *, retried: bool = False, reported: Observation | None = None
    ) -> None:
        """Start from a checkpoint that had trained ``epochs`` epochs.

        :param retried: an earlier try left it, so that it may be complete: then nothing is trained.
        :param reported: what that try had reported of the checkpoint: of a complete one its metric counts.

        Raises ReportError: an epoch has begun, or no epoch is left.
        """
        if self._in_epoch or self._meter.epochs_done:
            raise ReportError(
                f"run.resumed(epochs={epochs}): an epoch has begun. Call it before `for _ in run.epochs()`."
            )
        if epochs < 0 or (epochs >= self._max_epochs and not retried):
            raise ReportError(
                f"run.resumed(epochs={epochs}): not between 0 and max_epochs = {self._max_epochs}. Give the epochs "
                "that the checkpoint had trained; one that is complete needs no training."
            )
        self.epochs_resumed = epochs
        if self.complete and reported is not None and reported.metric is not None and reported.target_value is not None:
            target = replace(target, value=reported.target_value)
            self.reached = target.reached(reported.metric)
            self._take(target, reported.metric)

    def take_start(self, start: Start, why_cold: str | None = None) -> None:
        """Note the start of a model. Raises ReportError: this attempt has trained."""
        raise_again(self.interrupt)
        if not self._untouched:
            raise ReportError("run.start(): this attempt trains already. Call it after the model is built.")
        self.taken.take(start, why_cold)
        self._refresh()

    def serve(self, metric: float) -> None:
        """Note the metric of the earlier model on this slice."""
        if math.isfinite(metric):
            self.taken.served = metric
            self._refresh()

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
            raise self._missing(target, done)
        self._take_epoch()
        return done

    def take_back(self) -> None:
        """Let another loop begin the epoch that the one before began and left at once, as after early stopping."""
        self._adoptable = self._adoptable or (self._in_epoch and self.left_after_report)

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """Take metrics of an epoch; the target's metric ends it.

        Raises AttemptOver when a bound or ``max_epochs`` is passed; JobSpecError where it had samples and no batch;
        ReportError: see :meth:`.ZeusRun.report`.
        """
        metric = self._picked(target, metrics)
        if metric is None:
            return
        if self.no_data or math.isnan(metric):  # the metric is not a result of training
            self._end_epoch()
            return
        reached = target.reached(metric)
        done = self._meter.epochs_done + 1 + self.epochs_resumed
        self._end_epoch(is_last=reached or self.reached or done >= self._max_epochs)
        self._tell_pause()
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
        self._bypassed, samples = self._end_steps(), self._meter.samples
        why = self._bypassed
        if why is not None:
            remedy = remedy_of_steps(why)
            log.warning("Zeus: this run teaches nothing and counts as no saving: %s. Remedy: %s.", why, remedy)
        self.taken.end(trained=not self._untouched)
        self._sweep.keep()
        if (missed := self._sweep.missed_saving(samples)) is not None:
            incomplete = "" if self._sweep.profiler.walked else " The profile is not complete yet."
            log.info("Zeus observed: %s%s", missed.text(samples), incomplete)
        self._waits = self._data_wait.text(self._meter.busy(in_steps=True), self._meter.train.power_w)
        if self._waits:
            log.warning("Zeus: %s.", self._waits)
        self._refresh()
        self._meter.close()

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
        if self.complete and not self.reached:
            done = f"its checkpoint had trained all of max_epochs {self._max_epochs}"
            return State.NO_METRIC if self.metric is None else State.EXHAUSTED, done
        if not self._meter.samples and self.planned.bound_samples_per_epoch and not self.complete:
            return State.NO_DATA, "no optimizer step was reported, and earlier runs of this job reported theirs"
        if self.reached:
            return State.CONVERGED, None
        if self._meter.epochs_done + self.epochs_resumed >= self._max_epochs:
            return State.EXHAUSTED, self._exhausted
        if self._meter.epochs_done == 1:
            return State.EXHAUSTED, "the loop was left after 1 epoch, below the target (is a `return` inside the loop?)"
        return State.EXHAUSTED, f"the loop was left after {self._meter.epochs_done} epochs, below the target"

    @property
    def complete(self) -> bool:
        """Whether the checkpoint that it goes on from had trained all epochs."""
        return self.epochs_resumed >= self._max_epochs

    @property
    def within_epoch(self) -> bool:
        """Whether ``epochs()`` gave an epoch that is not reported yet: what fails then fails in the training."""
        return self._in_epoch and not self._adoptable and not self.over

    @property
    def within_loop(self) -> bool:
        """Whether ``epochs()`` gave an epoch, and its loop has not ended by itself.

        Of several processes one fails between two epochs where another one has failed within its own.
        """
        return (self.within_epoch or self.epochs_done > 0) and not self.over

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
        """Figures beside the observation: share of waiting for data; in mode ``observe``, the savings missed."""
        missed = self._sweep.missed_saving(self._meter.samples)
        waited = self._data_wait.notes(self._meter.busy(in_steps=True), self._meter.train.power_w)
        at_top = self._sweep.windows.cap.at[max(self._sweep.profiler.limits_w, default=0.0)]
        cap = {"capped": at_top.share, "sm_clock_mhz": at_top.clock_mhz}  # how much of the time the highest limit bound
        known = {name: value for name, value in cap.items() if value is not None}
        return {**waited, **known, **({} if missed is None else missed.notes(self._meter.samples))}

    def take_unsent(self) -> tuple[tuple[ProfileSample, ...], tuple[PowerPoint, ...]]:
        """Return profile samples and power points since the last call. Any thread may call."""
        return self._sweep.take_unsent(), drain(self._meter.points)

    # ------------------------------------------------------------------ inside
    def _take_epoch(self) -> None:
        """Begin an epoch of ours; one that steps have begun is taken as it is."""
        self.names.clear()
        if self._in_epoch:
            self._adoptable = False
        else:
            self._begin_epoch()

    def _picked(self, target: Target, metrics: Mapping[str, Any]) -> float | None:
        """The target's metric of a report; NaN where nothing was trained; None where other metrics came alone.

        Raises ReportError: a metric comes twice in an epoch, or the target's is none.
        """
        raise_again(self.interrupt)
        self._check_batches()
        if twice := sorted(self.names.intersection(metrics)):
            raise ReportError(
                f"run.report({twice[0]}=...) came twice in one epoch. Call it once at the end of each epoch, inside "
                "`for epoch in run.epochs():`, not for each batch and not in a loop of your own."
            )
        self.names.update(metrics)
        untold = not self._meter.samples and self.planned.bound_samples_per_epoch  # earlier runs reported their steps
        given = metrics.get(target.metric)
        if self.untrained or (untold and isinstance(given, float) and math.isnan(given)):
            return math.nan
        return target.pick(metrics) if target.metric in metrics or not metrics else None

    def _take(self, target: Target, metric: float) -> None:
        """Keep a metric; with the first one of a run, what looks wrong in the target is warned of."""
        is_first = self.metric is None and not self._infinite and not self.epochs_before
        if is_first and (doubt := target.doubt(metric)):
            log.warning("Zeus: %s. Remedy: %s.", *doubt)
        self._infinite = math.isinf(metric)
        self.metric, self.target_value = None if self._infinite else metric, target.value
        if self._meter.epochs_done and len(self._by_epoch) < MOST_EPOCHS and math.isfinite(metric):  # without data: NaN
            self._by_epoch.append(metric)
        self._refresh()

    def _tell_pause(self) -> None:
        """Log a pause once, when the epoch in which it was has ended."""
        paused_s = self._meter.paused_s
        if paused_s > self._paused_told_s:
            log.warning(
                "Zeus: paused for %s in epoch %d: an epoch that takes so much longer than the others shows nothing of "
                "batch size %d. It is paid for and not learnt.",
                time_text(paused_s - self._paused_told_s),
                self._meter.epochs_done - 1,
                self.planned.batch_size,
            )
        self._paused_told_s = paused_s

    def _missing(self, target: Target, epoch: int) -> ReportError:
        """The error of an epoch that ended without the target's metric."""
        others = f" (only {', '.join(sorted(self.names))} came)" if self.names else ""
        return ReportError(
            f"epoch {epoch} ended without run.report({target.metric}=...){others}. Call it once per epoch; "
            "when you validate less often, report the last value again."
        )

    def _refresh(self) -> None:
        """Put the sums of the last reading into ``snapshot``, with what was reported and why figures are missing."""
        seen = self.taken.put_into(self._meter.observation())
        profiler = self._sweep.profiler
        reasons = {
            "metric": "it was infinite, or not evaluated yet, in the newest epoch" if self._infinite else "",
            BATCH_SIZE: self._bypassed,
            DATA_WAIT: self._waits,
            UNCAPPED: profiler.why_uncapped,
            LIMIT: (self._limits and self._limits.why_not_set) or profiler.slow,
            PAUSED: f"paused for {time_text(seen.paused_s)}" if seen.paused_s else "",
        }
        seen = replace(
            seen,
            metric=self.metric,
            target_value=self.target_value,
            epoch_metrics=tuple(self._by_epoch) or None,
            data_wait_s=None
            if (waste := self._data_wait.waste(self._meter.busy(in_steps=True))) is None
            else waste.time_s,
            reasons={**seen.reasons, **{name: why for name, why in reasons.items() if why}},
        )
        self.snapshot = self._without_epochs(seen) if self.epochs_resumed else seen

    def _without_epochs(self, seen: Observation) -> Observation:
        """Leave the epochs out: after a checkpoint it is unknown how many epochs this batch size needs."""
        why = f"it went on from a checkpoint that had trained {self.epochs_resumed} epochs"
        return replace(seen, epochs=None, reasons={**seen.reasons, "epochs": why})

    def _conditions(self) -> Conditions:
        """What the best limit depends on now: the followed signal, and the time that is left."""
        now_s, in_time = self._clock(), self.planned.in_time
        ratio = self._followed.ratio(now_s) if self._followed else 1.0
        if in_time is None:
            return Conditions(ratio)
        size, done = self._meter.samples_per_epoch or self.planned.bound_samples_per_epoch, self._meter.epochs_done
        profiler, rest_s = self._sweep.profiler, self.snapshot.rest_s
        rates = profiler.rates_at(max(profiler.measured, default=None))  # at the highest limit, the fastest
        fastest_s = rates[1] * size + (rest_s / done if done and rest_s else 0.0) if rates and size else None
        trained = (self._meter.epochs or 0.0) + self.epochs_resumed
        return Conditions(ratio, in_time.slowdown_at(now_s, trained, self._max_epochs, fastest_s))

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
        if self._late:
            self._give_up(State.GIVEN_UP, "the attempt after it needs the time that is left until the deadline")
        epoch_cost = self._epoch_cost(at_end_of_epoch)
        seen, at_end = self.snapshot, at_end_of_epoch
        reason = bound_passed(self.planned, self._weights, seen, epoch_cost=epoch_cost, at_end_of_epoch=at_end)
        if reason is not None:
            self._give_up(State.GIVEN_UP, reason)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        """EpochCost [J] by the profile, without validation; as measured, where nothing is profiled."""
        size, per_sample = self._meter.samples_per_epoch, self._sweep.cost_per_sample()
        if per_sample is not None:
            return per_sample * size if size else None
        is_profiled = self._profiled and not self._sweep.profiler.slow
        rates = Rates.of(self.snapshot) if at_end_of_epoch and not is_profiled else None
        return rates.epoch_cost(size, self._weights) if rates else None

    def _give_up(self, state: State, reason: str) -> NoReturn:
        self._outcome, self.interrupt = (state, reason), AttemptOver(reason)
        raise self.interrupt
