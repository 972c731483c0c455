"""One attempt of several processes that train together.

Each process counts its own steps; the first process of a host measures the host. When an epoch
begins, all processes exchange a :class:`.RankReport`. Each of them decides from the same reports
whether the attempt goes on, so all leave it in the same epoch. Within an epoch nothing is
exchanged: the training's own exchange of gradients keeps them in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.cost import Weights, hurried
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
    """A :class:`LiveAttempt` of several processes, each of which has one; they agree in
    :meth:`next_epoch`.

    The reports of rank 0 count; the other ranks may call ``run.report()`` or not. Bounds are
    checked at the ends of epochs. Sums across hosts are gathered there too, so the snapshot of a
    running epoch holds the sums of its begin.
    """

    def __init__(
        self,
        planned: PlannedAttempt,
        number: int,
        job: ZeusJob,
        *args: Any,
        ranks: Ranks,
        **kwargs: Any,
    ) -> None:
        self._ranks = ranks
        self._job = job
        self._reports: tuple[RankReport, ...] = ()
        self._finished = False
        self._no_data = False
        super().__init__(planned, number, job, *args, **kwargs)
        self.processes = ranks.size
        self.local_batch_size = ranks.share(self.planned.batch_size)

    def next_epoch(self, target: Target) -> int | None:
        """Begin the next epoch as in one process, once all agree.

        Raises ReportError if their epochs differ.
        """
        raise_again(self.interrupt)
        if self._finished:
            return None
        if not self._adoptable:
            self._check_batches()
        if self._is_ours:
            self._end_epoch_of_others()
        self._exchange(has_left=False)
        if self._reports[0].unreported:
            raise self._missing(target, int(self._reports[0].epochs))
        check_in_step(self._reports)
        done = self.epochs_done + self.epochs_resumed
        is_done = done >= self._max_epochs
        if any((self.reached, self.no_data, is_done and self.last)):
            self._finished = True
            self.over = not self.no_data
            return None
        if is_done:
            self._give_up(State.EXHAUSTED, self._exhausted)
        self._check_bound(at_end_of_epoch=True)
        self._take_epoch()
        return done

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """End an epoch. Whether another one follows is decided in :meth:`next_epoch`."""
        metric = self._picked(target, metrics)
        if metric is None:
            return
        reached = self._ranks.rank == 0 and not self.untrained and target.reached(metric)
        self._end_epoch(is_last=reached or self._epochs_trained + 1 >= self._max_epochs)
        self.reached |= reached
        self._take(target, metric)

    def leave(self) -> None:
        """Exchange once more if the loop was left by ``break``; all processes must leave it in the
        same epoch.

        If another process is gone by then, the model is kept. Raises ReportError: others go on.
        """
        if self._finished or self.interrupt is not None:
            return
        if not self._reports or not self._ranks.ready:
            return
        if self._in_epoch:
            self._end_epoch_of_others()
        self._meter.read_last(is_running=False)
        try:
            self._exchange(has_left=True)
        except Exception:
            # Of any kind that the transport raises: the function has returned, its model counts.
            log.exception(
                "Zeus: the other processes do not answer; their energy of the last epoch is not "
                "known."
            )
            return
        check_in_step(self._reports)
        self._finished = True

    def stop(self) -> None:
        """End the attempt. Across hosts the energy since the last exchange is not known."""
        before = self.snapshot
        super().stop()
        if self._ranks.hosts == 1 or self._up_to_date:
            return
        has_gathered = bool(self._reports) and self._reports[0].epochs > 0
        if self._in_epoch and has_gathered:
            self.snapshot = before
            return
        unknown = dict.fromkeys((*ENERGIES, "gpu_energy_j"))
        not_gathered = "the loop was left before the other hosts reported their last epoch"
        reasons = {**self.snapshot.reasons, **dict.fromkeys(unknown, not_gathered)}
        self.snapshot = replace(self.snapshot, **unknown, reasons=reasons)  # type: ignore[arg-type]

    @property
    def no_data(self) -> bool:
        """Whether rank 0 had nothing to train on at the last exchange: the same on all ranks."""
        return self._no_data

    @property
    def epochs_done(self) -> int:
        """Epochs that ended with a report of rank 0."""
        if self._up_to_date:
            return int(self._reports[0].epochs)
        return super().epochs_done

    @property
    def _up_to_date(self) -> bool:
        """Whether nothing has happened in this process since the last exchange."""
        if not self._reports or self._in_epoch:
            return False
        return self._meter.epochs_done == self._reports[self._ranks.rank].epochs

    def _end_epoch_of_others(self) -> None:
        """End an epoch of a process other than rank 0, whose reports alone count."""
        if self._ranks.rank:
            self._end_epoch()

    def _refresh(self) -> None:
        if not self._reports:
            super()._refresh()
            return
        before = self.snapshot
        super()._refresh()
        if self._up_to_date:
            self.snapshot = gathered(self.snapshot, self._reports)
            if self.epochs_resumed:
                self.snapshot = self._without_epochs(self.snapshot)
        elif self._ranks.hosts > 1:
            self.snapshot = before

    def _bypass(self, why: str) -> None:
        # The steps of rank 0 count; another process may see less, as of dispatched batches.
        if not self._ranks.rank:
            super()._bypass(why)

    def _exchange(self, *, has_left: bool) -> None:
        self._reports = tuple(
            RankReport._make(row)
            for row in self._ranks.exchange(self._own_report(has_left=has_left))
        )
        first = self._reports[0]
        self.reached = bool(first.reached)
        self.epochs_resumed = int(first.resumed)
        self._no_data = self.passes > 0 and first.epochs > 0 and not first.samples
        self.metric = first.metric
        self.target_value = first.target_value
        self._refresh()
        # MAXPOWER of Eq. 2 is that of all hosts, which only the exchange tells.
        self._weights = hurried(Weights.of(self._job, device_of(self._reports)), self.planned)

    def _own_report(self, *, has_left: bool) -> RankReport:
        own = self._meter.observation()
        ranks = self._ranks
        info = self._device.info
        # A simulated clock is virtual: that of another process stands still, and is no measurement.
        is_virtual = self._job.device.startswith(PREFIX)
        if is_virtual and not ranks.measures:
            own = replace(own, time_s=None, rest_s=None)
        return RankReport(
            attempt=self.number,
            epochs=self._meter.epochs_done,
            has_left=has_left,
            unreported=self._is_ours,
            reached=self.reached,
            resumed=self.epochs_resumed,
            late=super()._late,
            metric=self.metric,
            target_value=self.target_value,
            samples=own.samples,
            samples_per_epoch=own.samples_per_epoch,
            profiled=self._is_profiled,
            cost_per_sample=self._sweep.cost_per_sample(),
            measures=ranks.measures,
            source=ENERGY_SOURCES.index(info.energy_source),
            devices=info.count,
            max_power_w=info.max_power_w,
            energy_j=own.energy_j,
            rest_j=own.rest_j,
            excess_j=own.excess_j,
            paused_j=own.paused_j,
            time_s=own.time_s,
            rest_s=own.rest_s,
            excess_s=own.excess_s,
            paused_s=own.paused_s,
        )

    @property
    def _late(self) -> bool:
        # By one clock: with its own, a rank could give up while the others wait for it.
        return bool(self._reports and self._reports[0].late)

    def _check_bound(self, *, at_end_of_epoch: bool) -> None:
        if at_end_of_epoch and self.epochs_done:
            super()._check_bound(at_end_of_epoch=True)

    def _epoch_cost(self, at_end_of_epoch: bool) -> float | None:
        first = self._reports[0]
        return self._cost_of_epoch(
            self.snapshot.samples_per_epoch,
            first.cost_per_sample,
            is_measured=not first.profiled,
        )
