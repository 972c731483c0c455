"""Profiles a training: measures a window at each power limit, sets the best one, and checks that the profile holds."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import ProfileSample, summed_with_marks
from airflow_provider_zeus.patience import T
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.sidecar_server import same_w
from airflow_provider_zeus.power.meter import PacedReader, Reading, Span
from airflow_provider_zeus.training.profiling.measurement_windows import (
    MAX_DIFFERENCE,
    CapWatch,
    DriftDetector,
    MeasurementWindows,
)
from airflow_provider_zeus.training.profiling.profiler import Conditions, MissedSaving, Profiler

log = guarded_log(__name__)

_MAX_FAILURES = 3  # pieces without energy after which profiling stops and the limit found is set


class Sweep:
    """Profiling within one attempt.

    :param limits: None where limits are not to be set; nothing is profiled then.
    :param observe: when the profile is complete, set the limit found instead of the best one.
    :param conditions: what the best limit depends on now besides the profile.
    """

    def __init__(
        self,
        device: Device,
        limits: LimitControl | None,
        profiler: Profiler,
        *,
        observe: bool,
        conditions: Callable[[], Conditions] = Conditions,
    ) -> None:
        self.active = False  # profiling now
        self.pace = PacedReader(device)
        self._cut_off = 0  # pieces in a row that ended where the device could not be read
        self.measured: list[ProfileSample] = []
        self.unsent: deque[ProfileSample] = deque()  # measured and not yet sent
        self._device, self._limits, self.profiler, self._observe = device, limits, profiler, observe
        self._read_conditions, self._conditions = conditions, Conditions()
        self._before_w: float | None = None  # the limit chosen before ``_conditions`` was read
        self.windows = MeasurementWindows(device, profiler.batch_size, profiler.min_s, profiler.min_steps)
        self.spent, self._spent_samples = Span(), 0  # all of profiling, settling included
        self._since_samples = 0  # samples trained when the open part of ``_spent`` began
        self._why_said = False
        self._drift = DriftDetector(profiler.min_s, profiler.window_samples)
        self._detects_drift = bool(profiler.limits_w) and not profiler.weights.fastest
        self._waited = False  # until now the training waited for its batches

    # ------------------------------------------------------------------ edges
    def start(self, reading: Reading, samples: int) -> None:
        """Begin training steps, when ``samples`` were trained in all. Waits that are over begin the profile anew."""
        if self._waited and not self.profiler.waits and not any(sample.is_mark for sample in self.measured):
            self._forget()
        self._waited = bool(self.profiler.waits)
        self._detects_drift = self._detects_drift and self._may_set
        self._know_slow()
        if self._may_set and self.profiler.next_limit_w is not None:
            self._start_profiling(reading, samples)
        else:
            self._set_chosen()

    def stop(self, reading: Reading, samples: int, *, bare: bool = False) -> None:
        """End training steps. The unfinished piece goes on in the next epoch.

        :param bare: the end was not announced; it may lie before ``reading``, which then does not count for drift.
        """
        if self.active:
            if reading.left_out and self.windows.is_open:
                self._cut_off += 1
                self.windows.drop()
                if self._cut_off >= _MAX_FAILURES:
                    self.profiler.know(slow=f"power limits are not profiled: {reading.why}, and an epoch is short")
            self.windows.pause(reading, samples)
            self._stop_profiling(reading, samples)
        elif bare:
            self._drift.pause()
        else:
            self.check_drift(reading, samples, pauses=True)

    def edge_due(self, now_s: float) -> bool:
        """Count a step; return whether an edge of a piece is due, and may be read."""
        return self.windows.edge_due(now_s) and (self.windows.is_open or self.pace.may("energy_j", "clocks"))

    @property
    def drift_check_pending(self) -> bool:
        """Whether training at the chosen limit is to be compared with the profile from the next step on."""
        return self._detects_drift and not self.active and not self._drift.is_open

    def pass_edge(self, reading: Reading, samples: int) -> bool:
        """Open a piece, or close it and go on to the next one, the next limit or the chosen limit.

        Returns whether the profile has become complete.
        """
        windows, was_open = self.windows, self.windows.is_open
        if was_open:
            windows.close(reading, samples)
        if not was_open or not windows.counter_moved:
            windows.open(reading, samples)
            return False
        self._cut_off = 0
        before_w = windows.limit_w
        if before_w == (top_w := max(self.profiler.limits_w, default=0.0)):
            # what was seen of the cap at the highest limit, before the next limit is decided
            seen = windows.cap.at[top_w]
            self.profiler.know(cap=(seen.share, seen.why_locked(self._device.busy())))
        self.keep(at_end=False)
        self._know_slow()
        next_w = self.profiler.next_limit_w
        if self._may_set and next_w is not None:
            if next_w == before_w and self._in_force(next_w):
                windows.open(reading, samples)
            else:
                self._set_next(reading, samples)
            return False
        self._stop_profiling(reading, samples)
        self._set_chosen()
        self._log_result()
        return next_w is None

    def keep_found(self) -> None:
        """Train on at the limit found: noise does not tell the best one from it."""
        self._observe = True
        if self._limits is not None and self._limits.can_set and self._limits.found_w is not None:
            self._limits.set_w(self._limits.found_w)

    def check_drift(self, reading: Reading, samples: int, *, pauses: bool = False) -> None:
        """Compare training at the chosen limit with the profile; where it drifted, measure it again, once per attempt.

        :param pauses: training steps end here.
        """
        self._follow()
        if reading.left_out:
            if pauses:
                self._drift.pause()
            return
        if self.profiler.slow and not pauses:
            self._know_slow()
            if self._may_set and self.profiler.next_limit_w is not None:  # the driver answers faster now
                self._start_profiling(reading, samples)
                return
        chosen_w = self._chosen_w
        rates = self.profiler.rates_at(self.profiler.best_w if self.profiler.why_none else chosen_w)
        if self.active or not self._detects_drift or rates is None or not self._in_force(chosen_w):
            return
        if not self._drift.drifted(reading, samples, rates[0], pauses=pauses):
            return
        log.warning(
            "Zeus: a %s %s no longer draws the %.3g J of its power profile, by over %.0f %%: the profile is measured "
            "again.",
            self.profiler.unit,
            self.profiler.of,
            rates[0],
            100 * MAX_DIFFERENCE,
        )
        self._detects_drift = False
        self._forget()
        if not pauses:
            self._start_profiling(reading, samples)

    def keep(self, *, at_end: bool = True) -> None:
        """Add the finished pieces to the profile. ``at_end`` of the attempt a part of a piece counts too."""
        if self.windows.limit_w is not None:
            self._device.limit_w()  # another process may have changed it
        if not self._in_force(self.windows.limit_w):
            self.windows.drop()
            return
        for sample in self.windows.take(at_end=at_end):
            self.profiler.add(sample)
            self._record(sample)

    # ------------------------------------------------------------------ figures
    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """Return the samples since the last call, added up, behind the mark of a reset. Any thread may call."""
        return summed_with_marks(drain(self.unsent))

    def excess(self, samples: int) -> tuple[float | None, float | None]:
        """(J, s) that profiling spent beyond the same samples at the chosen limit; 0 where nothing was profiled."""
        profiled = self._spent_samples + (samples - self._since_samples if self.active else 0)
        if profiled == 0:
            return 0.0, 0.0
        rates = self.profiler.rates_at(self._usual_w)
        if rates is None:
            return None, None
        spent_j = self.spent.energy_j
        return None if spent_j is None else spent_j - profiled * rates[0], self.spent.time_s - profiled * rates[1]

    def cost_per_sample(self) -> float | None:
        """Cost of a sample at the chosen limit [J]; None until every limit that had to be is measured."""
        rates = self.profiler.rates_at(self._usual_w) if self.profiler.walked and self._may_set else None
        return self.profiler.weights.cost(*rates) if rates else None

    def missed_saving(self, samples: int) -> MissedSaving | None:
        """In mode ``observe``: what training saves at the best limit; None before the first of these samples, and where
        it is not known.
        """
        if not self._observe or samples <= 0:
            return None
        return MissedSaving.of(self.profiler.search, self.profiler.measured, self._usual_w)

    # ------------------------------------------------------------------ inside
    @property
    def _may_set(self) -> bool:
        return self._limits is not None and self._limits.can_set and self.windows.failures < _MAX_FAILURES

    @property
    def _usual_w(self) -> float | None:
        """The limit without a signal: what the policy's EpochCost is of."""
        return self._limits.found_w if self._observe and self._limits else self.profiler.best_w

    @property
    def _chosen_w(self) -> float | None:
        """The limit to train at now, where nothing is profiled."""
        if self.profiler.why_none and self._limits:
            return self._limits.found_w
        if self._observe or self._conditions == Conditions():
            return self._usual_w
        return self.profiler.best_w_at(self._conditions, self._before_w)

    def _follow(self) -> None:
        """Where another limit has become the best one, by a signal or for want of time, set it."""
        before_w = self._before_w = self._chosen_w
        self._conditions = self._read_conditions()
        if self.pace.saves_up and not self.active:
            self._set_chosen()
        if self.active or self._chosen_w == before_w:
            return
        self._drift.restart()
        self._set_chosen()
        ratio, slowdown = self._conditions
        time = "" if slowdown is None else f"; the rest may take {slowdown:.2f} x as long as at the highest limit"
        signal = "" if ratio == 1 else f"; the followed signal is at {ratio:.2f} x its mean"
        log.info("Zeus: %g W is the best limit now%s%s.", self._chosen_w, signal, time)

    def _in_force(self, limit_w: float | None) -> bool:
        present_w = self._device.seen_limit_w
        return limit_w is not None and present_w is not None and same_w(limit_w, present_w)

    def _start_profiling(self, reading: Reading, samples: int) -> None:
        self.active = True
        self.spent.since = reading
        self._since_samples = samples
        self._set_next(reading, samples)

    def _stop_profiling(self, reading: Reading, samples: int) -> None:
        self.spent.close(reading)
        self._spent_samples += samples - self._since_samples
        self.active = False

    def _set_next(self, reading: Reading, samples: int) -> None:
        """Set the limit that is to be measured now."""
        limit_w = self.profiler.next_limit_w
        if limit_w is None or self._limits is None:
            return
        if not self._in_force(limit_w):
            if not self._limits.set_w(limit_w):
                self._stop_profiling(reading, samples)
                return
            self.windows.unsettle()
        self.windows.begin(reading, limit_w)

    def _set_chosen(self) -> None:
        """Set the best limit of a complete profile; to observe, or where energy cannot be measured, the limit found."""
        self._conditions = self._read_conditions()
        if self._limits is None:
            return
        if (why := self.profiler.why_none) and not self._why_said:
            self._why_said = True
            log.info("Zeus: %s. No power limit is chosen.", why)
        if self.windows.failures >= _MAX_FAILURES:
            if self._limits.can_set and self._limits.found_w is not None:
                self._limits.set_w(self._limits.found_w)
        elif self.profiler.next_limit_w is None and self._may_set and self._chosen_w is not None:
            self._set(self._limits, self._chosen_w)

    def _set(self, limits: LimitControl, limit_w: float) -> None:
        """Set a limit if it is not in force; later, while that takes more than 2 % of the training's time."""
        to_set_and_give_back = 2 * ("limit_w", "set_limit_w")
        is_due = not self._in_force(limit_w)
        self.pace.saves_up = is_due and not self.pace.may(*to_set_and_give_back)
        if is_due and not self.pace.saves_up:
            limits.set_w(limit_w)

    def _know_slow(self) -> None:
        """Where a limit is to be measured next, and reading a window takes too long, none is, for now."""
        if self._cut_off >= _MAX_FAILURES:
            return
        if self.profiler.slow:
            self.profiler.know(slow="")
        if self._may_set and self.profiler.next_limit_w is not None and (why := self.windows.fit()):
            self.profiler.know(slow=why)

    def _forget(self) -> None:
        """Begin the profile anew, with what was seen of the cap."""
        self._record(self.profiler.reset())
        self.windows.cap = CapWatch(self._device)
        self.windows.drop()
        self.windows.unsettle()

    def _record(self, sample: ProfileSample) -> None:
        self.measured.append(sample)
        self.unsent.append(sample)

    def _log_result(self) -> None:
        profiler = self.profiler
        if self.windows.failures >= _MAX_FAILURES:
            log.warning("Zeus gives up profiling: the energy counter of this device does not move or cannot be read.")
            return
        if profiler.why_none:
            return
        best_w, first_w = profiler.best_w, profiler.limits_w[0]
        best, first = profiler.rates_at(best_w), profiler.rates_at(first_w)
        if best is None or first is None:
            return
        log.info(
            "Zeus power profile %s: %g W is best; per %s %+.1f %% energy, %+.1f %% time against %g W.%s",
            profiler.of,
            best_w,
            profiler.unit,
            100 * (best[0] / first[0] - 1),
            100 * (best[1] / first[1] - 1),
            first_w,
            " The limit found is set again: mode is 'observe'." if self._observe else "",
        )


def drain(queue: deque[T]) -> tuple[T, ...]:
    """Remove and return everything in a queue. Another thread may be appending."""
    items: list[T] = []
    with contextlib.suppress(IndexError):
        while True:
            items.append(queue.popleft())
    return tuple(items)
