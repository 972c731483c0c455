"""What one attempt draws and how far it is: energy, time, samples, epochs, power points."""

from __future__ import annotations

from collections import deque

from airflow_provider_zeus.optimizer.points import MAX_POINTS, thinned
from airflow_provider_zeus.optimizer.trial import Observation, PowerPoint
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.meter import Mark, Span, edge
from airflow_provider_zeus.training.sweep import Sweep, taken

_POINT_S = 1.0  # between two power points, at least [s]
_LAST_POINT_S = 0.5  # the same where a phase or a limit ends; what is shorter goes into the next point
_LONGER = 2.0  # than a step takes: more than its end followed it


class Tally:
    """Counts samples and epochs, and adds up what the device draws: all, in training steps, in profiling.

    The device is synchronised at edges only: start and end of an epoch and of its training steps.
    """

    def __init__(self, device: Device, sweep: Sweep, limit_found_w: float | None) -> None:
        self.samples = 0  # trained so far
        self.epochs_done = 0
        self.training = False  # within the training steps of an epoch
        self.bare = False  # no loader tells where they end
        self.points: deque[PowerPoint] = deque()  # not yet sent
        self._device, self._sweep, self._limit_found_w = device, sweep, limit_found_w
        self._total, self._train = Span(), Span()
        self._point: Span | None = None  # since the last power point; None before the first epoch
        self._epoch_mark: Mark | None = None
        self._epoch_from = 0  # samples when the present epoch began
        self._expected: float | None = 0.0  # samples of the present epoch, as far as its loaders told
        self._last: Mark | None = None  # after the last step, where one was taken
        self._pace_s = 0.0  # between the last two of them

    # ------------------------------------------------------------------ edges
    def start_epoch(self) -> None:
        """An epoch begins; the first one starts the clock of the trial."""
        self._epoch_mark = mark = edge(self._device)
        self._epoch_from, self._expected = self.samples, 0.0
        if self._point is None:
            self._total.open(mark)
            self._point = Span(mark)
        else:
            self.touch(mark)

    def expect(self, samples: float | None) -> None:
        """A loader begins a pass of so many samples; None when it cannot tell."""
        known = self._expected is not None and samples is not None
        self._expected = (self._expected or 0.0) + (samples or 0.0) if known else None

    def start_training(self, *, first_step_done: bool) -> None:
        """Training steps begin; where nobody said so before the first of them was done, they began with the epoch."""
        if self.training:
            return
        mark = edge(self._device)
        self.touch(mark, phase_ends=not first_step_done)
        if first_step_done and self.samples == self._epoch_from:
            mark = self._epoch_mark or mark
        self.training, self.bare = True, first_step_done
        self._last = None
        self._train.open(mark)
        self._sweep.start(mark, self.samples)

    def step_done(self, mark: Mark | None) -> None:
        """A step was made. While profiling, where no loader tells whether it was the epoch's last one, with its end."""
        self._pace_s = mark.time_s - self._last.time_s if mark and self._last else 0.0
        self._last = mark

    def end_training(self) -> None:
        """The training steps of an epoch are over; what follows is validation."""
        if not self.training:
            return
        mark, last = edge(self._device), self._last
        if last is not None and mark.time_s - last.time_s > _LONGER * self._pace_s:
            mark = last  # what came since was no step
        self.touch(mark, phase_ends=True)
        self._sweep.stop(mark, self.samples, bare=self.bare)
        self._train.close(mark)
        self.training = False

    def end_epoch(self) -> None:
        """A report came: the epoch counts as done, energy and time count up to here."""
        self.end_training()
        self.touch(edge(self._device))
        self.epochs_done += 1
        self._epoch_from = self.samples

    def touch(self, mark: Mark, *, phase_ends: bool = False) -> None:
        """Count energy and time up to ``mark``; a power point about every second, and where a phase or limit ends."""
        self._total.advance(mark)
        self._train.advance(mark)
        self._sweep.advance(mark)
        if self._point is None:
            return
        self._point.advance(mark)
        if self._point.time_s >= (_LAST_POINT_S if phase_ends else _POINT_S):
            self._add_point(self._point.power_w)
            self._point = Span(mark)

    def _add_point(self, power_w: float | None) -> None:
        """Keep a point until it is sent; where nothing sends them they are thinned, so that they stay few."""
        limit_w, phase = self._device.limit_w(), self._phase()
        self.points.append(PowerPoint(t_s=self._total.time_s, power_w=power_w, limit_w=limit_w, phase=phase))
        if len(self.points) > 2 * MAX_POINTS:
            self.points.extend(thinned(taken(self.points)))

    # ------------------------------------------------------------------ sums
    @property
    def samples_per_epoch(self) -> float | None:
        """Samples of one epoch: the mean of those done; in the first one, what its loaders told."""
        if self.epochs_done:
            return self._epoch_from / self.epochs_done or None
        return self._expected or None

    @property
    def epochs(self) -> float | None:
        """Epochs done with the fraction of the present one; None while the size of the first one is not known."""
        begun, size = self.samples - self._epoch_from, self.samples_per_epoch
        if begun and size is None and not self.epochs_done:
            return None
        return self.epochs_done + (min(begun / size, 1.0) if size else 0.0)

    def observation(self) -> Observation:
        """Sums up to the last edge. Fields that only the run handle knows (metric, target, ...) are left open."""
        started, info, epochs = self._point is not None, self._device.info, self.epochs
        excess_j, excess_s = self._sweep.excess(self.samples)
        energy_j, rest_j, each_j = self._total.energy_j, self._rest_j(), self._total.each_j
        if info.energy_source is None or not started:
            energy_j = rest_j = excess_j = each_j = None
        return Observation(
            epochs=epochs,
            samples=self.samples,
            samples_per_epoch=self.samples_per_epoch,
            energy_j=energy_j,
            rest_j=rest_j,
            excess_j=excess_j,
            time_s=self._total.time_s if started else None,
            rest_s=max(self._total.time_s - self._train.time_s, 0.0) if started else None,
            excess_s=excess_s if started else None,
            power_limit_w=self._device.limit_w(),
            device_model=info.model,
            device_count=info.count,
            max_power_w=info.max_power_w,
            energy_source=info.energy_source,
            gpu_uuid=self._device.uuid,
            gpu_energy_j=each_j,
            limit_found_w=self._limit_found_w,
            reasons=self._reasons(epochs, energy_j=energy_j, rest_j=rest_j, excess_j=excess_j, excess_s=excess_s),
        )

    def _reasons(self, epochs: float | None, **figures: float | None) -> dict[str, str]:
        """Why a figure is missing: without a reason, a reader keeps the one that an earlier heartbeat told."""
        missing, reasons = self._device.missing, {}
        if self._point is not None:
            unread = missing.get("energy_j") or self._total.reason or self._train.reason
            for name in (name for name, value in figures.items() if value is None):
                reasons[name] = (unread if name.endswith("_j") else None) or _NOT_PROFILED
        if epochs is None:
            reasons["epochs"] = "the data loader cannot tell the size of an epoch, and none was completed"
        if "limit_w" in missing:
            reasons["power_limit_w"] = missing["limit_w"]
        if "energy_j" in reasons and self._device.info.count > 1:
            reasons["gpu_energy_j"] = reasons["energy_j"]
        return reasons

    def _rest_j(self) -> float | None:
        if self._total.energy_j is None or self._train.energy_j is None:
            return None
        return self._total.energy_j - self._train.energy_j

    def _phase(self) -> str:
        if not self.training:
            return "validate"
        return "profile" if self._sweep.active else "train"


_NOT_PROFILED = "the limit that would have been chosen is not measured yet"
