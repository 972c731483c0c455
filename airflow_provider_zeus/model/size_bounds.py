"""Bounds on the size of reports of a training. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, NamedTuple

from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    DATA_WAIT,
    LIMIT,
    NO_STRIKE,
    PAUSED,
    PLAIN,
    UNCAPPED,
    UNSEEN,
    WHY_COLD,
    Observation,
    PowerPoint,
)
from airflow_provider_zeus.model.wire import Text, rules

MOST_TEXT = 1000  # any training may write it, and each page of the job loads it
MOST_RETURNED = 4096  # the next run gets it in its environment
MOST_SAMPLES = 1000  # all of a device's are read for each decision
MOST_EPOCHS = 1000  # a chart shows no more, and each row of a log is loaded
MAX_POINTS = 500  # a chart has no more pixels, and each of a trial's points is stored
MOST_PHASE = 50  # any training may write it
# Any other key is a training's own, and would grow without bound.
_REASONS = frozenset(f.name for f in fields(Observation)).union(
    (BATCH_SIZE, DATA_WAIT, LIMIT, NO_STRIKE, PAUSED, PLAIN, UNCAPPED, UNSEEN, WHY_COLD)
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


def truncated(text: str, most: int = MOST_TEXT) -> str:
    """The text cut to ``most`` characters, with ``?`` for characters that databases refuse: NUL,
    and what is not UTF-8.
    """
    short = text
    if len(text) > most:
        short = text[: most - 1] + "…"
    return short.replace("\0", "?").encode(errors="replace").decode()


def truncated_observation(observation: Observation) -> Observation:
    """The observation with its texts cut, only reasons of its own fields, and its lists with 1000
    values at most.
    """
    changed: dict[str, Any] = {}
    for name, most in _texts().items():
        text = getattr(observation, name)
        if text is not None:
            changed[name] = truncated(text, most)
    changed["reasons"] = {
        name: truncated(why) for name, why in observation.reasons.items() if name in _REASONS
    }
    returned = observation.returned
    if returned is not None and truncated(returned, MOST_RETURNED) != returned:
        changed["returned"] = None  # cut, it would be no JSON
    if observation.gpu_energy_j is not None and len(observation.gpu_energy_j) > 1000:
        changed["gpu_energy_j"] = None
    if observation.epoch_metrics is not None:
        changed["epoch_metrics"] = observation.epoch_metrics[:MOST_EPOCHS]
    return replace(observation, **changed)


@cache
def _texts() -> dict[str, int]:
    """The texts of an observation that are cut, and how many characters are left of each."""
    texts = {n: rule for n, rule in rules(Observation).items() if isinstance(rule, Text)}
    return {n: rule.most for n, rule in texts.items() if rule.most and not rule.exact}


def bounded_points(points: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
    """At most 500 points, the text of each phase cut to 50 characters."""
    return tuple(
        replace(point, phase=truncated(point.phase, MOST_PHASE)) for point in thinned(points)
    )


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
            spans = list(_merged(spans, width, mixed=mixed))
            width *= 2
    return [span.point for span in spans[-most:]]


def _merged(spans: Sequence[_Span], width: float, *, mixed: bool) -> Iterator[_Span]:
    """One pass: each span joins the one before it while both together last at most ``width``
    seconds.
    """
    last, *others = spans
    for span in others:
        same = (last.point.limit_w, last.point.phase) == (span.point.limit_w, span.point.phase)
        fits = last.seconds + span.seconds <= width
        # Points of another limit or phase stay apart as long as there is room.
        if fits and (same or mixed):
            last = last.joined(span)
        else:
            yield last
            last = span
    yield last
