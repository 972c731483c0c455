"""Energy against time: each batch size and power limit on the way to the target, and their front
(section 2.3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from airflow_provider_zeus.model.trial import Observation, ProfileSample, State
from airflow_provider_zeus.optimizer.starts import start_of
from airflow_provider_zeus.reports.dataset import Dataset, RunId
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Mean time and energy to the target of one batch size and start at one limit, without the
    excess of profiling.

    On a typical slice of the data, if the hardness of each run's slice is known.
    """

    batch_size: int
    limit_w: float | None
    tta_s: float
    eta_j: float
    runs: int  # a mean of few runs says little
    observed: bool  # else re-costed by Eq. 5, and as sure as the profile alone
    start: str | None = None  # a warm start takes fewer epochs: such runs are points of their own
    on_front: bool = False


def pareto(
    log: Dataset,
    *,
    profiles: Sequence[ProfileSample] = (),
    hardness: Mapping[RunId, float] | None = None,
) -> tuple[OperatingPoint, ...]:
    """(TTA [s], ETA [J]) of the runs that reached the job's target on the log's device, by time.

    :param profiles: samples of that device: they add the limits at which no run has ended, as
        ``observed=False``.
    :param hardness: of each run's slice (``SliceEpochs.hardness``): a run is divided by it, so that
        a batch size which ran on easy slices alone does not look cheap.

    O(n log n) in trials, and in points.
    """
    hardness = hardness or {}
    log = log.of_target()
    reached = [t for t in log.here() if t.state is State.CONVERGED]
    runs = [t for t in reached if _to_target(t.observation) is not None]
    # at these the runs themselves say the cost
    ran = {(t.batch_size, t.observation.power_limit_w) for t in runs}
    profiled = LimitProfiles.of(profiles)
    groups = defaultdict[_Setting, list[_ToTarget]](list)
    for trial in runs:
        b = trial.batch_size
        observed = trial.observation
        start = None
        if log.job.chooses_start:
            start = start_of(trial)
        hard = hardness.get(trial.recurrence, 1.0)
        # Limits that only a profile has seen may be better than any that ran.
        unseen_w = [w for w in profiled.sums.get(b, ()) if (b, w) not in ran]
        others = [profiled.recosted(b, observed, w) for w in unseen_w]
        for o in (observed, *filter(None, others)):
            whole = _to_target(o)
            if whole is None:
                continue
            setting = _Setting(b, o.power_limit_w, o is observed, start)
            typical = _ToTarget(whole.time_s / hard, whole.energy_j / hard)
            groups[setting].append(typical)
    return marked(
        OperatingPoint(
            **setting._asdict(),
            tta_s=math.fsum(run.time_s for run in group) / len(group),
            eta_j=math.fsum(run.energy_j for run in group) / len(group),
            runs=len(group),
        )
        for setting, group in groups.items()
    )


class _Setting(NamedTuple):
    """The settings that all runs of one point share."""

    batch_size: int
    limit_w: float | None
    observed: bool
    start: str | None


class _ToTarget(NamedTuple):
    """Costs of a run to the target: TTA and ETA."""

    time_s: float
    energy_j: float


def marked(points: Iterable[OperatingPoint]) -> tuple[OperatingPoint, ...]:
    """Sort the points by time and mark the front: one pass over them, keeping the least energy so
    far.
    """
    ordered = sorted(points, key=lambda p: (p.tta_s, p.eta_j, p.batch_size, p.limit_w or 0.0))
    last = _ToTarget(math.inf, math.inf)
    marked_points = []
    for point in ordered:
        costs = _ToTarget(point.tta_s, point.eta_j)
        # a twin of the last point is as good as it
        on_front = costs == last or point.eta_j < last.energy_j
        if on_front:
            last = costs
        marked_points.append(replace(point, on_front=on_front))
    return tuple(marked_points)


def _to_target(o: Observation) -> _ToTarget | None:
    """TTA and ETA of a run without the excess of profiling; None if one is not known."""
    if o.time_s is None or o.energy_j is None:
        return None
    excess_j, excess_s = o.excess
    costs = _ToTarget(o.time_s - excess_s, o.energy_j - excess_j)
    # Profiling took longer than the run: what is left is noise.
    if min(costs) <= 0:
        return None
    return costs
