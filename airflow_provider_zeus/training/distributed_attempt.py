"""One attempt of several processes that train together.

Each process counts its own steps; the first process of a host measures the host. When an epoch begins, all processes
exchange a :class:`.RankReport`. Each of them decides from the same reports whether the attempt goes on, so all leave it
in the same epoch. Within an epoch nothing is exchanged: the training's own exchange of gradients keeps them in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import PlannedAttempt, State
from airflow_provider_zeus.power.simulated.gpu import PREFIX
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.interrupts import raise_again
from airflow_provider_zeus.training.ranks import (
    ENERGIES,
    ENERGY_SOURCES,
    RankReport,
    Ranks,
    check_in_step,
    device_of,
    gathered,
)

log = guarded_log(__name__)


class DistributedAttempt(LiveAttempt):
    """A :class:`LiveAttempt` of several processes, each of which has one; they agree in :meth:`next_epoch`.

    The reports of rank 0 count; the other ranks may call ``run.report()`` or not. Bounds are checked at the ends of
    epochs. Sums across hosts are gathered there too, so the snapshot of a running epoch holds the sums of its begin.
    """

    def __init__(
        self, planned: PlannedAttempt, number: int, job: ZeusJob, *args: Any, ranks: Ranks, **kwargs: Any
    ) -> None:
        self._ranks, self._job = ranks, job
        self._reports: tuple[RankReport, ...] = ()  # of the last exchange
        self._finished = self._no_data = False
        super().__init__(planned, number, job, *args, **kwargs)
        self.processes, self.local_batch_size = ranks.size, ranks.share(self.planned.batch_size)

    # ------------------------------------------------------------------ the loop
    def next_epoch(self, target: Target) -> int | None:
        """Begin the next epoch as in one process, once all agree. Raises ReportError where their epochs differ."""
        raise_again(self.interrupt)
        if self._finished:
            return None
        adopted = self._in_epoch and self._adoptable
        if not adopted:
            self._check_batches()
        if self._in_epoch and not adopted and self._ranks.rank:
            self._end_epoch()
        self._exchange(left=False)
        if self._reports[0].unreported:
            raise self._missing(target, int(self._reports[0].epochs))
        check_in_step(self._reports)
        done = self.epochs_done + self.epochs_resumed
        self._finished = self.reached or self.no_data or (done >= self._max_epochs and self.last)
        if self._finished:
            self.over = not self.no_data
            return None
        if done >= self._max_epochs:
            self._give_up(State.EXHAUSTED, self._exhausted)
        self._check_bound(at_end_of_epoch=True)
        self._take_epoch()
        return done

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """End an epoch. What follows is decided in :meth:`next_epoch`."""
        metric = self._picked(target, metrics)
        if metric is None:
            return
        reached = self._ranks.rank == 0 and not self.untrained and target.reached(metric)
        done = self._meter.epochs_done + 1 + self.epochs_resumed
        self._end_epoch(is_last=reached or done >= self._max_epochs)
        self.reached = self.reached or reached
        self._take(target, metric)

    def leave(self) -> None:
        """Exchange once more if the loop was left by ``break``; all processes must leave it in the same epoch.

        If another process is gone by then, the model is kept. Raises ReportError: others go on.
        """
        if self._finished or self.interrupt is not None or not self._reports or not self._ranks.ready:
            return
        if self._in_epoch and self._ranks.rank:
            self._end_epoch()
        self._meter.read_last(is_running=False)
        try:
            self._exchange(left=True)
        except Exception:  # of any kind that the transport raises: the function has returned, its model counts
            log.exception("Zeus: the other processes do not answer; their energy of the last epoch is not known.")
            return
        check_in_step(self._reports)
        self._finished = True

    def stop(self) -> None:
        """End the attempt. Across hosts the energy since the last exchange is not known."""
        before = self.snapshot
        super().stop()
        if self._ranks.hosts == 1 or self._up_to_date:
            return
        if self._in_epoch and self._reports and self._reports[0].epochs:
            self.snapshot = before
            return
        unknown = dict.fromkeys((*ENERGIES, "gpu_energy_j"))
        not_gathered = "the loop was left before the other hosts reported their last epoch"
        reasons = {**self.snapshot.reasons, **dict.fromkeys(unknown, not_gathered)}
        self.snapshot = replace(self.snapshot, **unknown, reasons=reasons)  # type: ignore[arg-type]

    # ------------------------------------------------------------------ state
    @property
    def no_data(self) -> bool:
        """Whether rank 0 had nothing to train on, as of the last exchange: the same on all ranks."""
        return self._no_data

    @property
    def epochs_done(self) -> int:
        """Epochs that ended with a report of rank 0."""
        return int(self._reports[0].epochs) if self._up_to_date else super().epochs_done

    @property
    def _up_to_date(self) -> bool:
        """Whether nothing has happened in this process since the last exchange."""
        if not self._reports or self._in_epoch:
            return False
        return self._meter.epochs_done == self._reports[self._ranks.rank].epochs

    # ------------------------------------------------------------------ inside
    def _refresh(self) -> None:
        before = self.snapshot if self._reports else None
        super()._refresh()
        if self._up_to_date:
            seen = gathered(self.snapshot, self._reports)
            self.snapshot = self._without_epochs(seen) if self.epochs_resumed else seen
        elif before is not None and self._ranks.hosts > 1:
            self.snapshot = before

    def _exchange(self, *, left: bool) -> None:
        self._reports = tuple(RankReport._make(row) for row in self._ranks.exchange(self._own_report(left=left)))
        first = self._reports[0]
        self.reached, self.epochs_resumed = bool(first.reached), int(first.resumed)
        self._no_data = self.passes > 0 and first.epochs > 0 and not first.samples
        self.metric, self.target_value = first.metric, first.target_value
        self._refresh()
        self._weights = hurried(Weights.of(self._job, device_of(self._reports)), self.planned)

    def _own_report(self, *, left: bool) -> RankReport:
        seen, ranks, info = self._meter.observation(), self._ranks, self._device.info
        clock_compares = ranks.measures or not self._job.device.startswith(PREFIX)  # a simulated clock is virtual
        return RankReport(
            attempt=self.number,
            epochs=self._meter.epochs_done,
            left=left,
            unreported=self._in_epoch and not self._adoptable,
            reached=self.reached,
            resumed=self.epochs_resumed,
            late=super()._late,
            metric=self.metric,
            target_value=self.target_value,
            samples=seen.samples,
            samples_per_epoch=seen.samples_per_epoch,
            profiled=self._profiled and not self._sweep.profiler.slow,
            cost_per_sample=self._sweep.cost_per_sample(),
            measures=ranks.measures,
            source=ENERGY_SOURCES.index(info.energy_source),
            devices=info.count,
            max_power_w=info.max_power_w,
            energy_j=seen.energy_j,
            rest_j=seen.rest_j,
            excess_j=seen.excess_j,
            paused_j=seen.paused_j,
            time_s=seen.time_s if clock_compares else None,
            rest_s=seen.rest_s if clock_compares else None,
            excess_s=seen.excess_s if ranks.rank == 0 else None,
            paused_s=seen.paused_s,
        )

    @property
    def _late(self) -> bool:
        return bool(self._reports and self._reports[0].late)  # one clock decides for all

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        if at_end_of_epoch and self.epochs_done:
            super()._check_bound(at_end_of_epoch=True)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        first, size = self._reports[0], self.snapshot.samples_per_epoch
        if first.cost_per_sample is not None:
            return first.cost_per_sample * size if size else None
        rates = None if first.profiled else Rates.of(self.snapshot)
        return rates.epoch_cost(size, self._weights) if rates else None
