"""Walks a training through its power limits, one measured window at each, and settles on the best one."""

from __future__ import annotations

import logging
from collections import deque

from airflow_provider_zeus.optimizer.trial import ProfileSample
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.meter import Mark, Span
from airflow_provider_zeus.power.record import same_w
from airflow_provider_zeus.training.profiler import Profiler

log = logging.getLogger(__name__)

SETTLE_S = 1.0  # training discarded at first and after a change of limit, until clocks are steady (power-profiling)
_MOST_FAILURES = 3  # windows without energy after which the limit found is put back


class Sweep:
    """Profiling of one attempt. A window that an epoch's end cuts off goes on in the next epoch.

    :param limits: None where limits are not to be set; nothing is profiled then.
    :param observe: put the limit found back when the profile is complete, instead of the best one.
    """

    def __init__(self, device: Device, limits: LimitControl | None, profiler: Profiler, *, observe: bool) -> None:
        self.active = False  # profiling now
        self.measured: list[ProfileSample] = []
        self.news: deque[ProfileSample] = deque()  # measured and not yet sent
        self._device, self._limits, self._profiler, self._observe = device, limits, profiler, observe
        self._spent, self._spent_samples = Span(), 0  # all of profiling, settling included
        self._since_samples = 0  # samples trained when the open part of it began
        self._settle_s, self._settle_until = SETTLE_S, 0.0
        self._failures = 0
        self._new_window()

    # ------------------------------------------------------------------ the walk
    def start(self, mark: Mark, samples: int) -> None:
        """Training steps begin, ``samples`` were trained before."""
        if self._may_set() and self._profiler.next_limit() is not None:
            self.active = True
            self._spent.open(mark)
            self._since_samples = samples
            self._go_on(mark, samples)
        else:
            self._settle_on_chosen()

    def stop(self, mark: Mark, samples: int) -> None:
        """Training steps pause: an epoch ends. What its window and its settling have had is kept."""
        if not self.active:
            return
        if self._window.is_open:
            self._close_part(mark, samples)
        else:
            self._settle_s = max(0.0, self._settle_until - mark.time_s)
        self._leave(mark, samples)

    def due(self, now_s: float) -> bool:
        """A step was made while profiling; whether an edge of a window is due now."""
        if not self._window.is_open:
            return now_s >= self._settle_until
        self._steps += 1
        return now_s >= self._due_s and self._steps >= self._need_steps

    def pass_edge(self, mark: Mark, samples: int) -> bool:
        """Open the window, or close it and go on to the next limit; True when the profile has become complete."""
        if not self._window.is_open:
            self._settle_s = 0.0
            self._open_part(mark, samples)
            return False
        self._close_part(mark, samples)
        self.keep(at_end=False)
        if self._may_set() and self._profiler.next_limit() is not None:
            self._go_on(mark, samples)
            return False
        self._leave(mark, samples)
        self._settle_on_chosen()
        self._say_what_was_found()
        return self._profiler.next_limit() is None

    def keep(self, *, at_end: bool = True) -> None:
        """Keep what the window measured; ``at_end`` of the attempt it may be a part, for a later run to finish."""
        limit_w, window = self._profiler.next_limit(), self._window
        samples, steps = self._window_samples, self._steps
        self._new_window()
        present_w = self._device.limit_w()
        if limit_w is None or present_w is None or not same_w(limit_w, present_w):
            return  # somebody else changed the limit meanwhile: nobody knows when
        if samples <= 0 or window.time_s <= 0:
            return
        if not window.energy_j:  # unknown, or a counter that stands still
            self._failures += not at_end
            return
        sample = ProfileSample(
            batch_size=self._profiler.batch_size,
            limit_w=limit_w,
            samples=samples,
            energy_j=window.energy_j,
            time_s=window.time_s,
            steps=steps,
        )
        self._profiler.add(sample)
        self.measured.append(sample)
        self.news.append(sample)

    def settle(self) -> None:
        """Leave the device at the best of what is measured, complete or not; to observe, at the limit found."""
        chosen_w = self._chosen_w()
        if self._limits is not None and self._may_set() and chosen_w is not None:
            self._limits.set_w(chosen_w)

    # ------------------------------------------------------------------ what it says
    def advance(self, mark: Mark) -> None:
        """Count what profiling spends up to now."""
        self._spent.advance(mark)

    def excess(self, samples: int) -> tuple[float | None, float | None]:
        """(J, s) that profiling spent beyond the same samples at the chosen limit; 0 where nothing was profiled."""
        profiled = self._spent_samples + (samples - self._since_samples if self.active else 0)
        if profiled == 0:
            return 0.0, 0.0
        chosen_w = self._chosen_w()
        rates = self._profiler.rates_at(chosen_w) if chosen_w is not None else None
        if rates is None:
            return None, None
        spent_j = self._spent.energy_j
        return None if spent_j is None else spent_j - profiled * rates[0], self._spent.time_s - profiled * rates[1]

    def cost_per_sample(self) -> float | None:
        """Cost [J] of a sample at the chosen limit; None while the profile is incomplete, or where there is none."""
        chosen_w = self._chosen_w()
        if chosen_w is None or self._profiler.next_limit() is not None or not self._may_set():
            return None
        return self._profiler.cost_at(chosen_w)

    # ------------------------------------------------------------------ inside
    def _may_set(self) -> bool:
        return self._limits is not None and self._limits.can_set and self._failures < _MOST_FAILURES

    def _go_on(self, mark: Mark, samples: int) -> None:
        """Train at the limit that is to be measured now."""
        limit_w, present_w = self._profiler.next_limit(), self._device.limit_w()
        if limit_w is None or self._limits is None:
            return
        if present_w is None or not same_w(limit_w, present_w):
            if not self._limits.set_w(limit_w):
                self._leave(mark, samples)
                return
            self._settle_s = SETTLE_S
        self._settle_until = mark.time_s + self._settle_s

    def _new_window(self) -> None:
        self._window = Span()
        self._window_samples = self._steps = 0

    def _open_part(self, mark: Mark, samples: int) -> None:
        limit_w = self._profiler.next_limit()
        if limit_w is None:
            return
        need_s, self._need_steps = self._profiler.missing(limit_w)
        self._due_s = mark.time_s + need_s - self._window.time_s
        self._window.open(mark)
        self._window_samples -= samples  # so that adding the count at the end gives the difference

    def _close_part(self, mark: Mark, samples: int) -> None:
        self._window.close(mark)
        self._window_samples += samples

    def _leave(self, mark: Mark, samples: int) -> None:
        self._spent.close(mark)
        self._spent_samples += samples - self._since_samples
        self.active = False

    def _chosen_w(self) -> float | None:
        return self._limits.found_w if self._observe and self._limits else self._profiler.best_w()

    def _settle_on_chosen(self) -> None:
        """Train at the optimum of Eq. 7, or at the limit found: to observe, or where energy cannot be measured."""
        if self._limits is None:
            return
        if self._failures >= _MOST_FAILURES:
            if self._limits.can_set and self._limits.found_w is not None:
                self._limits.set_w(self._limits.found_w)
        elif self._may_set() and self._profiler.next_limit() is None:
            chosen_w = self._chosen_w()
            if chosen_w is not None:
                self._limits.set_w(chosen_w)

    def _say_what_was_found(self) -> None:
        if self._failures >= _MOST_FAILURES:
            log.warning("Zeus gives up profiling: the energy counter of this device does not move or cannot be read.")
            return
        best_w = self._profiler.best_w()
        best = self._profiler.rates_at(best_w) if best_w is not None else None
        first = self._profiler.rates_at(self._profiler.limits_w[0])
        if best is None or first is None:
            return
        log.info(
            "Zeus power profile at batch size %d: %g W costs least; per sample %+.1f %% energy, %+.1f %% time against "
            "%g W.%s",
            self._profiler.batch_size,
            best_w,
            100 * (best[0] / first[0] - 1),
            100 * (best[1] / first[1] - 1),
            self._profiler.limits_w[0],
            " The limit found is put back: mode is 'observe'." if self._observe else "",
        )
