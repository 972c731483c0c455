"""Power over time of one trial, kept small: neighbours are merged, weighted by the time they cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_zeus.optimizer.trial import PowerPoint

MAX_POINTS = 500

_Span = tuple[float, PowerPoint]  # seconds that the point covers, the point


def thinned(points: Sequence[PowerPoint], most: int = MAX_POINTS) -> list[PowerPoint]:
    """At most ``most`` points; energy (the sum of power times duration) is kept.

    Neighbours of one limit and phase are merged first. Only where those change more often than ``most`` times are
    different ones merged; the later one then names limit and phase.
    """
    if len(points) <= most:
        return list(points)
    spans = list(_spans(points))
    width = max(points[-1].t_s, 1e-6) / most
    for mixed in (False, True):
        for _ in range(40):  # doubled 40 times, one width covers any duration
            if len(spans) <= most:
                break
            spans = list(_swept(spans, width, mixed=mixed))
            width *= 2
        width = max(points[-1].t_s, 1e-6) / most
    return [p for _, p in spans[-most:]]


def _spans(points: Sequence[PowerPoint]) -> Iterator[_Span]:
    before = 0.0
    for point in points:
        yield max(point.t_s - before, 0.0), point
        before = point.t_s


def _swept(spans: Sequence[_Span], width: float, *, mixed: bool) -> Iterator[_Span]:
    """One pass: each span joins the one before while both together last no longer than ``width`` seconds."""
    last = spans[0]
    for span in spans[1:]:
        alike = (last[1].limit_w, last[1].phase) == (span[1].limit_w, span[1].phase)
        if (alike or mixed) and last[0] + span[0] <= width:
            last = _joined(last, span)
        else:
            yield last
            last = span
    yield last


def _joined(a: _Span, b: _Span) -> _Span:
    known = [(s, p.power_w) for s, p in (a, b) if p.power_w is not None]
    seconds = sum(s for s, _ in known)
    power = None
    if known:
        power = sum(s * w for s, w in known) / seconds if seconds else sum(w for _, w in known) / len(known)
    later = b[1]
    return a[0] + b[0], PowerPoint(t_s=later.t_s, power_w=power, limit_w=later.limit_w, phase=later.phase)
