"""Fewer points of power over time: neighbours are merged, weighted by the time that they cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_zeus.model.trial import PowerPoint

MAX_POINTS = 500

_Span = tuple[float, PowerPoint]  # seconds that the point covers, the point


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
