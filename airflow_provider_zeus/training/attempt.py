"""One attempt while it runs: its epochs, its steps, its bound, and how it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Attempt, Observation, PowerPoint, ProfileSample, State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.training.bound import Bound
from airflow_provider_zeus.training.profiler import Profiler
from airflow_provider_zeus.training.signals import AttemptOver
from airflow_provider_zeus.training.tally import Limits, Tally

TICK_S = 1.0  # how often a running epoch is checked against its bound [s of the device's clock]


class LiveAttempt:
    """State of the attempt that runs now. ``step`` is on the training's path: it reads a clock and adds two numbers."""

    def __init__(
        self,
        planned: Attempt,
        number: int,
        job: ZeusJob,
        device: Device,
        limits: Limits | None,
        profile: Sequence[ProfileSample],
        *,
        last: bool,
    ) -> None:
        self.planned, self.number, self.last = planned, number, last
        self.ended = False
        self.signal: AttemptOver | None = None
        self.reached = False
        self.learning_rate: float | None = None
        self.snapshot = Observation()
        self._job, self._device, self._limits = job, device, limits
        weights = Weights.of(job, device.info)
        self._profiler = Profiler(
            _limits_to_measure(job, limits, weights),
            profile,
            batch_size=planned.batch_size,
            weights=weights,
            min_s=job.profile_s,
            min_steps=job.profile_steps,
        )
        self.tally = Tally(device, limits, self._profiler, chosen=self._chosen_limit)
        self._bound = Bound(planned, weights)
        self._max_epochs = job.max_epochs or 1
        self._outcome: tuple[State, str] | None = None
        self._metric: float | None = None
        self._target_value: float | None = None
        self._epoch = -1
        self._due_s = self._tick_s = 0.0

    # ------------------------------------------------------------------ the loop
    def next_epoch(self, target: Target) -> int | None:
        """Number of the epoch that begins now, None when the kept model's training is over."""
        self.check_signal()
        if self.reached or self.tally.epochs_done >= self._max_epochs:
            return None
        if self._epoch >= 0 and self.tally.epochs_done <= self._epoch:
            raise ReportError(
                f"epoch {self._epoch} ended without run.report({target.metric}=...). Call it once per epoch; "
                f"when you validate less often, report the last value again."
            )
        self._epoch += 1
        self.tally.start_epoch()
        return self._epoch

    def start_training(self) -> None:
        """The steps of an epoch begin; the first ones of a loop without ``epochs()`` start the clock."""
        self.check_signal()
        if self._epoch < 0:
            self._epoch = 0
            self.tally.start_epoch()
        self.tally.start_training()
        self._tick_s = self._device.now_s() + TICK_S
        self._due_s = 0.0 if self.tally.profiling else self._tick_s

    def step(self, samples: int) -> None:
        """One optimizer step over ``samples``."""
        if self.signal is not None:
            raise self.signal
        tally = self.tally
        if not tally.training:
            self.start_training()
        tally.samples += samples
        tally.epoch_samples += samples
        self._device.on_step(samples)
        now_s = self._device.now_s()
        if now_s >= self._due_s:
            self._on_due(now_s)

    def report(self, target: Target, metric: float) -> None:
        """An epoch ended with this metric; raises AttemptOver when a bound or ``max_epochs`` is passed."""
        self.check_signal()
        self.reached = target.reached(metric)
        self._metric, self._target_value = metric, target.value
        self.tally.end_epoch()
        self.refresh()
        if self.reached:
            return
        if self.tally.epochs_done < self._max_epochs:
            self._check_bound(at_end_of_epoch=True)
        elif not self.last:
            self._give_up(State.EXHAUSTED, self._exhausted())

    # ------------------------------------------------------------------ how it stands
    @property
    def outcome(self) -> tuple[State, str | None]:
        """(state, reason) of this attempt if it ended now."""
        if self._outcome is not None:
            return self._outcome
        if self.reached:
            return State.CONVERGED, None
        if self.tally.epochs_done >= self._max_epochs:
            return State.EXHAUSTED, self._exhausted()
        return State.EXHAUSTED, f"the loop was left after {self.tally.epochs_done} epochs, below the target"

    def refresh(self) -> None:
        """Take the sums of the last edge into ``snapshot``, which the heartbeat's thread sends."""
        self.snapshot = replace(
            self.tally.observation(),
            metric=self._metric,
            target_value=self._target_value,
            learning_rate=self.learning_rate,
        )

    def take_news(self) -> tuple[list[ProfileSample], list[PowerPoint]]:
        """Profile samples and power points since the last call."""
        tally = self.tally
        news = tally.new_profile, tally.points
        tally.new_profile, tally.points = [], []
        return news

    def check_signal(self) -> None:
        """Raise the signal again that this attempt already got."""
        if self.signal is not None:
            raise self.signal

    # ------------------------------------------------------------------ inside
    def _on_due(self, now_s: float) -> None:
        tally = self.tally
        profiled = tally.profiling and tally.on_step(now_s)
        if profiled or now_s >= self._tick_s:
            self._tick_s = now_s + TICK_S
            tally.touch("profile" if tally.profiling else "train")
            self.refresh()
            self._check_bound(at_end_of_epoch=False)
        self._due_s = 0.0 if tally.profiling else self._tick_s

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        size = self.tally.samples_per_epoch
        best = self._profiler.best() if size and self._profiler.next_limit() is None else None
        epoch_cost = best[1] * size if best and size else None
        reason = self._bound.passed(self.snapshot, epoch_cost=epoch_cost, at_end_of_epoch=at_end_of_epoch)
        if reason is not None:
            self._give_up(State.GIVEN_UP, reason)

    def _give_up(self, state: State, reason: str) -> None:
        self._outcome, self.signal = (state, reason), AttemptOver(reason)
        raise self.signal

    def _exhausted(self) -> str:
        return f"max_epochs {self._max_epochs} done below the target"

    def _chosen_limit(self, best_w: float) -> float:
        found_w = self._limits.found_w if self._limits else None
        return found_w if self._job.mode == "observe" and found_w is not None else best_w


def _limits_to_measure(job: ZeusJob, limits: Limits | None, weights: Weights) -> Sequence[float]:
    if limits is None or weights.time_alone or job.mode not in ("optimize", "observe"):
        return ()
    return limits.grid_w(job.power_limits_w)
