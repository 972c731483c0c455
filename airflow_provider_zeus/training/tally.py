"""What one attempt draws: energy and time of training, rest and profiling, kept apart while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from airflow_provider_zeus.optimizer.trial import Observation, PowerPoint, ProfileSample
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.training.profiler import SETTLE_S, Profiler

log = logging.getLogger(__name__)

Mark = tuple[float | None, float]  # (energy counter [J] or None, clock [s])


class Limits(Protocol):
    """What the tally needs of :class:`~airflow_provider_zeus.power.limit.LimitControl`."""

    @property
    def can_set(self) -> bool:
        """Whether limits may (still) be set."""

    @property
    def found_w(self) -> float | None:
        """The limit found before the first change [W]."""

    def grid_w(self, limits_w: Sequence[float] | None = None) -> Sequence[float]:
        """Limits to measure [W], highest first."""

    def set_w(self, limit_w: float) -> bool:
        """Set the limit [W]; False when the device refused."""


class Span:
    """Energy and time added up over parts of a training."""

    __slots__ = ("_since", "energy_j", "time_s")

    def __init__(self) -> None:
        self.energy_j: float | None = 0.0
        self.time_s = 0.0
        self._since: Mark | None = None

    def open(self, mark: Mark) -> None:
        """A part begins."""
        self._since = mark

    def close(self, mark: Mark) -> None:
        """The open part, if any, ends."""
        self.energy_j, self.time_s = self.until(mark)
        self._since = None

    def until(self, mark: Mark) -> tuple[float | None, float]:
        """(energy [J], time [s]) with the open part counted up to ``mark``; energy None once a reading is missing."""
        if self._since is None:
            return self.energy_j, self.time_s
        energy_j = _drawn(mark[0], self._since[0])
        total_j = None if energy_j is None or self.energy_j is None else self.energy_j + energy_j
        return total_j, self.time_s + mark[1] - self._since[1]


class Tally:
    """Counts samples, reads the device at the edges, and walks the profiler through the limits.

    Devices are read and synchronised at edges only: start and end of an epoch's training, of a window, at a report and
    about once a second.
    """

    def __init__(self, device: Device, limits: Limits | None, profiler: Profiler, *, chosen: Callable[[float], float]):
        self.device = device
        self.samples = 0
        self.epoch_samples = 0
        self.epochs_done = 0
        self.samples_per_epoch: float | None = None
        self.new_profile: list[ProfileSample] = []
        self.points: list[PowerPoint] = []
        self._limits, self._profiler, self._chosen = limits, profiler, chosen
        self._total, self._train, self._profiling = Span(), Span(), Span()
        self._profiled_samples = 0
        self._started: Mark | None = None
        self._last: Mark | None = None
        self._pointed: Mark | None = None
        self.training = self._measuring = False
        self._profile_from = 0  # samples when the open part of profiling began
        self._window: Mark | None = None
        self._window_samples = self._window_steps = 0
        self._settle_until = 0.0
        self._failures = 0

    # ------------------------------------------------------------------ edges
    def mark(self) -> Mark:
        """Read the device now, after the work handed to it is done."""
        self.device.synchronize()
        return self.device.energy_j(), self.device.now_s()

    def start_epoch(self) -> None:
        """An epoch begins; the first one starts the clock of the trial."""
        self.epoch_samples = 0
        if self._started is None:
            self._started = self._last = self._pointed = self.mark()
            self._total.open(self._started)

    def start_training(self) -> None:
        """The steps of an epoch begin."""
        if self.training:
            return
        self.training = True
        mark = self.mark()
        self._train.open(mark)
        if self._profiler.next_limit() is not None and self._may_profile():
            self._measuring = True
            self._profiling.open(mark)
            self._profile_from = self.samples
            self._measure_next(mark)
        else:
            self._settle_on_best()

    def end_training(self) -> None:
        """The steps of an epoch are over; an unfinished window is kept for the next epoch or run."""
        if not self.training:
            return
        mark = self.mark()
        if self._window is not None:
            self._close_window(mark)
        self._stop_profiling(mark)
        self._train.close(mark)
        self.training = False

    def end_epoch(self) -> None:
        """A report came: the epoch counts as done, energy and time count up to here."""
        self.end_training()
        self.epochs_done += 1
        if self.samples_per_epoch is None and self.epoch_samples:
            self.samples_per_epoch = float(self.epoch_samples)
        self.epoch_samples = 0
        self.touch("train")

    def touch(self, phase: str) -> Mark:
        """Count energy and time up to now; a power point about every second."""
        self._last = mark = self.mark()
        if self._pointed is not None and mark[1] - self._pointed[1] >= 1.0:
            energy_j = _drawn(mark[0], self._pointed[0])
            power_w = None if energy_j is None else energy_j / (mark[1] - self._pointed[1])
            t_s = mark[1] - (self._started or mark)[1]
            self.points.append(PowerPoint(t_s=t_s, power_w=power_w, limit_w=self.device.limit_w(), phase=phase))
            self._pointed = mark
        return mark

    # ------------------------------------------------------------------ profiling
    @property
    def profiling(self) -> bool:
        """Whether a limit is being measured now."""
        return self._measuring

    def on_step(self, now_s: float) -> bool:
        """A step while profiling; True when the profile has just become complete."""
        if self._window is None:
            if now_s >= self._settle_until:
                self._window, self._window_samples, self._window_steps = self.mark(), self.samples, 0
            return False
        self._window_steps += 1
        limit_w = self._profiler.next_limit()
        if limit_w is None:
            return False
        need_s, need_steps = self._profiler.missing(limit_w)
        if now_s - self._window[1] < need_s or self._window_steps < need_steps:
            return False
        mark = self.mark()
        self._close_window(mark)
        self.touch("profile")
        if self._profiler.next_limit() is not None and self._may_profile():
            self._measure_next(mark)
            return False
        self._stop_profiling(mark)
        self._settle_on_best()
        return True

    def _may_profile(self) -> bool:
        return self._limits is not None and self._limits.can_set and self._failures < 3

    def _measure_next(self, mark: Mark) -> None:
        limit_w = self._profiler.next_limit()
        if limit_w is None or self._limits is None:
            return
        changed = limit_w != self.device.limit_w()
        if changed and not self._limits.set_w(limit_w):
            self._stop_profiling(mark)
            return
        self._settle_until = mark[1] + (SETTLE_S if changed else 0.0)

    def _close_window(self, mark: Mark) -> None:
        """Keep what the window measured, if it measured anything."""
        since, self._window = self._window, None
        limit_w = self._profiler.next_limit()
        if since is None or limit_w is None:
            return
        energy_j, time_s, samples = _drawn(mark[0], since[0]), mark[1] - since[1], self.samples - self._window_samples
        if samples <= 0 or time_s <= 0:
            return
        if energy_j is None:
            self._failures += 1
            return
        sample = ProfileSample(
            batch_size=self._profiler.batch_size,
            limit_w=limit_w,
            samples=samples,
            energy_j=energy_j,
            time_s=time_s,
            steps=self._window_steps,
        )
        self._profiler.add(sample)
        self.new_profile.append(sample)

    def _stop_profiling(self, mark: Mark) -> None:
        if self._measuring:
            self._profiling.close(mark)
            self._profiled_samples += self.samples - self._profile_from
            self._measuring, self._window = False, None

    def _settle_on_best(self) -> None:
        """Train at the optimum of Eq. 7 (``chosen`` may put the found limit back: observe mode)."""
        best = self._profiler.best()
        if best is not None and self._profiler.next_limit() is None and self._may_profile() and self._limits:
            limit_w = self._chosen(best[0])
            if limit_w != self.device.limit_w():
                self._limits.set_w(limit_w)

    # ------------------------------------------------------------------ sums
    def observation(self) -> Observation:
        """Sums up to the last edge. Fields that only the run handle knows (metric, target, ...) are left open."""
        last = self._last or self.mark()
        energy_j, time_s = self._total.until(last)
        train_j, train_s = self._train.until(last)
        excess_j, excess_s = self._excess(last)
        info = self.device.info
        fraction = self.epoch_samples / self.samples_per_epoch if self.samples_per_epoch else 0.0
        return Observation(
            epochs=self.epochs_done + fraction,
            samples=self.samples,
            samples_per_epoch=self.samples_per_epoch,
            energy_j=energy_j if info.energy_source else None,
            time_s=time_s,
            rest_j=_minus(energy_j, train_j) if info.energy_source else None,
            rest_s=max(time_s - train_s, 0.0),
            excess_j=excess_j if info.energy_source else None,
            excess_s=excess_s,
            power_limit_w=self.device.limit_w(),
            device_model=info.model,
            device_count=info.count,
            max_power_w=info.max_power_w,
            energy_source=info.energy_source,
            gpu_uuid=self.device.uuid,
            limit_found_w=self._limits.found_w if self._limits else None,
            reasons=dict(self.device.missing),
        )

    def _excess(self, last: Mark) -> tuple[float | None, float | None]:
        """What profiling drew beyond the same samples at the best limit; 0 where nothing was profiled."""
        energy_j, time_s = self._profiling.until(last)
        samples = self._profiled_samples + (self.samples - self._profile_from if self._measuring else 0)
        if samples == 0:
            return 0.0, 0.0
        best = self._profiler.best()
        rates = self._profiler.rates_at(best[0]) if best else None
        if rates is None:
            return None, None
        return _minus(energy_j, samples * rates[0]), time_s - samples * rates[1]


def _drawn(now_j: float | None, then_j: float | None) -> float | None:
    """Difference of two counter readings; None where one is missing or the counter went backwards."""
    difference = _minus(now_j, then_j)
    return None if difference is None or difference < 0 else difference


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
