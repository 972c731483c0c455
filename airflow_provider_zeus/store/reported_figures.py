"""Merge reports of a training, and remove values that cannot be stored. Pure functions."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from airflow_provider_zeus.model.size_bounds import bounded_points, newest_samples, truncated_observation
from airflow_provider_zeus.model.trial import Observation, ProfileSample
from airflow_provider_zeus.model.wire import Figure, rules
from airflow_provider_zeus.store.base import Report

_SAMPLE = Figure(low=0)


def merged(old: Observation, new: Observation) -> Observation:
    """The observation after a later report.

    A field that the later report leaves out keeps its value, so a run that dies keeps what its heartbeats reported. A
    field with a reason becomes None. So does a number that is not finite, or negative where it cannot be. Long texts
    are cut: a report may come from any source.
    """
    new = truncated_observation(new)
    missing = dict(new.reasons)
    values: dict[str, Any] = {}
    figures = rules(Observation)
    for name in (f.name for f in fields(Observation)):
        value, rule = getattr(new, name), figures.get(name)
        if value is not None and isinstance(rule, Figure):
            below = rule.part_of and value < -1e-6 * (values[rule.part_of] or 0.0)  # rounding may leave a tiny rest
            if problem := rule.problem(value) or (f"{value:g} was reported, which is below 0" if below else ""):
                value, missing[name] = None, problem
            elif rule.rounded and abs(value) < _SAMPLE.least:
                value = 0.0
        values[name] = getattr(old, name) if value is None and name not in missing else value
    reasons = {**old.reasons, **missing}
    values["out_of_memory"] = old.out_of_memory or new.out_of_memory
    values["reasons"] = {name: why for name, why in reasons.items() if values.get(name) is None}
    return Observation(**values)


def finite(report: Report) -> Report:
    """The report without samples and points that hold a value which cannot be measured; a power or limit may be None.

    At most the newest 1000 samples and 500 points remain.
    """
    samples = newest_samples([s for s in report.profile if usable(s)])
    points = [p for p in report.points if not _SAMPLE.problem(p.t_s)]
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
    measured = not any(map(_SAMPLE.problem, (s.samples, s.energy_j, s.time_s, s.limit_w, s.steps)))
    seen = (s.capped is None or 0 <= s.capped <= 1) and (s.sm_clock_mhz is None or not _SAMPLE.problem(s.sm_clock_mhz))
    return measured and seen and 0 < s.batch_size <= _SAMPLE.high


def _kept(value: float | None) -> float | None:
    return None if _SAMPLE.problem(value) else value
