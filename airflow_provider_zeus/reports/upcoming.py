"""What the next run of a job does as its log stands, and what that is expected to take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt, ProfileSample
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.best_fixed import fixed
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_decision import NextDecision
from airflow_provider_zeus.reports.runs import ENERGY, TIME
from airflow_provider_zeus.reports.slice_epochs import estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """The next decision. Energy and time are those of one complete run of ``batch_size`` on the newest slice.

    Intervals are of the median run, not of a single one.
    """

    attempts: tuple[PlannedAttempt, ...]
    batch_size: int  # that runs to the end
    limit_w: float | None  # that is expected to be set; None: no limit, or not known
    epochs: Estimate
    energy_j: Estimate
    time_s: Estimate
    room_s: float | None = None  # from the newest run's begin to its deadline: the next one is decided with as much

    @property
    def time_95_s(self) -> float | None:
        """Time that 95 % of such runs take at most, at full power; None for a job without a deadline."""
        known = self.attempts[-1].in_time
        return known.time_95_s if known else None


def upcoming(
    log: Dataset, base: Baseline, decided: NextDecision, *, profiles: Sequence[ProfileSample] = ()
) -> Upcoming:
    """What the next run is expected to take.

    :param base: of this log; it has the epochs that each batch size needs.
    :param decided: of this log.
    """
    planned = decided.attempts
    kept = planned[0] if planned[0].phase is Phase.AUDIT else planned[-1]
    b = kept.batch_size
    expected = partial(Upcoming, attempts=planned, batch_size=b, room_s=decided.room_s)
    found = fixed(kept, log, base, Weights.of(log.job, log.device), LimitProfiles.of(profiles, log.job))
    if base.epochs is None or found is None:
        why = base.why_not if b == base.batch_size else None
        nothing = Estimate.missing(why or f"batch size {b} has not run on this device, or never reached the target")
        return expected(limit_w=None, epochs=nothing, energy_j=nothing, time_s=nothing)
    epochs = estimates(base.epochs.on_newest_slice(b)[:, None])[0]
    newest = log.belief().slice_size
    size = newest[1] if newest else None
    return expected(
        limit_w=found.limit_w,
        epochs=epochs,
        energy_j=epochs.times(found.epoch_cost(size, ENERGY), "no energy was measured at this batch size"),
        time_s=epochs.times(found.epoch_cost(size, TIME), "no time was measured at this batch size"),
    )
