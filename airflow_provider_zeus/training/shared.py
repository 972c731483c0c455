"""One attempt of several processes that train together.

Each counts its own steps; the first process of a host measures it. At each epoch's begin all of them exchange one row
of figures and decide, each for itself and from the same rows, whether the attempt goes on: so all of them leave it in
the same epoch. Nothing is exchanged within an epoch, where the training's own exchange of gradients keeps them in step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_provider_zeus.optimizer.cost import Rates, Weights
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Attempt, DeviceInfo, Observation, State
from airflow_provider_zeus.power.simulated import PREFIX
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.bound import Bound
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.signals import raise_again

log = logging.getLogger(__name__)

_SOURCES = (None, "nvml_counter", "nvml_poll", "rapl", "estimate", "simulated")
_NOT_GATHERED = "the loop was left before the other hosts told of their last epoch"
_JOULES = ("energy_j", "rest_j", "excess_j")
_OTHER_HOSTS = "the GPUs train on several hosts, and each knows its own alone"


class Row(NamedTuple):
    """What one process tells the others. A figure that is missing is NaN; flags are 0 and 1."""

    attempt: float
    epochs: float  # done
    left: float  # it has left the loop
    unreported: float
    reached: float
    resumed: float  # epochs that the checkpoint had
    metric: float
    target_value: float
    samples: float
    samples_per_epoch: float
    profiled: float
    cost_per_sample: float  # at the limit that was chosen, where one was
    measures: float  # its host; of the others only time counts
    source: float  # position in _SOURCES
    devices: float
    max_power_w: float
    energy_j: float
    rest_j: float
    excess_j: float
    time_s: float
    rest_s: float
    excess_s: float


class SharedAttempt(LiveAttempt):
    """A :class:`LiveAttempt` of several processes, each of which has one; they agree in :meth:`next_epoch`.

    What rank 0 reports counts; the others may report too, or not. Bounds are looked at where they agree, at the ends of
    epochs. Across hosts sums are gathered there too, so that those of a running epoch are those of its begin.
    """

    def __init__(self, planned: Attempt, number: int, job: ZeusJob, *args: Any, ranks: Ranks, **kwargs: Any) -> None:
        self._ranks, self._job = ranks, job
        self._rows: tuple[Row, ...] = ()  # of the last exchange
        self._over = self._empty = False
        super().__init__(planned, number, job, *args, **kwargs)
        self.local_batch_size = ranks.share(self.planned.batch_size)

    # ------------------------------------------------------------------ the loop
    def next_epoch(self, target: Target) -> int | None:
        """As alone, once all have agreed. Raises RuntimeError where they are not in the same epoch."""
        raise_again(self.signal)
        if self._over:
            return None
        adopted = self._in_epoch and self._adoptable
        if self._in_epoch and not adopted and self._ranks.rank:
            self._end_epoch()
        self._exchange(left=False)
        if self._rows[0].unreported:
            raise self._unreported(target, int(self._rows[0].epochs))
        self._check_step()
        done = self.epochs_done + self._resumed
        self._over = self.reached or self.no_data or (done >= self._max_epochs and self.last)
        if self._over:
            return None
        if done >= self._max_epochs:
            self._give_up(State.EXHAUSTED, self._exhausted())
        self._check_bound(at_end_of_epoch=True)
        if adopted:
            self._adoptable = False
        else:
            self._begin_epoch()
        return done

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """A pass over this process's share of the data begins."""
        return super().start_pass(None if expected_samples is None else expected_samples * self._ranks.size)

    def step(self, samples: int) -> None:
        """One optimizer step: this process made it over ``samples``, the others over as many each."""
        super().step(samples * self._ranks.size)

    def report(self, target: Target, metric: float) -> None:
        """An epoch ended; what follows from it is decided in :meth:`next_epoch`."""
        raise_again(self.signal)
        reached = self._ranks.rank == 0 and not self.untrained and target.reached(metric)
        self._end_epoch()
        self.reached = self.reached or reached
        self._metric, self._target_value = metric, target.value
        self._refresh()

    def leave(self) -> None:
        """The function returned: gather what is left, where its loop was left by ``break``. All processes do so.

        Where another process is gone by then, the model is kept all the same. Raises RuntimeError: others go on.
        """
        if self._over or self.signal is not None or not self._rows or not self._ranks.ready:
            return
        if self._in_epoch and self._ranks.rank:
            self._end_epoch()
        try:
            self._exchange(left=True)
        except Exception:  # of whatever kind the transport raises: the function has returned, its model counts
            log.exception("Zeus: the other processes do not answer; what they drew in the last epoch is not known.")
            return
        self._check_step()
        self._over = True

    # ------------------------------------------------------------------ how it stands
    @property
    def no_data(self) -> bool:
        """Whether rank 0 had nothing to train on, as of the last exchange: so all ranks say the same."""
        return self._empty

    @property
    def epochs_done(self) -> int:
        """Epochs that ended with a report of rank 0."""
        return int(self._rows[0].epochs) if self._agreed else super().epochs_done

    def stop(self) -> None:
        """The attempt ends. Across hosts what was drawn since the last exchange is not known."""
        before = self.snapshot
        super().stop()
        if self._ranks.hosts == 1 or self._agreed:
            return
        if self._in_epoch and self._rows and self._rows[0].epochs:
            self.snapshot = before
            return
        reasons = {**self.snapshot.reasons, **dict.fromkeys((*_JOULES, "gpu_energy_j"), _NOT_GATHERED)}
        gone = dict.fromkeys((*_JOULES, "gpu_energy_j"))
        self.snapshot = replace(self.snapshot, **gone, reasons=reasons)  # type: ignore[arg-type]

    @property
    def _agreed(self) -> bool:
        """Whether nothing has happened here since the last exchange."""
        if not self._rows or self._in_epoch:
            return False
        return self._tally.epochs_done == self._rows[self._ranks.rank].epochs

    # ------------------------------------------------------------------ inside
    def _leave_pass(self, number: int, samples: int) -> None:
        super()._leave_pass(number, samples * self._ranks.size)

    def _refresh(self) -> None:
        before = self.snapshot if self._rows else None
        super()._refresh()
        if self._agreed:
            seen = gathered(self.snapshot, self._rows)
            self.snapshot = self._without_epochs(seen) if self._resumed else seen
        elif before is not None and self._ranks.hosts > 1:
            self.snapshot = before

    def _exchange(self, *, left: bool) -> None:
        self._rows = tuple(Row(*row) for row in self._ranks.exchange(self._row(left=left)))
        first = self._rows[0]
        self.reached, self._resumed = bool(first.reached), int(first.resumed)  # as rank 0 says
        self._empty = self.passes > 0 and first.epochs > 0 and not first.samples
        self._metric, self._target_value = _known(first.metric), _known(first.target_value)
        self._refresh()
        self._weights = Weights.of(self._job, _device(self._rows))
        self._bound = None if self.last else Bound(self.planned, self._weights)

    def _row(self, *, left: bool) -> Row:
        seen, ranks, info = self._tally.observation(), self._ranks, self._device.info
        clock_compares = ranks.measures or not self._job.device.startswith(PREFIX)  # to one that is virtual
        return Row(
            attempt=self.number,
            epochs=self._tally.epochs_done,
            left=left,
            unreported=self._in_epoch and not self._adoptable,
            reached=self.reached,
            resumed=self._resumed,
            metric=_figure(self._metric),
            target_value=_figure(self._target_value),
            samples=_figure(seen.samples),
            samples_per_epoch=_figure(seen.samples_per_epoch),
            profiled=self._profiled,
            cost_per_sample=_figure(self._sweep.cost_per_sample()),
            measures=ranks.measures,
            source=_SOURCES.index(info.energy_source),
            devices=info.count,
            max_power_w=_figure(info.max_power_w),
            energy_j=_figure(seen.energy_j),
            rest_j=_figure(seen.rest_j),
            excess_j=_figure(seen.excess_j),
            time_s=_figure(seen.time_s if clock_compares else None),
            rest_s=_figure(seen.rest_s if clock_compares else None),
            excess_s=_figure(seen.excess_s if ranks.rank == 0 else None),
        )

    def _check_step(self) -> None:
        """Raises RuntimeError where some have left the loop and others go on, or they are in different epochs."""
        left = [rank for rank, row in enumerate(self._rows) if row.left]
        if left and len(left) < len(self._rows):
            raise RuntimeError(
                f"rank {', '.join(map(str, left))} of {len(self._rows)} left the loop over run.epochs() early, and the "
                "others go on: leave it on every rank in the same epoch, or on none."
            )
        places = [(int(row.attempt), int(row.epochs)) for row in self._rows]
        if not left and len(set(places)) > 1:
            raise RuntimeError(
                f"the ranks are in different epochs, (attempt, epochs done) = {places}: loop over run.epochs() on "
                "every rank alike, with as many batches each."
            )

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        if at_end_of_epoch and self.epochs_done:
            super()._check_bound(at_end_of_epoch=True)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        first, size = self._rows[0], self.snapshot.samples_per_epoch
        if not math.isnan(first.cost_per_sample):
            return first.cost_per_sample * size if size else None
        rates = None if first.profiled else Rates.of(self.snapshot)
        return rates.epoch_cost(size, self._weights) if rates else None


def gathered(own: Observation, rows: Sequence[Row]) -> Observation:
    """What a process observed with what all of them drew: energy and MAXPOWER summed, time the longest of any."""
    first, device = rows[0], _device(rows)
    energy_j, rest_j, excess_j = (_sum(rows, name) for name in _JOULES)
    if device.energy_source is None and first.source:
        energy_j = rest_j = excess_j = None
    time_s = _longest(row.time_s for row in rows)
    train_s = _longest(row.time_s - row.rest_s for row in rows)
    missing = {name for name, value in zip(_JOULES, (energy_j, rest_j, excess_j), strict=True) if value is None}
    reasons = dict(own.reasons)
    if own.time_s is not None:
        reasons |= dict.fromkeys(missing - set(reasons), "not every host measures it in the same way")
    each_j = own.gpu_energy_j if device.count == own.device_count and energy_j is not None else None
    if each_j is None and device.count > 1 and own.time_s is not None:
        reasons["gpu_energy_j"] = reasons.get("energy_j") or _OTHER_HOSTS
    return replace(
        own,
        samples=int(first.samples),
        samples_per_epoch=_known(first.samples_per_epoch),
        epochs=first.epochs,
        energy_j=energy_j,
        rest_j=rest_j,
        excess_j=excess_j,
        time_s=time_s,
        rest_s=None if time_s is None or train_s is None else max(time_s - train_s, 0.0),
        excess_s=_known(first.excess_s),
        gpu_energy_j=each_j,
        device_count=device.count,
        max_power_w=device.max_power_w,
        energy_source=device.energy_source,
        reasons=reasons,
    )


def _device(rows: Sequence[Row]) -> DeviceInfo:
    """All that trains together, as far as costs need it."""
    measuring = [row for row in rows if row.measures]
    sources = {row.source for row in measuring}
    return DeviceInfo(
        model="",
        count=int(sum(row.devices for row in measuring)),
        max_power_w=_sum(rows, "max_power_w"),
        energy_source=_SOURCES[int(sources.pop())] if len(sources) == 1 else None,
    )


def _sum(rows: Sequence[Row], name: str) -> float | None:
    """Over the hosts; None where one does not tell."""
    return _known(sum(getattr(row, name) for row in rows if row.measures))


def _longest(times_s: Any) -> float | None:
    return max((time_s for time_s in times_s if not math.isnan(time_s)), default=None)


def _figure(value: float | None) -> float:
    return math.nan if value is None else value


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
