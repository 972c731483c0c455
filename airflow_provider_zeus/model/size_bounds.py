"""Bounds on the size of what a training reports. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

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

MOST_TEXT = 1000  # characters of a text, such as the reason why a training ended
MOST_RETURNED = 4096  # characters of the JSON that a training function returned
MOST_SAMPLES = 1000  # profile samples in one report, and in the profile of one device
MOST_EPOCHS = 1000  # whose metric is kept
MAX_POINTS = 500  # of power, of one trial
_REASONS = frozenset(f.name for f in fields(Observation)).union(
    (BATCH_SIZE, DATA_WAIT, LIMIT, NO_STRIKE, PAUSED, PLAIN, UNCAPPED, UNSEEN, WHY_COLD)
)  # which an observation may have: for its fields, and keys that are no fields

_Span = tuple[float, PowerPoint]  # seconds that the point covers, the point


def truncated(text: str, most: int = MOST_TEXT) -> str:
    """The text cut to ``most`` characters, with ``?`` for what databases refuse: NUL, and what is not UTF-8."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.replace("\0", "?").encode(errors="replace").decode()


def truncated_observation(seen: Observation) -> Observation:
    """The observation with its texts cut, only reasons of its own fields, and its lists with 1000 values at most."""
    changed: dict[str, Any] = {}
    for name, rule in rules(Observation).items():
        text = getattr(seen, name)
        if isinstance(rule, Text) and rule.most and not rule.exact and text is not None:
            changed |= {name: short} if (short := truncated(text, rule.most)) != text else {}
    reasons = {name: truncated(why) for name, why in seen.reasons.items() if name in _REASONS}
    if reasons != seen.reasons:
        changed["reasons"] = reasons
    if seen.returned is not None and truncated(seen.returned, MOST_RETURNED) != seen.returned:
        changed["returned"] = None  # cut, it would be no JSON
    if seen.gpu_energy_j is not None and len(seen.gpu_energy_j) > 1000:
        changed["gpu_energy_j"] = None
    if seen.epoch_metrics is not None and len(seen.epoch_metrics) > MOST_EPOCHS:
        changed["epoch_metrics"] = seen.epoch_metrics[:MOST_EPOCHS]
    return replace(seen, **changed) if changed else seen


def bounded_points(points: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
    """At most 500 points, the text of each phase cut."""
    few, most = thinned(points), 50  # characters
    return tuple(replace(p, phase=short) if (short := truncated(p.phase, most)) != p.phase else p for p in few)


def thinned(points: Sequence[PowerPoint], most: int = MAX_POINTS) -> list[PowerPoint]:
    """At most ``most`` points with the same energy (sum of power times duration).

    Neighbours of the same limit and phase are merged first. Where limit or phase changes more than ``most`` times,
    neighbours that differ are merged too; the later one then gives limit and phase.
    """
    if len(points) <= most:
        return list(points)
    starts = [0.0, *(p.t_s for p in points)]
    spans = [(max(p.t_s - start, 0.0), p) for start, p in zip(starts, points, strict=False)]
    width = max(points[-1].t_s, 1e-6) / most
    for mixed in (False, True):
        for _ in range(40):  # doubled 40 times, one width covers any duration
            if len(spans) <= most:
                break
            spans = list(_merged(spans, width, mixed=mixed))
            width *= 2
        width = max(points[-1].t_s, 1e-6) / most
    return [p for _, p in spans[-most:]]


def _merged(spans: Sequence[_Span], width: float, *, mixed: bool) -> Iterator[_Span]:
    """One pass: each span joins the one before it while both together last at most ``width`` seconds."""
    last = spans[0]
    for span in spans[1:]:
        same = (last[1].limit_w, last[1].phase) == (span[1].limit_w, span[1].phase)
        if (same or mixed) and last[0] + span[0] <= width:
            known = [(s, p.power_w) for s, p in (last, span) if p.power_w is not None]
            seconds, power_w = sum(s for s, _ in known), None
            if known:
                power_w = sum(s * w for s, w in known) / seconds if seconds else sum(w for _, w in known) / len(known)
            later = span[1]
            point = PowerPoint(t_s=later.t_s, power_w=power_w, limit_w=later.limit_w, phase=later.phase)
            last = last[0] + span[0], point
        else:
            yield last
            last = span
    yield last
