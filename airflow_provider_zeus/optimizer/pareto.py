"""Time against energy: what each batch size and power limit took to the target, and the front of them (section 2.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.optimizer.evidence import Evidence, evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.limits import Profiles
from airflow_provider_zeus.optimizer.trial import Observation, ProfileSample, State, Trial, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Mean time and energy to the target of one batch size at one power limit, without what profiling cost."""

    batch_size: int
    limit_w: float | None  # None: the device has no limit that could be read
    tta_s: float
    eta_j: float
    runs: int  # that the means are of
    observed: bool  # else: those runs re-costed at a limit that was only profiled (Eq. 5)
    on_front: bool = False  # nothing else is as good in both and better in one


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Points by time; of one device and energy source."""

    points: tuple[Point, ...]
    where: Where | None
    reason: str | None  # why there is no point
    left_out: dict[str, int]


def pareto(
    trials: Iterable[Trial] | Evidence,
    job: ZeusJob,
    *,
    profiles: Sequence[ProfileSample] = (),
    where: Where | None = None,
) -> Front:
    """(TTA [s], ETA [J]) of the runs that reached the job's target on one device (default: the newest).

    :param profiles: samples of that device: they add the limits at which no run was finished, as ``observed=False``.

    O(n log n) in trials, and in points.
    """
    log = evidence(trials, job, where).of_target()
    runs = [t for t in log.here() if t.state is State.CONVERGED and _pair(t.observation) is not None]
    groups: dict[tuple[int, float | None, bool], list[tuple[float, float]]] = {}
    for trial in runs:
        _add(groups, trial.batch_size, trial.observation, observed=True)
    seen, profiled = {(b, w) for b, w, _ in groups}, Profiles.of(profiles)
    for trial in runs:
        for limit_w in profiled.sums.get(trial.batch_size, ()):
            if (trial.batch_size, limit_w) not in seen:
                moved = profiled.recosted(trial.batch_size, trial.observation, limit_w)
                if moved is not None and _pair(moved) is not None:
                    _add(groups, trial.batch_size, moved, observed=False)
    points = [
        Point(
            batch_size=b,
            limit_w=limit_w,
            tta_s=math.fsum(t for t, _ in pairs) / len(pairs),
            eta_j=math.fsum(e for _, e in pairs) / len(pairs),
            runs=len(pairs),
            observed=observed,
        )
        for (b, limit_w, observed), pairs in groups.items()
    ]
    reason = None if points else "No run on this device reached the target and told both its time and its energy."
    return Front(points=marked(points), where=log.where, reason=reason, left_out=log.left_out)


def marked(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points by time, the front marked: one sweep over them, keeping the least energy so far."""
    ordered = sorted(points, key=lambda p: (p.tta_s, p.eta_j, p.batch_size, p.limit_w or 0.0))
    least, at, found = math.inf, math.inf, []
    for p in ordered:
        on_front = p.eta_j < least or (p.eta_j == least and p.tta_s == at)
        if p.eta_j < least:
            least, at = p.eta_j, p.tta_s
        found.append(replace(p, on_front=on_front))
    return tuple(found)


def _pair(o: Observation) -> tuple[float, float] | None:
    """(TTA [s], ETA [J]) without the excess of profiling; None where one is not known."""
    if o.time_s is None or o.energy_j is None:
        return None
    tta_s, eta_j = o.time_s - (o.excess_s or 0.0), o.energy_j - (o.excess_j or 0.0)
    return (tta_s, eta_j) if tta_s > 0 and eta_j > 0 else None


def _add(
    groups: dict[tuple[int, float | None, bool], list[tuple[float, float]]], b: int, o: Observation, *, observed: bool
) -> None:
    pair = _pair(o)
    if pair is not None:
        groups.setdefault((b, o.power_limit_w, observed), []).append(pair)
