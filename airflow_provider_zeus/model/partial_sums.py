"""The measurements of an attempt so far: its sums, profile samples and power points; and the one
way to add a later report to them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from airflow_provider_zeus.model.size_bounds import (
    MAX_POINTS,
    MOST_PHASE,
    MOST_SAMPLES,
    truncated,
    truncated_observation,
)
from airflow_provider_zeus.model.trial import Observation, PowerPoint, ProfileSample
from airflow_provider_zeus.model.wire import LEAST, Figure, rules

_SAMPLE = Figure(low=0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Partial (heartbeat) or final (tell) observation of one trial.

    ``unsure``: the heartbeats before it that got no answer, oldest first.
    """

    observation: Observation
    # New ones alone: with all of them each report would be longer than the one before.
    profile: Sequence[ProfileSample] = ()
    points: Sequence[PowerPoint] = ()
    # They may be stored or not: only the log can tell what is missing (resolved()).
    unsure: Sequence[Report] = ()

    reads_newer: ClassVar[bool] = True


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
                # No meter tells so little: it is what rounding left of a difference.
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


def finite(report: Report) -> Report:
    """The report without samples and points that have a value that nothing measures; power or limit
    may be None.

    At most the newest 1000 samples and 500 points remain.
    """
    samples = [sample for sample in report.profile if usable(sample)]
    points = [
        replace(point, power_w=_measured(point.power_w), limit_w=_measured(point.limit_w))
        for point in report.points
        if not _SAMPLE.problem(point.t_s)
    ]
    return replace(report, profile=tuple(samples[-MOST_SAMPLES:]), points=bounded_points(points))


def resolved(held: Observation, report: Report) -> Report:
    """The report with the samples and points of the unsure heartbeats that were not stored, as
    :func:`finite` leaves them.

    A heartbeat is stored completely or not at all, and each one has larger sums than the one
    before. So the newest unsure heartbeat whose sums are in ``held`` is the last one that was
    stored.
    """
    lost: list[Report] = []
    # From the newest on: the first one that is stored tells that all before it are.
    for beat in reversed(report.unsure):
        if merged(held, beat.observation) == held:
            break
        lost.insert(0, beat)
    return finite(replace(joined((*lost, report)), unsure=()))


def usable(s: ProfileSample) -> bool:
    """Whether all values of a profile sample can have been measured."""
    figures = (s.samples, s.energy_j, s.time_s, s.limit_w, s.steps, s.sm_clock_mhz)
    if any(map(_SAMPLE.problem, figures)):
        return False
    if s.capped is not None and not 0 <= s.capped <= 1:
        return False
    return 0 < s.batch_size <= _SAMPLE.high


def _measured(value: float | None) -> float | None:
    if _SAMPLE.problem(value):
        return None
    return value


def since_mark(samples: Iterable[ProfileSample]) -> list[ProfileSample]:
    """The samples after the last mark of their batch size, grouped by batch size, without marks."""
    valid: dict[int, list[ProfileSample]] = {}
    for sample in samples:
        if sample.is_mark:
            valid.pop(sample.batch_size, None)
        else:
            valid.setdefault(sample.batch_size, []).append(sample)
    return [sample for of_size in valid.values() for sample in of_size]


def summed(samples: Iterable[ProfileSample]) -> tuple[ProfileSample, ...]:
    """One sample per (batch size, limit), in that order, summed over those of
    :func:`since_mark`.
    """
    sums: dict[tuple[int, float], ProfileSample] = {}
    for new in since_mark(samples):
        key = new.batch_size, new.limit_w
        old = sums.get(key)
        sums[key] = new if old is None else old.plus(new)
    return tuple(sums[key] for key in sorted(sums))


def summed_with_marks(samples: Iterable[ProfileSample]) -> tuple[ProfileSample, ...]:
    """The same sums, after the marks: a mark voids samples that were sent earlier."""
    samples = list(samples)
    marks = {s.batch_size: s for s in samples if s.is_mark}
    return (*marks.values(), *summed(samples))


def bounded_points(points: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
    """At most 500 points, the text of each phase cut to 50 characters."""
    return tuple(
        replace(point, phase=truncated(point.phase, MOST_PHASE)) for point in thinned(points)
    )


class _Span(NamedTuple):
    """A power point and the seconds that it covers."""

    seconds: float
    point: PowerPoint

    def joined(self, later: _Span) -> _Span:
        """Both as one of the same energy; the later one gives limit and phase."""
        point = replace(later.point, power_w=self._mean_w(later))
        return _Span(self.seconds + later.seconds, point)

    def _mean_w(self, later: _Span) -> float | None:
        """By time; of two of which one is not known, the other."""
        own_w = self.point.power_w
        later_w = later.point.power_w
        if own_w is None:
            return later_w
        if later_w is None:
            return own_w
        seconds = self.seconds + later.seconds
        # Two points of one moment have no duration to weigh them by.
        if not seconds:
            return (own_w + later_w) / 2
        return (self.seconds * own_w + later.seconds * later_w) / seconds


def thinned(points: Sequence[PowerPoint], most: int = MAX_POINTS) -> list[PowerPoint]:
    """At most ``most`` points with the same energy (sum of power times duration).

    Neighbours of the same limit and phase are merged first. If limit or phase changes more than
    ``most`` times, neighbours that differ are merged, too; the later one gives limit and phase.
    """
    if len(points) <= most:
        return list(points)
    starts = [0.0, *(p.t_s for p in points)]
    covered = zip(starts, points, strict=False)
    spans = [_Span(max(point.t_s - start, 0.0), point) for start, point in covered]
    for mixed in (False, True):
        width = max(points[-1].t_s, 1e-6) / most
        for _ in range(40):  # doubled 40 times, one width covers any duration
            if len(spans) <= most:
                break
            spans = list(_one_pass(spans, width, mixed=mixed))
            width *= 2
    return [span.point for span in spans[-most:]]


def _one_pass(spans: Sequence[_Span], width: float, *, mixed: bool) -> Iterator[_Span]:
    """One pass: each span joins the one before it while both together last at most ``width``
    seconds.
    """
    last, *others = spans
    for span in others:
        same = (last.point.limit_w, last.point.phase) == (span.point.limit_w, span.point.phase)
        fits = last.seconds + span.seconds <= width
        # Points of another limit or phase are joined last: a mean of both is that of neither.
        if fits and (same or mixed):
            last = last.joined(span)
        else:
            yield last
            last = span
    yield last
