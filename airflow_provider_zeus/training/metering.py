"""Measures one attempt: energy, time, samples, epochs, power points."""

from __future__ import annotations

from collections import deque

from airflow_provider_zeus.model.size_bounds import MAX_POINTS, thinned
from airflow_provider_zeus.model.trial import Observation, PowerPoint
from airflow_provider_zeus.power.cpu import RaplDevice, host_beside
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.meter import SPARE, Reading, Span, too_slow
from airflow_provider_zeus.training.pauses import EpochSpent, Pauses
from airflow_provider_zeus.training.profiling.sweep import Sweep, drain

TICK_S = 1.0  # how often the sums of a running epoch are taken [s of the device's clock]


class AttemptMeter:
    """Counts samples and epochs, and adds up energy and time: in all, in training steps, in profiling.

    The device is synchronised at edges only: start and end of an epoch, of its training steps, of a profiling window.
    Where its driver is slow, the :class:`.PacedReader` of the sweep leaves readings out.
    """

    def __init__(self, device: Device, sweep: Sweep, limit_found_w: float | None) -> None:
        self.samples = 0  # trained so far
        self.epochs_done = 0
        self.epoch_from = 0  # samples when the present epoch began
        self.training = False  # within the training steps of an epoch
        self.due_s = 0.0  # when a step next calls take_due_readings() [s of the device's clock]
        self.expected: float | None = (
            0.0  # samples of the present epoch, as its loaders announced them; None: not known
        )
        self.points: deque[PowerPoint] = deque()  # not yet sent
        self._device, self._sweep, self._limit_found_w = device, sweep, limit_found_w
        self._pace = sweep.pace
        self._total = Span()
        self.train = Span()  # the training steps alone, without validation, up to the last reading
        self._point: Span | None = None  # since the last power point; None before the first epoch
        # seconds in which the GPU worked, and in which it says so: beside the training steps, and in them
        self._busy_s, self._busy_known_s = [0.0, 0.0], [0.0, 0.0]
        self._why_not_busy = ""  # why it was not asked
        self._pauses = Pauses()
        self._spent_before = EpochSpent(0.0, 0.0, 0.0, 0.0)  # by the epochs that have ended
        self._tick_s = 0.0  # when the sums are next taken
        self._epoch_start: Reading | None = None
        self._bare = False  # a loop of steps without a loader: the end of the training steps is not announced
        self._last_step: Reading | None = None  # after the last step, if one was taken
        self._step_s = 0.0  # time between the last two of them
        self._host: RaplDevice | None = None  # from the first epoch on, where it can be read

    # ------------------------------------------------------------------ edges
    def start_epoch(self) -> None:
        """Begin an epoch. The first one starts the clock of the trial."""
        is_first = self._point is None
        self._epoch_start = reading = self._pace.edge(must=is_first)
        self.epoch_from, self.expected = self.samples, 0.0
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
            is_first = not self.train.time_s
            reading = self._pace.edge(must=is_first)
            self.advance(reading, phase_ends=not first_step_done)
            if first_step_done and self.samples == self.epoch_from:
                reading = self._epoch_start or reading
            self.training, self._bare = True, first_step_done
            self._last_step = None
            self.train.since = reading
            self._sweep.start(reading, self.samples)
            if is_first:
                self._pace.begin()
        self._tick_s = self._device.now_s() + TICK_S
        self.due_s = 0.0 if self._sweep.active or self._sweep.drift_check_pending else self._tick_s

    def take_due_readings(self, now_s: float) -> bool:
        """After a step at ``due_s`` or later: pass an edge of a profiling window, and every second take the sums.

        Returns whether the sums are new.
        """
        sweep, complete = self._sweep, False
        reading: Reading | None = None
        if sweep.active and sweep.edge_due(now_s):
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
        step = reading if sweep.active and self._bare else None
        self._step_s = step.time_s - self._last_step.time_s if step and self._last_step else 0.0
        self._last_step = step
        self.due_s = 0.0 if sweep.active else self._tick_s
        return summed

    def end_training(self) -> None:
        """End the training steps of an epoch; what follows is validation."""
        if not self.training:
            return
        reading = self._pace.edge()
        last = self._last_step
        pause_steps = 2.0  # after so many step times without a step, the training steps have ended
        if last is not None and reading.time_s - last.time_s > pause_steps * self._step_s:
            if last.left_out:  # the piece would end with what was no step
                self._sweep.windows.drop()
            else:
                reading = last  # what came after it was no step
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
        self._pauses.end_epoch(self._spent_in_epoch())
        self._spent_before = self._spent()
        self.epochs_done += 1
        self.epoch_from = self.samples

    def advance(self, reading: Reading, *, phase_ends: bool = False) -> None:
        """Count energy and time up to ``reading``. Adds a power point about once a second and at the end of a phase."""
        self._total.advance(reading)
        self.train.advance(reading)
        self._sweep.spent.advance(reading)
        point = self._point
        if point is None:
            return
        point.advance(reading)
        if reading.left_out:
            return
        point_s = 1.0  # least time between two power points [s]
        last_point_s = 0.5  # the same where a phase or a limit ends; a shorter part goes into the next point
        if point.time_s < (last_point_s if phase_ends else point_s):
            return
        phase = "validate" if not self.training else "profile" if self._sweep.active else "train"
        if self._pace.may("limit_w", share=SPARE):
            self._device.limit_w()
        limit_w = self._device.seen_limit_w
        at_s = self._total.time_s
        self.points.append(PowerPoint(t_s=at_s, power_w=point.power_w, limit_w=limit_w, phase=phase))
        if len(self.points) > 2 * MAX_POINTS:  # nothing sends them: thin them out
            self.points.extend(thinned(drain(self.points)))
        if not self._pace.may("busy", share=SPARE):
            self._why_not_busy = too_slow(self._device.takes_s("busy"))
        elif (busy := self._device.busy()) is not None:
            self._busy_s[self.training] += min(busy, 1.0) * point.time_s
            self._busy_known_s[self.training] += point.time_s
        self._point = Span(reading)

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

    # ------------------------------------------------------------------ sums
    @property
    def samples_per_epoch(self) -> float | None:
        """Samples of one epoch: the mean of those done; in the first epoch, what its loaders announced."""
        if self.epochs_done:
            return self.epoch_from / self.epochs_done or None
        return self.expected or None

    @property
    def behind(self) -> bool:
        """Whether the newest reading was left out, so that the energy up to now is not known yet."""
        return self._total.behind

    @property
    def stepped(self) -> bool:
        """Whether the present epoch has had a step."""
        return self.samples > self.epoch_from

    @property
    def epochs(self) -> float | None:
        """Epochs done, with the fraction of the present one; None while the size of the first one is not known."""
        begun, size = self.samples - self.epoch_from, self.samples_per_epoch
        if begun and size is None and not self.epochs_done:
            return None
        return self.epochs_done + (min(begun / size, 1.0) if size else 0.0)

    def busy(self, *, in_steps: bool = False) -> float | None:
        """Share of the time, or of that of the training steps alone, in which the GPU worked; None where not told."""
        worked_s, known_s = (each[True] if in_steps else sum(each) for each in (self._busy_s, self._busy_known_s))
        return worked_s / known_s if known_s else None

    @property
    def paused_s(self) -> float:
        """For how long the training stood still [s]; known from the fourth epoch on."""
        return self._pauses.total(self._spent_in_epoch()).time_s

    def _spent(self) -> EpochSpent:
        """Time and energy up to the last reading."""
        total, train = self._total, self.train
        energy_j = None if total.behind else total.energy_j
        rest_j = None if energy_j is None or train.energy_j is None else energy_j - train.energy_j
        return EpochSpent(total.time_s, energy_j, max(total.time_s - train.time_s, 0.0), rest_j)

    def _spent_in_epoch(self) -> EpochSpent:
        """The part of it since the last epoch ended."""
        now, before = self._spent(), self._spent_before
        return EpochSpent(
            now.time_s - before.time_s,
            None if now.energy_j is None or before.energy_j is None else now.energy_j - before.energy_j,
            now.rest_s - before.rest_s,
            None if now.rest_j is None or before.rest_j is None else now.rest_j - before.rest_j,
        )

    def observation(self) -> Observation:
        """Sums up to the last reading. Fields that only the attempt knows (metric, target, ...) are left out."""
        started, info, epochs = self._point is not None, self._device.info, self.epochs
        total, spent = self._total, self._spent()
        pause = self._pauses.total(self._spent_in_epoch())
        excess_j, excess_s = self._sweep.excess(self.samples)
        energy_j, each_j = total.energy_j, total.each_j
        rest_j = None if spent.rest_j is None else spent.rest_j - (pause.rest_j or 0.0)
        paused_j = pause.energy_j if pause.time_s else None
        if info.energy_source is None or not started or total.still or total.behind:
            energy_j = rest_j = excess_j = paused_j = each_j = None
        figures = {"energy_j": energy_j, "rest_j": rest_j, "excess_j": excess_j, "excess_s": excess_s}
        if pause.time_s:
            figures["paused_j"] = paused_j
        return Observation(
            epochs=epochs,
            samples=self.samples,
            samples_per_epoch=self.samples_per_epoch,
            energy_j=energy_j,
            rest_j=rest_j,
            excess_j=excess_j,
            time_s=total.time_s if started else None,
            rest_s=spent.rest_s - pause.rest_s if started else None,
            excess_s=excess_s if started else None,
            paused_j=paused_j,
            paused_s=pause.time_s or None,
            power_limit_w=self._device.seen_limit_w,
            device_model=info.model,
            device_count=info.count,
            max_power_w=info.max_power_w,
            energy_source=info.energy_source,
            gpu_uuid=self._device.uuid,
            gpu_energy_j=each_j,
            gpu_busy=self.busy(),
            host_j=(host_j := self._host.energy_j() or None if self._host else None),
            host_source=None if host_j is None else "rapl",
            limit_found_w=self._limit_found_w,
            reasons=self._reasons(epochs, **figures),
        )

    def _reasons(self, epochs: float | None, **figures: float | None) -> dict[str, str]:
        """Why a figure is missing. Without a reason, a reader keeps the reason of an earlier heartbeat."""
        missing, reasons = self._device.missing, {}
        not_profiled = "the limit that would have been chosen is not measured yet"
        if self._point is not None:
            behind = too_slow(self._device.takes_s("energy_j")) if self._total.behind else ""
            unread = missing.get("energy_j") or self._total.reason or self.train.reason or self._total.still or behind
            for name in (name for name, value in figures.items() if value is None):
                reasons[name] = (unread if name.endswith("_j") else None) or not_profiled
        if epochs is None:
            reasons["epochs"] = "the data loader cannot tell the size of an epoch, and none was completed"
        if self.busy() is None and (why := missing.get("gpu_busy") or self._why_not_busy):
            reasons["gpu_busy"] = why
        if "limit_w" in missing:
            reasons["power_limit_w"] = missing["limit_w"]
        if "energy_j" in reasons and self._device.info.count > 1:
            reasons["gpu_energy_j"] = reasons["energy_j"]
        return reasons
