"""Power over time of a run's attempts, as a chart. Plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from airflow_provider_zeus.optimizer.trial import PowerPoint, State, Trial
from airflow_provider_zeus.plugin.figures import COLOURS, LINE, SHADE, Option, base, number, plain, scale, watts
from airflow_provider_zeus.plugin.models import Chart, Table
from airflow_provider_zeus.plugin.words import duration

POWER, LIMIT, CHOSEN = "power drawn", "power limit in force", "chosen limit"
SHADED = "Shaded: windows in which power limits were profiled. "
PHASES = {"profile": "profiling", "train": "training", "validate": "validation"}

Drawn = tuple[Trial, Sequence[PowerPoint]]
_Span = tuple[int, Trial, float, float, PowerPoint]  # attempt, its trial, from, to [s], what held


def power(drawn: Sequence[Drawn]) -> Chart:
    """Power over the training time of a run's attempts, one after the other."""
    spans = _spans(drawn)
    title = "Power over time"
    if not any(p.power_w is not None for *_, p in spans):
        return Chart(title=title, note=_no_power([t for t, _ in drawn]))
    size, unit = scale(spans[-1][3], "s")
    option = base(
        grid={"left": 60, "right": 24, "top": 28, "bottom": 66},
        legend={"bottom": 0, "data": [POWER, LIMIT, CHOSEN]},
        xAxis={
            "type": "value",
            "name": f"training time [{unit}]",
            "max": number(spans[-1][3] / size),
            "axisLabel": {"showMaxLabel": False},
            "nameLocation": "middle",
            "nameGap": 28,
        },
        yAxis={"type": "value", "name": "power [W]", "min": 0, "nameLocation": "middle", "nameGap": 40},
        series=[_drawn_line(spans, size), _limit_line(spans, size), _chosen_line(spans, size)],
    )
    option["tooltip"]["trigger"] = "axis"
    return Chart(
        title=title,
        option=option,
        text=_said(spans),
        note=f"{SHADED if _windows(spans, 'profile') else ''}Each step is a mean over its time.",
        table=_power_table(spans),
    )


def _spans(drawn: Sequence[Drawn]) -> list[_Span]:
    """What each point covers, attempts put one behind the other."""
    spans: list[_Span] = []
    offset = 0.0
    for n, (trial, points) in enumerate(drawn, 1):
        before = 0.0
        for point in points:
            spans.append((n, trial, offset + before, offset + point.t_s, point))
            before = point.t_s
        offset += before
    return spans


def _no_power(trials: Sequence[Trial]) -> str:
    if all(t.observation.energy_source is None for t in trials if t.observation.time_s is not None):
        return "No power is known: nothing measured it there (no source)."
    return (
        "The log holds no power over time of this run: it was over within a second, 'airflow zeus prune' has deleted "
        "it, or Variables are the store, where only the newest trials keep it."
    )


def _count(trial: Trial) -> int:
    return trial.observation.device_count or 1


def _step(spans: Sequence[_Span], size: float, values: Sequence[float | None], tips: Sequence[str]) -> list[Option]:
    """Points of a line that keeps each value over what it covers."""
    data: list[Option] = []
    for (_, _, start, end, _), value, tip in zip(spans, values, tips, strict=True):
        shown = None if value is None else number(value)
        data.append({"value": [number(start / size), shown]})
        data.append({"value": [number(end / size), shown], "tip": tip})
    return data


def _drawn_line(spans: Sequence[_Span], size: float) -> Option:
    tips = [
        f"{duration(start).text} to {duration(end).text}, batch size {trial.batch_size}\n"
        f"{plain(PHASES.get(p.phase, p.phase))}: {watts(p.power_w)}, limit {watts(_limit_of(trial, p))}"
        for _, trial, start, end, p in spans
    ]
    return {
        "type": "line",
        "name": POWER,
        "symbol": "none",
        "lineStyle": {"width": 2, "color": COLOURS[0]},
        "itemStyle": {"color": COLOURS[0]},
        "data": _step(spans, size, [p.power_w for *_, p in spans], tips),
        "markArea": {
            "silent": True,
            "itemStyle": {"color": SHADE},
            "data": [
                [{"xAxis": number(start / size)}, {"xAxis": number(end / size)}]
                for start, end in _windows(spans, "profile")
            ],
        },
        "markLine": {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": LINE, "type": "solid", "width": 1},
            "data": _beginnings(spans, size),
        },
    }


def _beginnings(spans: Sequence[_Span], size: float) -> list[Option]:
    firsts = [next(group) for _, group in groupby(spans, key=lambda s: s[0])]
    if len(firsts) < 2:
        return []
    return [
        {
            "xAxis": number(start / size),
            "label": {"formatter": f"batch size {trial.batch_size}", "align": "left", "offset": [2, 0]},
        }
        for _, trial, start, _, _ in firsts
    ]


def _limit_of(trial: Trial, point: PowerPoint) -> float | None:
    """The limit of all GPUs together, as power is."""
    return None if point.limit_w is None else point.limit_w * _count(trial)


def _limit_line(spans: Sequence[_Span], size: float) -> Option:
    return _level(LIMIT, COLOURS[1], 1.5, "dashed", spans, size, [_limit_of(trial, p) for _, trial, _, _, p in spans])


def _chosen_line(spans: Sequence[_Span], size: float) -> Option:
    last = {n: point for n, *_, point in spans}
    return _level(CHOSEN, COLOURS[2], 2, "dotted", spans, size, [_chosen(trial, last[n]) for n, trial, *_ in spans])


def _level(
    name: str,
    colour: str,
    width: float,
    dash: str,
    spans: Sequence[_Span],
    size: float,
    values: Sequence[float | None],
) -> Option:
    """A line beside that of the power, without tips of its own."""
    return {
        "type": "line",
        "name": name,
        "symbol": "none",
        "silent": True,
        "lineStyle": {"width": width, "color": colour, "type": dash},
        "itemStyle": {"color": colour},
        "data": [{"value": point["value"]} for point in _step(spans, size, values, [""] * len(spans))],
    }


def _chosen(trial: Trial, last: PowerPoint) -> float | None:
    """The limit [W] that an attempt was left with; None while it is still looking for one."""
    limit_w = trial.observation.power_limit_w
    looking = trial.state is State.RUNNING and last.phase == "profile"
    return None if limit_w is None or looking else limit_w * _count(trial)


def _windows(spans: Sequence[_Span], phase: str) -> list[tuple[float, float]]:
    """Stretches of one phase [s]."""
    found = []
    for (_, name), group in groupby(spans, key=lambda s: (s[0], s[4].phase)):
        own = list(group)
        if name == phase:
            found.append((own[0][2], own[-1][3]))
    return found


def _mean(spans: Sequence[_Span]) -> float | None:
    """Mean power [W] over their time, where it is known."""
    known = [(end - start, p.power_w) for _, _, start, end, p in spans if p.power_w is not None]
    seconds = sum(s for s, _ in known)
    return sum(s * w for s, w in known) / seconds if seconds else known[0][1] if known else None


def _said(spans: Sequence[_Span]) -> str:
    windows = len(_windows(spans, "profile"))
    attempts = len({n for n, *_ in spans})
    return (
        f"Power over {duration(spans[-1][3]).text} of training in {attempts} attempt{'s' * (attempts > 1)}: mean "
        f"{watts(_mean(spans))}, highest {watts(max(p.power_w or 0.0 for *_, p in spans))}; {windows} profiling "
        f"window{'s' * (windows != 1)}. The table holds the same figures."
    )


def _power_table(spans: Sequence[_Span]) -> Table:
    rows = []
    for (n, phase, limit_w), group in groupby(spans, key=lambda s: (s[0], s[4].phase, s[4].limit_w)):
        own = list(group)
        trial = own[0][1]
        rows.append(
            [
                f"{n}: batch size {trial.batch_size}",
                PHASES.get(phase, phase),
                duration(own[0][2]).text,
                duration(own[-1][3]).text,
                watts(_mean(own)),
                watts(None if limit_w is None else limit_w * _count(trial)),
            ]
        )
    return Table(
        caption="Mean power by attempt, phase and power limit",
        columns=["Attempt", "Phase", "From", "To", "Mean power", "Limit"],
        numeric=[False, False, True, True, True, True],
        rows=rows,
    )
