"""Measures one attempt: energy, time, samples, epochs, power points."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from airflow_provider_zeus.model.partial_sums import thinned
from airflow_provider_zeus.model.size_bounds import MAX_POINTS
from airflow_provider_zeus.model.trial import Observation, PowerPoint
from airflow_provider_zeus.power.cpu import RaplDevice, host_beside
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.meter import (
    SPARE,
    Reading,
    Span,
    device_figures,
    difference,
    too_slow,
)
from airflow_provider_zeus.training.pauses import NO_PAUSE, EpochSpent, Pauses
from airflow_provider_zeus.training.profiling.sweep import Sweep, drain

TICK_S = 1.0  # by the device's clock: a process that is killed loses no more than that


class AttemptMeter:
    """Counts samples and epochs, and adds up energy and time: in all, in training steps, in
    profiling.

    The device is synchronised at edges only: start and end of an epoch, of its training steps, of a
    profiling window. If its driver is slow, the :class:`.PacedReader` of the sweep leaves readings
    out.
    """

    def __init__(self, device: Device, sweep: Sweep, limit_found_w: float | None) -> None:
        self.samples = 0
        self.epochs_done = 0
        self.epoch_from = 0
        self.training = False  # validation is measured apart: no limit is chosen by it
        self.due_s = 0.0  # most steps only compare with it: readings in each would slow them
        # None once a loader cannot tell: the sum of the others would be too small.
        self.expected: float | None = 0.0
        # A heartbeat sends them: a line for each point would fill the file.
        self.points: deque[PowerPoint] = deque()
        self._device = device
        self._sweep = sweep
        self._limit_found_w = limit_found_w
        self._pace = sweep.pace
        self._total = Span()
        self.train = Span()  # apart, since validation does not depend on the batch size
        self._point: Span | None = None
        # Each beside the training steps and in them: a validation, which waits for no batch of
        # theirs, must not hide how long the steps wait.
        self._busy_s = [0.0, 0.0]
        self._busy_known_s = [0.0, 0.0]
        self._why_not_busy = ""
        self._pauses = Pauses()
        self._spent_before = NO_PAUSE  # sums go on over all epochs, and a pause shows in one alone
        self._tick_s = 0.0
        self._epoch_start: Reading | None = None
        # In a loop without a loader nothing announces the end of the training steps: it is found
        # by the gap after the last one.
        self._bare = False
        self._last_step: Reading | None = None  # training ends with it, and not with validation
        self._step_s = 0.0  # a gap is long only beside a usual step: validation begins there
        self._host: RaplDevice | None = None  # opened late: imports would count before

    def start_epoch(self) -> None:
        """Begin an epoch. The first one starts the clock of the trial."""
        is_first = self._point is None
        reading = self._pace.edge(must=is_first)
        self._epoch_start = reading
        self.epoch_from = self.samples
        self.expected = 0.0
        if is_first:
            self._total.since = reading
            self._point = Span(reading)
            self._host = host_beside(self._device)
            self._pace.begin()
        else:
            self.advance(reading)

    def start_training(self, *, first_step_done: bool) -> None:
        """Begin training steps. If the first one is already done, they began with the epoch."""
        if not self.training:
            self._begin_training(first_step_done=first_step_done)
        self._tick_s = self._device.now_s() + TICK_S
        self.due_s = self._tick_s
        if self._sweep.active or self._sweep.drift_check_pending:
            self.due_s = 0.0  # an edge of a window may be any step

    def _begin_training(self, *, first_step_done: bool) -> None:
        is_first = not self.train.time_s
        reading = self._pace.edge(must=is_first)
        self.advance(reading, phase_ends=not first_step_done)
        if first_step_done and not self.stepped:
            reading = self._epoch_start or reading
        self.training = True
        self._bare = first_step_done
        self._last_step = None
        self.train.since = reading
        self._sweep.start(reading, self.samples)
        if is_first:
            self._pace.begin()

    def take_due_readings(self, now_s: float) -> bool:
        """After a step at ``due_s`` or later: pass an edge of a profiling window, and every second
        take the sums.

        Returns whether the sums are new.
        """
        sweep = self._sweep
        complete = False
        reading: Reading | None = None
        if sweep.edge_due(now_s):
            reading = self._pace.edge(must=True)
            self.advance(reading, phase_ends=True)
            complete = sweep.pass_edge(reading, self.samples)
        elif sweep.active and self._bare:
            reading = self._pace.read(share=SPARE / 2)
        summed = complete or sweep.drift_check_pending or now_s >= self._tick_s
        if summed:
            self._tick_s = now_s + TICK_S
            reading = self._pace.read(share=SPARE)
            self.advance(reading)
            sweep.check_drift(reading, self.samples)
        self._note_step(reading)
        self.due_s = 0.0 if sweep.active else self._tick_s
        return summed

    def _note_step(self, reading: Reading | None) -> None:
        """Note the time of a step in a loop whose end is not announced, while it is profiled."""
        step = None
        if self._sweep.active and self._bare:
            step = reading
        self._step_s = 0.0
        if step is not None and self._last_step is not None:
            self._step_s = step.time_s - self._last_step.time_s
        self._last_step = step

    def end_training(self) -> None:
        """End the training steps of an epoch; validation follows."""
        if not self.training:
            return
        reading = self._pace.edge()
        last = self._last_step
        pause_steps = 2.0  # a single step varies by less, and a validation takes longer
        if last is not None and reading.time_s - last.time_s > pause_steps * self._step_s:
            if last.left_out:  # no energy is known of that moment, so the window cannot end there
                self._sweep.windows.drop()
            else:
                reading = last  # up to now, the validation would count as training
        self.advance(reading, phase_ends=True)
        self._sweep.stop(reading, self.samples, bare=self._bare)
        self.train.close(reading)
        self.training = False

    def end_epoch(self, *, is_last: bool) -> None:
        """Count an epoch as done after its report, with energy and time up to now.

        :param is_last: of the attempt: the device is read, however long that takes.
        """
        self.end_training()
        self.advance(self._pace.edge(must=is_last))
        # Validation and the report, too: a paused epoch is one that took long in all.
        self._pauses.end_epoch(self._spent_in_epoch())
        self._spent_before = self._spent()
        self.epochs_done += 1
        self.epoch_from = self.samples

    def advance(self, reading: Reading, *, phase_ends: bool = False) -> None:
        """Count energy and time up to ``reading``.

        Adds a power point about once a second and at the end of a phase.
        """
        self._total.advance(reading)
        self.train.advance(reading)
        self._sweep.spent.advance(reading)
        point = self._point
        if point is None:
            return
        point.advance(reading)
        if reading.left_out:
            return
        # Counters have ticks of 20 to 100 ms: over a shorter time the power would be mostly theirs.
        # A shorter part goes into the next point.
        point_s = 0.5 if phase_ends else 1.0
        if point.time_s < point_s:
            return
        phase = "validate"
        if self.training:
            phase = "profile" if self._sweep.active else "train"
        if self._pace.may("limit_w", share=SPARE):
            self._device.limit_w()
        limit_w = self._device.seen_limit_w
        at_s = self._total.time_s
        self.points.append(
            PowerPoint(t_s=at_s, power_w=point.power_w, limit_w=limit_w, phase=phase)
        )
        if len(self.points) > 2 * MAX_POINTS:  # nothing sends them: they must not fill the memory
            self.points.extend(thinned(drain(self.points)))
        if self._pace.may("busy", share=SPARE):
            self._add_busy(point.time_s)
        else:
            self._why_not_busy = too_slow(self._device.takes_s("busy"))
        self._point = Span(reading)

    def _add_busy(self, time_s: float) -> None:
        """Add how long the GPU worked of the last ``time_s`` seconds, if it says so."""
        busy = self._device.busy()
        if busy is None:
            return
        self._busy_s[self.training] += min(busy, 1.0) * time_s
        self._busy_known_s[self.training] += time_s

    def read_last(self, *, is_running: bool) -> None:
        """Read the device for the last time in this attempt, however long that takes.

        :param is_running: the attempt ended within an epoch, which counts up to now.
        """
        if is_running or self._total.behind:
            self.advance(self._pace.read(must=True))
        self._device.limit_w()

    def close(self) -> None:
        """Read the host no more: the attempt is over."""
        if self._host is not None:
            self._host.close()

    @property
    def samples_per_epoch(self) -> float | None:
        """Samples of one epoch: the mean of those done; in the first epoch, the number that its
        loaders announced.
        """
        if self.epochs_done:
            return self.epoch_from / self.epochs_done or None
        return self.expected or None

    @property
    def behind(self) -> bool:
        """Whether the newest reading was left out: the energy up to now is not known yet."""
        return self._total.behind

    @property
    def stepped(self) -> bool:
        """Whether the present epoch has had a step."""
        return self.samples > self.epoch_from

    @property
    def epochs(self) -> float | None:
        """Epochs done, with the fraction of the present one; None while the size of the first one
        is not known.
        """
        size = self.samples_per_epoch
        if size is not None:
            begun = (self.samples - self.epoch_from) / size
            return self.epochs_done + min(begun, 1.0)
        if self.stepped and not self.epochs_done:
            return None
        return float(self.epochs_done)

    def busy(self, *, in_steps: bool = False) -> float | None:
        """Share of the time, or of that of the training steps alone, in which the GPU worked; None
        if not told.
        """
        known_s = sum(self._busy_known_s[in_steps:])
        return sum(self._busy_s[in_steps:]) / known_s if known_s else None

    @property
    def paused_s(self) -> float:
        """For how long the training stood still [s]; known from the fourth epoch on."""
        return self._pauses.total(self._spent_in_epoch()).time_s

    def _spent(self) -> EpochSpent:
        """Time and energy up to the last reading."""
        time_s = self._total.time_s
        energy_j = None if self._total.behind else self._total.energy_j
        return EpochSpent(
            time_s=time_s,
            energy_j=energy_j,
            rest_s=max(time_s - self.train.time_s, 0.0),
            rest_j=difference(energy_j, self.train.energy_j),
        )

    def _spent_in_epoch(self) -> EpochSpent:
        """The part of it since the last epoch ended."""
        return self._spent().minus(self._spent_before)

    def observation(self) -> Observation:
        """Sums up to the last reading.

        Fields that only the attempt knows (metric, target, ...) are left out.
        """
        device = self._device
        total = self._total
        spent = self._spent()
        pause = self._pauses.total(self._spent_in_epoch())
        excess_j, excess_s = self._sweep.excess(self.samples)
        figures: dict[str, float | None] = {
            "energy_j": total.energy_j,
            "rest_j": difference(spent.rest_j, pause.rest_j or 0.0),
            "excess_j": excess_j,
            "excess_s": excess_s,
        }
        if pause.time_s:
            figures["paused_j"] = pause.energy_j
        is_measured = self._is_measured()
        if not is_measured:
            figures |= {name: None for name in figures if name.endswith("_j")}
        reasons = self._reasons(figures)
        if self._point is None:
            figures["excess_s"] = None
        else:
            figures["time_s"] = total.time_s
            figures["rest_s"] = spent.rest_s - pause.rest_s
        host_j = None
        if self._host is not None:
            host_j = self._host.energy_j() or None  # 0: its counters have not moved yet
        return Observation(
            **figures,  # type: ignore[arg-type]  # its values are floats or None
            **device_figures(device),
            epochs=self.epochs,
            samples=self.samples,
            samples_per_epoch=self.samples_per_epoch,
            paused_s=pause.time_s or None,
            power_limit_w=device.seen_limit_w,
            gpu_energy_j=total.each_j if is_measured else None,
            gpu_busy=self.busy(),
            host_j=host_j,
            host_source=None if host_j is None else "rapl",
            limit_found_w=self._limit_found_w,
            reasons=reasons,
        )

    def _is_measured(self) -> bool:
        """Whether its energy is known up to the last reading, as far as that did not fail."""
        if self._point is None or self._device.info.energy_source is None:
            return False
        total = self._total
        return not any((total.still, total.short, total.behind))

    def _reasons(self, figures: Mapping[str, float | None]) -> dict[str, str]:
        """Why a figure is missing.

        Without a reason, a reader keeps the reason of an earlier heartbeat.
        """
        missing = self._device.missing
        reasons = {}
        if self._point is not None:
            unchosen = "the limit that would have been chosen is not measured yet"
            unread = self._why_unread() or unchosen
            lacking = [name for name, value in figures.items() if value is None]
            reasons = {name: unread if name.endswith("_j") else unchosen for name in lacking}
        if self.epochs is None:
            reasons["epochs"] = (
                "the data loader cannot tell the size of an epoch, and none was completed"
            )
        why_not_busy = missing.get("gpu_busy") or self._why_not_busy
        if self.busy() is None and why_not_busy:
            reasons["gpu_busy"] = why_not_busy
        if "limit_w" in missing:
            reasons["power_limit_w"] = missing["limit_w"]
        if "energy_j" in reasons and self._device.info.count > 1:
            reasons["gpu_energy_j"] = reasons["energy_j"]
        return reasons

    def _why_unread(self) -> str:
        """Why energy is not known up to now; empty if it is."""
        total = self._total
        behind = too_slow(self._device.takes_s("energy_j")) if total.behind else ""
        reasons = (
            self._device.missing.get("energy_j"),
            total.reason,
            self.train.reason,
            total.still,
            total.short,
            behind,
        )
        return next(filter(None, reasons), "")
