"""The measurements of an attempt so far, and the one way to add a later report to them.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from airflow_provider_zeus.model.size_bounds import (
    MAX_POINTS,
    MOST_SAMPLES,
    thinned,
    truncated_observation,
)
from airflow_provider_zeus.model.trial import (
    Observation,
    PowerPoint,
    ProfileSample,
    summed_with_marks,
)
from airflow_provider_zeus.model.wire import LEAST, Figure, rules


class PartialSums(Protocol):
    """A report of an attempt: its sums so far, and the samples and points that are new since the
    report before.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def observation(self) -> Observation | None:
        """The sums; None: the report has none."""

    @property
    def profile(self) -> Sequence[ProfileSample]:
        """New samples."""

    @property
    def points(self) -> Sequence[PowerPoint]:
        """New power points."""


S = TypeVar("S", bound=PartialSums)


def joined(reports: Sequence[S], most_points: int = MAX_POINTS) -> S:
    """Reports of one attempt, oldest first, as one: the newest with the sums, samples and points of
    all.

    A single report stays as it is. At most ``most_points`` points stay, and the newest 1000 sums of
    samples.
    """
    *earlier, newest = reports
    # Most attempts send one report: it stays as it is, to the last digit.
    if not earlier:
        return newest
    observation = None
    for report in reports:
        if observation is None:
            observation = report.observation
        elif report.observation is not None:
            observation = merged(observation, report.observation)
    samples = summed_with_marks(sample for report in reports for sample in report.profile)
    points = thinned([point for report in reports for point in report.points], most_points)
    return replace(
        newest,
        observation=observation,
        profile=samples[-MOST_SAMPLES:],
        points=tuple(points),
    )


def merged(old: Observation, new: Observation) -> Observation:
    """The observation after a later report.

    A field that the later report leaves out keeps its value, so a run that dies keeps what its
    heartbeats reported. A field with a reason becomes None. So does a number that is not finite, or
    negative if it cannot be. Long texts are cut: a report may come from any source.
    """
    # Before anything is compared: a report may be of any length.
    new = truncated_observation(new)
    missing = dict(new.reasons)
    values: dict[str, Any] = {}
    figures = rules(Observation)
    for field in fields(Observation):
        name = field.name
        value = getattr(new, name)
        rule = figures.get(name)
        if value is not None and isinstance(rule, Figure):
            problem = _problem(value, rule, values)
            if problem:
                missing[name] = problem
                value = None
            elif rule.rounded and abs(value) < LEAST:
                value = 0.0
        if value is None and name not in missing:
            value = getattr(old, name)
        values[name] = value
    reasons = {**old.reasons, **missing}
    # Once out of memory, a later report cannot take it back.
    values["out_of_memory"] = old.out_of_memory or new.out_of_memory
    values["reasons"] = {name: why for name, why in reasons.items() if values.get(name) is None}
    return Observation(**values)


def _problem(value: Any, rule: Figure, sums: dict[str, Any]) -> str:
    """Why a figure cannot be, beside the sum that it is a part of; empty if it can."""
    problem = rule.problem(value)
    if problem or not rule.part_of:
        return problem
    # rounding may leave a tiny rest below 0
    whole = sums[rule.part_of] or 0.0
    if value < -1e-6 * whole:
        return f"{value:g} was reported, which is below 0"
    return ""
