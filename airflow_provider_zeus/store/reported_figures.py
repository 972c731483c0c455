"""Merge reports of a training, and remove values that cannot be stored. Pure functions."""

from __future__ import annotations

import math
import sys
from dataclasses import fields, replace
from typing import Any

from airflow_provider_zeus.model.size_bounds import bounded_points, newest_samples, truncated_observation
from airflow_provider_zeus.model.trial import Observation, ProfileSample
from airflow_provider_zeus.model.wire import ANY_SIZE
from airflow_provider_zeus.store.base import Report

_LEAST, _MOST = 1e-9, 1e15  # of a measured value in any unit: products of such values are finite and not 0
NEVER_NEGATIVE = {"epochs", "samples", "samples_per_epoch", "energy_j", "time_s", "max_power_w", "power_limit_w"}
_DIFFERENCES = ("rest_j", "rest_s", "excess_j", "excess_s")  # so rounding may leave a tiny rest
_RESTS, _ROUNDING = {"rest_j": "energy_j", "rest_s": "time_s"}, 1e-6  # of what they are parts; share of it below 0


def merged(old: Observation, new: Observation) -> Observation:
    """The observation after a later report.

    A field that the later report leaves out keeps its value, so a run that dies keeps what its heartbeats reported. A
    field with a reason becomes None. So does a number that is not finite, or negative where it cannot be. Long texts
    are cut: a report may come from any source.
    """
    new = truncated_observation(new)
    missing = dict(new.reasons)
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Observation)):
        value = getattr(new, name)
        problem = _problem(name, value)
        if not problem and name in _RESTS and value is not None:
            problem = _negative_rest(value, values[_RESTS[name]])
        if problem:
            value, missing[name] = None, problem
        elif name in _DIFFERENCES and value is not None and abs(value) < _LEAST:
            value = 0.0
        values[name] = getattr(old, name) if value is None and name not in missing else value
    reasons = {**old.reasons, **missing}
    values["out_of_memory"] = old.out_of_memory or new.out_of_memory
    values["reasons"] = {name: why for name, why in reasons.items() if values.get(name) is None}
    return Observation(**values)


def _problem(name: str, value: Any) -> str:
    """Why a value cannot be stored: a later decision could not be computed with it. Empty where it can."""
    if isinstance(value, tuple):
        least, most = (-sys.float_info.max, sys.float_info.max) if name in ANY_SIZE else (0.0, _MOST)
        finite = all(isinstance(v, int | float) and least <= v <= most for v in value)
        return "" if finite else "not a list of finite numbers"
    if name == "gpu_busy" and value is not None and not 0 <= value <= 1:
        return f"{value:g} was reported, which is no share"
    if isinstance(value, str | bool) or not isinstance(value, int | float) or name in ANY_SIZE:
        return "not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""
    if not math.isfinite(value):
        return "not a finite number"
    if name in NEVER_NEGATIVE and value < 0:
        return f"{value:g} was reported, which is below 0"
    if name == "device_count" and not 0 < value < 10**6:
        return f"{value} was reported, which is no count of devices"
    least = 0.0 if name in _DIFFERENCES else _LEAST
    return "" if value == 0 or least <= abs(value) <= _MOST else f"{value:g} was reported, which nothing measures"


def _negative_rest(rest: float, total: float | None) -> str:
    """Why a part of the energy or time cannot be stored: an epoch of fewer samples would cost nothing, or less."""
    return "" if rest >= -_ROUNDING * (total or 0.0) else f"{rest:g} was reported, which is below 0"


def finite(report: Report) -> Report:
    """The report without samples and points that hold a value which cannot be measured; a power or limit may be None.

    At most the newest 1000 samples and 500 points remain.
    """
    samples = newest_samples([s for s in report.profile if usable(s)])
    points = [p for p in report.points if _measured(p.t_s)]
    points = [replace(p, power_w=_kept(p.power_w), limit_w=_kept(p.limit_w)) for p in points]
    return replace(report, profile=samples, points=bounded_points(points))


def resolved(held: Observation, report: Report) -> Report:
    """The report with the samples and points of the unsure heartbeats that were not stored.

    A heartbeat is stored completely or not at all, and each one has larger sums than the one before. So the newest
    unsure heartbeat whose sums are in ``held`` is the last one that was stored.
    """
    lost: list[Report] = []
    for beat in reversed(report.unsure):
        if merged(held, beat.observation) == held:
            break
        lost.insert(0, beat)
    profile = [sample for each in (*lost, report) for sample in each.profile]
    points = [point for each in (*lost, report) for point in each.points]
    return replace(report, profile=profile, points=points, unsure=())


def usable(s: ProfileSample) -> bool:
    """Whether all values of a profile sample can have been measured."""
    return all(map(_measured, (s.samples, s.energy_j, s.time_s, s.limit_w, s.steps))) and 0 < s.batch_size <= _MOST


def _measured(value: float) -> bool:
    return value == 0 or _LEAST <= value <= _MOST


def _kept(value: float | None) -> float | None:
    return value if value is not None and _measured(value) else None
