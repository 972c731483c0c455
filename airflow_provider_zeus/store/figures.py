"""What a training reports: later sums over earlier ones, and what cannot be kept. Pure."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from airflow_provider_zeus.optimizer.bounds import bounded, few_points, few_samples
from airflow_provider_zeus.optimizer.trial import Observation, ProfileSample
from airflow_provider_zeus.optimizer.typed import NEVER_NEGATIVE
from airflow_provider_zeus.store.base import Report

_LEAST, _MOST = 1e-9, 1e15  # of what is measured, in whatever unit: products of such figures are finite, and not 0
_ANY_SIZE = ("metric", "target_value", "learning_rate")
_DIFFERENCES = ("rest_j", "rest_s", "excess_j", "excess_s")  # so they may be next to nothing by rounding


def merged(old: Observation, new: Observation) -> Observation:
    """Later sums over earlier ones.

    What the later report leaves out stays as it was, so that a death keeps what its heartbeats said; what it names a
    reason for is missing. A number that is not finite is missing too, and one below 0 where there can be none. Long
    texts are cut: a report may come from anywhere.
    """
    new = bounded(new)
    said = dict(new.reasons)
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Observation)):
        value = getattr(new, name)
        problem = _problem(name, value)
        if problem:
            value, said[name] = None, problem
        elif name in _DIFFERENCES and value is not None and abs(value) < _LEAST:
            value = 0.0
        values[name] = getattr(old, name) if value is None and name not in said else value
    reasons = {**old.reasons, **said}
    values["out_of_memory"] = old.out_of_memory or new.out_of_memory
    values["reasons"] = {name: why for name, why in reasons.items() if values.get(name) is None}
    return Observation(**values)


def _problem(name: str, value: Any) -> str:
    """Why a figure cannot be kept: a later decision could not be computed with it. Empty where it can."""
    if isinstance(value, tuple):
        return (
            "" if all(isinstance(j, int | float) and 0 <= j <= _MOST for j in value) else "not a list of finite numbers"
        )
    if isinstance(value, str | bool) or not isinstance(value, int | float) or name in _ANY_SIZE:
        return "not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""
    if not math.isfinite(value):
        return "not a finite number"
    if name in NEVER_NEGATIVE and value < 0:
        return f"{value:g} was told, which is below 0"
    if name == "device_count" and not 0 < value < 10**6:
        return f"{value} was told, which is no count of devices"
    least = 0.0 if name in _DIFFERENCES else _LEAST
    return "" if value == 0 or least <= abs(value) <= _MOST else f"{value:g} was told, which nothing measures"


def finite(report: Report) -> Report:
    """The report without samples and points that hold no number where one must be; a power or limit may be None.

    Nor samples below 0. At most 1000 samples and 500 points are left, the newest.
    """
    samples = few_samples([s for s in report.profile if usable(s)])
    points = [p for p in report.points if _measured(p.t_s)]
    points = [replace(p, power_w=_kept(p.power_w), limit_w=_kept(p.limit_w)) for p in points]
    return replace(report, profile=samples, points=few_points(points))


def resolved(held: Observation, report: Report) -> Report:
    """The report with the samples and points of those heartbeats before it that were not stored.

    A heartbeat is stored whole, and those after it hold what it brought or come after it too. So what is ``held`` says
    which was the last one that was stored. Each of them says another sum than the one before.
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
    """Whether all of a profile sample are numbers that something may have measured."""
    return all(map(_measured, (s.samples, s.energy_j, s.time_s, s.limit_w, s.steps))) and 0 < s.batch_size <= _MOST


def _measured(value: float) -> bool:
    return value == 0 or _LEAST <= value <= _MOST


def _kept(value: float | None) -> float | None:
    return value if value is not None and _measured(value) else None
