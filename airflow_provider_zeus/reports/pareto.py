"""Energy against time: each batch size and power limit on the way to the target, and their front (section 2.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.trial import Observation, ProfileSample, State
from airflow_provider_zeus.optimizer.starts import start_of
from airflow_provider_zeus.reports.dataset import Dataset, RunId
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Mean time and energy to the target of one batch size and start at one limit, without what profiling cost.

    On a typical slice of the data, where the hardness of each run's slice is known.
    """

    batch_size: int
    limit_w: float | None  # None: the device has no limit that could be read
    tta_s: float
    eta_j: float
    runs: int  # that the means are of
    observed: bool  # else: those runs re-costed at a limit that was only profiled (Eq. 5)
    start: str | None = None  # that they took, of a job that chooses it
    on_front: bool = False  # no other point is as good in both and better in one


def pareto(
    log: Dataset, *, profiles: Sequence[ProfileSample] = (), hardness: Mapping[RunId, float] | None = None
) -> tuple[OperatingPoint, ...]:
    """(TTA [s], ETA [J]) of the runs that reached the job's target on the log's device, by time.

    :param profiles: samples of that device: they add the limits at which no run has ended, as ``observed=False``.
    :param hardness: of each run's slice (``SliceEpochs.hardness``): a run is divided by it, so that a batch size which
        ran on easy slices alone does not look cheap.

    O(n log n) in trials, and in points.
    """
    log = log.of_target()
    runs = [t for t in log.here() if t.state is State.CONVERGED and _to_target(t.observation) is not None]
    ran = {(t.batch_size, t.observation.power_limit_w) for t in runs}
    profiled = LimitProfiles.of(profiles)
    groups: dict[tuple[int, float | None, bool, str | None], list[tuple[float, float]]] = {}
    for trial in runs:
        b, seen = trial.batch_size, trial.observation
        start = start_of(trial) if log.job.chooses_start else None
        hard = (hardness or {}).get(trial.recurrence, 1.0)
        unseen_w = [w for w in profiled.sums.get(b, ()) if (b, w) not in ran]
        for o in (seen, *(profiled.recosted(b, seen, w) for w in unseen_w)):
            if o is not None and (pair := _to_target(o)) is not None:
                kind = (b, o.power_limit_w, o is seen, start)
                groups.setdefault(kind, []).append((pair[0] / hard, pair[1] / hard))
    return marked(
        OperatingPoint(
            batch_size=b,
            limit_w=limit_w,
            tta_s=math.fsum(t for t, _ in pairs) / len(pairs),
            eta_j=math.fsum(e for _, e in pairs) / len(pairs),
            runs=len(pairs),
            observed=observed,
            start=start,
        )
        for (b, limit_w, observed, start), pairs in groups.items()
    )


def marked(points: Iterable[OperatingPoint]) -> tuple[OperatingPoint, ...]:
    """Sort the points by time and mark the front: one pass over them, keeping the least energy so far."""
    ordered = sorted(points, key=lambda p: (p.tta_s, p.eta_j, p.batch_size, p.limit_w or 0.0))
    least_j, at_s, found = math.inf, math.inf, []
    for p in ordered:
        on_front = p.eta_j < least_j or (p.eta_j == least_j and p.tta_s == at_s)
        if p.eta_j < least_j:
            least_j, at_s = p.eta_j, p.tta_s
        found.append(replace(p, on_front=on_front))
    return tuple(found)


def _to_target(o: Observation) -> tuple[float, float] | None:
    """(TTA [s], ETA [J]) without the excess of profiling; None where one is not known."""
    if o.time_s is None or o.energy_j is None:
        return None
    tta_s, eta_j = o.time_s - (o.excess_s or 0.0), o.energy_j - (o.excess_j or 0.0)
    return (tta_s, eta_j) if tta_s > 0 and eta_j > 0 else None
