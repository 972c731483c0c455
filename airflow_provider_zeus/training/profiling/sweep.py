"""Profiles a training: measures a window at each power limit, sets the best one, and checks that
the profile holds.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.cost import Rate
from airflow_provider_zeus.model.partial_sums import summed_with_marks
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.patience import T
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.limit_format import same_w
from airflow_provider_zeus.power.meter import PacedReader, Reading, Span
from airflow_provider_zeus.training.profiling.measurement_windows import (
    MAX_DIFFERENCE,
    CapWatch,
    DriftDetector,
    MeasurementWindows,
)
from airflow_provider_zeus.training.profiling.profiler import Conditions, MissedSaving, Profiler

log = guarded_log(__name__)

_MAX_FAILURES = 3  # a counter that fails this often does not come back


class Sweep:
    """Profiling within one attempt.

    :param limits: if it sets none, nothing is profiled.
    :param observe: when the profile is complete, set the limit found instead of the best one.
    :param conditions: the conditions of the best limit now, besides the profile.
    """

    def __init__(
        self,
        device: Device,
        limits: LimitControl,
        profiler: Profiler,
        *,
        observe: bool,
        conditions: Callable[[], Conditions] = Conditions,
    ) -> None:
        self.active = False
        self.pace = PacedReader(device)
        self._cut_off = 0  # a piece may be cut off by chance; in short epochs each one would be
        self.measured: list[ProfileSample] = []
        self.unsent: deque[ProfileSample] = deque()  # sent twice, a sample would count twice
        self._device = device
        self._limits = limits
        self.profiler = profiler
        self._observe = observe
        self._read_conditions = conditions
        self._conditions = Conditions()
        self._before_w: float | None = None
        self.windows = MeasurementWindows(
            device, profiler.batch_size, profiler.min_s, window_steps=profiler.min_steps
        )
        # Counts settling, too: the training pays for it as for the windows.
        self.spent = Span()
        self._spent_samples = 0
        self._since_samples = 0
        self._why_said = False
        self._drift = DriftDetector(profiler.min_s, profiler.window_samples)
        self._detects_drift = bool(profiler.limits_w) and not profiler.weights.fastest
        self._waited = False

    def start(self, reading: Reading, samples: int) -> None:
        """Begin training steps, when ``samples`` were trained in all.

        Waits that are over begin the profile anew.
        """
        if self._waited and not self.profiler.waits:
            self._forget_waits()
        self._waited = bool(self.profiler.waits)
        self._detects_drift &= self._may_set
        self._know_slow()
        if self._has_next:
            self._start_profiling(reading, samples)
        else:
            self._set_chosen()

    def stop(self, reading: Reading, samples: int, *, bare: bool = False) -> None:
        """End training steps. The unfinished piece goes on in the next epoch.

        :param bare: the end was not announced; it may lie before ``reading``, which then does not
            count for drift.
        """
        if not self.active:
            if bare:
                self._drift.pause()
            else:
                self.check_drift(reading, samples, pauses=True)
            return
        if reading.left_out and self.windows.is_open:
            self._cut_off += 1
            self.windows.drop()
            if self._cut_off >= _MAX_FAILURES:
                self.profiler.know_slow(
                    f"power limits are not profiled: {reading.why}, and an epoch is short"
                )
        self.windows.pause(reading, samples)
        self._stop_profiling(reading, samples)

    def edge_due(self, now_s: float) -> bool:
        """Count a step, if profiling; return whether an edge of a piece is due, and may be read."""
        if not self.active or not self.windows.edge_due(now_s):
            return False
        return self.windows.is_open or self.pace.may("energy_j", "clocks")

    @property
    def drift_check_pending(self) -> bool:
        """Whether training at the chosen limit is to be compared with the profile from the next
        step on.
        """
        return self._detects_drift and not self.active and not self._drift.is_open

    def pass_edge(self, reading: Reading, samples: int) -> bool:
        """Open a piece, or close it and go on to the next one, the next limit or the chosen limit.

        Returns whether the profile has become complete.
        """
        windows = self.windows
        if not windows.is_open:
            windows.open(reading, samples)
            return False
        windows.close(reading, samples)
        if not windows.counter_moved:  # the tick comes later: the piece goes on until then
            windows.open(reading, samples)
            return False
        self._cut_off = 0
        before_w = windows.limit_w
        if before_w == self.profiler.top_w:
            # Before the next limit is decided: none is measured if the highest one never binds.
            cap = windows.cap.at[before_w]
            self.profiler.know_cap(cap.share, cap.why_locked(self._device.busy()))
        self.keep(at_end=False)
        self._know_slow()
        next_w = self.profiler.next_limit_w
        if not self._has_next:
            self._stop_profiling(reading, samples)
            self._set_chosen()
            self._log_result()
            return next_w is None
        if next_w == before_w and self._in_force(next_w):
            windows.open(reading, samples)
        else:
            self._set_next(reading, samples)
        return False

    def keep_found(self) -> None:
        """Train on at the limit found: noise does not tell the best one from it."""
        self._observe = True
        self._set_found()

    def check_drift(self, reading: Reading, samples: int, *, pauses: bool = False) -> None:
        """Compare training at the chosen limit with the profile; if it drifted, measure it again,
        once per attempt.

        :param pauses: training steps end here.
        """
        self._follow()
        if reading.left_out:
            if pauses:
                self._drift.pause()
            return
        if self.profiler.slow and not pauses:
            self._know_slow()
            if self._has_next:  # the driver answers faster now, so that windows can be read
                self._start_profiling(reading, samples)
                return
        rate = self._rate_to_compare()
        if rate is None:
            return
        if not self._drift.drifted(reading, samples, rate.energy_j, pauses=pauses):
            return
        log.warning(
            "Zeus: a %s %s no longer draws the %.3g J of its power profile, by over %.0f %%: the "
            "profile is measured again.",
            self.profiler.unit,
            self.profiler.of,
            rate.energy_j,
            100 * MAX_DIFFERENCE,
        )
        self._detects_drift = False  # once: a load that changes for good has no lasting profile
        self._forget()
        if not pauses:
            self._start_profiling(reading, samples)

    def _rate_to_compare(self) -> Rate | None:
        """The profile's rate of the training now; None if it is not compared with the profile."""
        chosen_w = self._chosen_w
        is_compared = self._detects_drift and not self.active
        if not is_compared or not self._in_force(chosen_w):
            return None
        if self.profiler.why_none:  # limits change nothing then, and the one found has no window
            chosen_w = self.profiler.best_w
        return self.profiler.rate_at(chosen_w)

    def keep(self, *, at_end: bool = True) -> None:
        """Add the finished pieces to the profile.

        ``at_end`` of the attempt a part of a piece counts too.
        """
        if self.windows.limit_w is not None:
            self._device.limit_w()  # read anew: under another's limit the pieces would be wrong
        if not self._in_force(self.windows.limit_w):
            self.windows.drop()
            return
        for sample in self.windows.take(at_end=at_end):
            self.profiler.add(sample)
            self._record(sample)

    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """Return the samples since the last call, added up, behind the mark of a reset.

        Any thread may call.
        """
        return summed_with_marks(drain(self.unsent))

    def excess(self, samples: int) -> tuple[float | None, float | None]:
        """(J, s) that profiling spent beyond the same samples at the chosen limit; 0 if nothing was
        profiled.
        """
        profiled = self._spent_samples
        if self.active:
            profiled += samples - self._since_samples
        if profiled == 0:
            return 0.0, 0.0
        rate = self.profiler.rate_at(self._usual_w)
        if rate is None:
            return None, None
        excess_s = self.spent.time_s - profiled * rate.time_s
        if self.spent.energy_j is None:
            return None, excess_s
        return self.spent.energy_j - profiled * rate.energy_j, excess_s

    def cost_per_sample(self) -> float | None:
        """Cost of a sample at the chosen limit [J]; None until every limit that had to be is
        measured.
        """
        if not self.profiler.walked or not self._may_set:
            return None
        rate = self.profiler.rate_at(self._usual_w)
        if rate is None:
            return None
        return self.profiler.weights.cost(*rate)

    def missed_saving(self, samples: int) -> MissedSaving | None:
        """In mode ``observe``: the saving at the best limit; None before the first of these
        samples, and if it is not known.
        """
        if not self._observe or samples <= 0:
            return None
        return MissedSaving.of(self.profiler.search, self.profiler.measured, self._usual_w)

    @property
    def _may_set(self) -> bool:
        return self._limits.can_set and self.windows.failures < _MAX_FAILURES

    @property
    def _has_next(self) -> bool:
        """Whether a limit is to be measured next, and may be set."""
        return self._may_set and self.profiler.next_limit_w is not None

    @property
    def _usual_w(self) -> float | None:
        """The limit without a signal: that of the policy's EpochCost."""
        if self._observe:
            return self._limits.found_w
        return self.profiler.best_w

    @property
    def _chosen_w(self) -> float | None:
        """The limit to train at now, if nothing is profiled."""
        if self.profiler.why_none:
            return self._limits.found_w
        if self._observe or self._conditions == Conditions():
            return self._usual_w
        return self.profiler.best_w_at(self._conditions, self._before_w)

    def _follow(self) -> None:
        """If another limit has become the best one, by a signal or for want of time, set it."""
        before_w = self._chosen_w
        self._before_w = before_w
        self._conditions = self._read_conditions()
        if self.pace.saves_up and not self.active:
            self._set_chosen()
        if self.active or self._chosen_w == before_w:
            return
        self._drift.restart()
        self._set_chosen()
        ratio, slowdown = self._conditions
        why = ""
        if ratio != 1:
            why = f"; the followed signal is at {ratio:.2f} x its mean"
        if slowdown is not None:
            why += f"; the rest may take {slowdown:.2f} x as long as at the highest limit"
        log.info("Zeus: %g W is the best limit now%s.", self._chosen_w, why)

    def _in_force(self, limit_w: float | None) -> bool:
        present_w = self._device.seen_limit_w
        if limit_w is None or present_w is None:
            return False
        return same_w(limit_w, present_w)

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
        if limit_w is None:
            return
        if not self._in_force(limit_w):
            if not self._limits.set_w(limit_w):
                self._stop_profiling(reading, samples)
                return
            self.windows.unsettle()
        self.windows.begin(reading, limit_w)

    def _set_chosen(self) -> None:
        """Set the best limit of a complete profile; to observe, or if energy cannot be measured,
        the limit found.
        """
        self._conditions = self._read_conditions()
        if self.profiler.why_none and not self._why_said:
            self._why_said = True
            log.info("Zeus: %s. No power limit is chosen.", self.profiler.why_none)
        if self.windows.failures >= _MAX_FAILURES:
            self._set_found()
            return
        chosen_w = self._chosen_w
        is_complete = self.profiler.next_limit_w is None and self._may_set
        if is_complete and chosen_w is not None:
            self._set(chosen_w)

    def _set_found(self) -> None:
        """Set the limit found, if limits may be set."""
        if self._limits.found_w is not None:
            self._limits.set_w(self._limits.found_w)

    def _set(self, limit_w: float) -> None:
        """Set a limit if it is not in force; later, while that takes more than 2 % of the
        training's time.
        """
        self.pace.saves_up = False
        if self._in_force(limit_w):
            return
        # With the call that gives it back: that must not be left for want of time.
        to_set_and_give_back = 2 * ("limit_w", "set_limit_w")
        self.pace.saves_up = not self.pace.may(*to_set_and_give_back)
        if not self.pace.saves_up:
            self._limits.set_w(limit_w)

    def _know_slow(self) -> None:
        """While reading a window takes too long, no limit is measured next."""
        if self._cut_off >= _MAX_FAILURES:
            return
        if self.profiler.slow:
            self.profiler.know_slow("")
        if self._has_next:
            why = self.windows.fit()
            if why:
                self.profiler.know_slow(why)

    def _forget_waits(self) -> None:
        """Begin the profile anew after waits, once per attempt."""
        if not any(sample.is_mark for sample in self.measured):
            self._forget()

    def _forget(self) -> None:
        """Begin the profile anew, and the watch of the cap with it."""
        self._record(self.profiler.reset())
        self.windows.cap = CapWatch(self._device)
        self.windows.drop()
        self.windows.unsettle()

    def _record(self, sample: ProfileSample) -> None:
        self.measured.append(sample)
        self.unsent.append(sample)

    def _log_result(self) -> None:
        profiler = self.profiler
        best = profiler.rate_at(profiler.best_w)
        first_w = profiler.limits_w[0]
        first = profiler.rate_at(first_w)
        if self.windows.failures >= _MAX_FAILURES:
            log.warning(
                "Zeus gives up profiling: the energy counter of this device does not move or "
                "cannot be read."
            )
            return
        if profiler.why_none:
            return
        if best is None or first is None:
            return
        remark = ""
        if self._observe:
            remark = " The limit found is set again: mode is 'observe'."
        log.info(
            "Zeus power profile %s: %g W is best; per %s %+.1f %% energy, %+.1f %% time against %g "
            "W.%s",
            profiler.of,
            profiler.best_w,
            profiler.unit,
            100 * (best.energy_j / first.energy_j - 1),
            100 * (best.time_s / first.time_s - 1),
            first_w,
            remark,
        )


def drain(queue: deque[T]) -> tuple[T, ...]:
    """Remove and return everything in a queue. Another thread may be appending."""
    items: list[T] = []
    # Until it is empty: a look at its length would be old by the next popleft().
    with contextlib.suppress(IndexError):
        while True:
            items.append(queue.popleft())
    return tuple(items)
