"""Charts of a run's tab: power over time, and the power-limit curve of a batch size. Plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from airflow_provider_zeus.optimizer.cost import Weights, best_limit
from airflow_provider_zeus.optimizer.limits import SAME_W, Profiles
from airflow_provider_zeus.optimizer.trial import PowerPoint, ProfileSample, State, Trial
from airflow_provider_zeus.plugin.figures import COLOURS, LINE, SHADE, Option, base, number, plain, scale
from airflow_provider_zeus.plugin.models import Chart, Table
from airflow_provider_zeus.plugin.words import duration

POWER, LIMIT, CHOSEN = "power drawn", "power limit in force", "chosen limit"
SHADED = "Shaded: windows in which power limits were profiled. "
PHASES = {"profile": "profiling", "train": "training", "validate": "validation"}
FLAT = 0.2  # an axis covers at least this share of its highest value
_AXIS_END = {"nameLocation": "middle", "nameGap": 28}

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
            **_AXIS_END,
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
    return "The log holds no power over time of this run: only the newest trials keep it where Variables are the store."


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
        f"{plain(PHASES.get(p.phase, p.phase))}: {_watts(p.power_w)}, limit {_watts(_limit_of(trial, p))}"
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
    values = [_limit_of(trial, p) for _, trial, _, _, p in spans]
    return {
        "type": "line",
        "name": LIMIT,
        "symbol": "none",
        "silent": True,
        "lineStyle": {"width": 1.5, "color": COLOURS[1], "type": "dashed"},
        "itemStyle": {"color": COLOURS[1]},
        "data": [{"value": point["value"]} for point in _step(spans, size, values, [""] * len(spans))],
    }


def _chosen_line(spans: Sequence[_Span], size: float) -> Option:
    last = {n: point for n, *_, point in spans}
    values = [_chosen(trial, last[n]) for n, trial, *_ in spans]
    return {
        "type": "line",
        "name": CHOSEN,
        "symbol": "none",
        "silent": True,
        "lineStyle": {"width": 2, "color": COLOURS[2], "type": "dotted"},
        "itemStyle": {"color": COLOURS[2]},
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


def _said(spans: Sequence[_Span]) -> str:
    known = [(end - start, p.power_w) for _, _, start, end, p in spans if p.power_w is not None]
    seconds = sum(s for s, _ in known)
    mean = sum(s * w for s, w in known) / seconds if seconds else known[0][1]
    windows = len(_windows(spans, "profile"))
    attempts = len({n for n, *_ in spans})
    return (
        f"Power over {duration(spans[-1][3]).text} of training in {attempts} attempt{'s' * (attempts > 1)}: mean "
        f"{_watts(mean)}, highest {_watts(max(w for _, w in known))}; {windows} profiling "
        f"window{'s' * (windows != 1)}. The table holds the same figures."
    )


def _power_table(spans: Sequence[_Span]) -> Table:
    rows = []
    for (n, phase, limit_w), group in groupby(spans, key=lambda s: (s[0], s[4].phase, s[4].limit_w)):
        own = list(group)
        known = [(end - start, p.power_w) for _, _, start, end, p in own if p.power_w is not None]
        seconds = sum(s for s, _ in known)
        mean = sum(s * w for s, w in known) / seconds if seconds else None
        trial = own[0][1]
        rows.append(
            [
                f"{n}: batch size {trial.batch_size}",
                PHASES.get(phase, phase),
                duration(own[0][2]).text,
                duration(own[-1][3]).text,
                _watts(mean),
                _watts(None if limit_w is None else limit_w * _count(trial)),
            ]
        )
    return Table(
        caption="Mean power by attempt, phase and power limit",
        columns=["Attempt", "Phase", "From", "To", "Mean power", "Limit"],
        numeric=[False, False, True, True, True, True],
        rows=rows,
    )


def _watts(power_w: float | None) -> str:
    return "–" if power_w is None else f"{power_w:,.0f} W"


def curve(samples: Sequence[ProfileSample], batch_size: int, weights: Weights, ran_w: float | None) -> Chart | None:
    """J and s per sample against the power limit of one batch size, the optimum marked; None: never profiled.

    :param ran_w: limit that this run's attempt had [W].
    """
    at = Profiles.of(samples).sums.get(batch_size, {})
    best = best_limit(at.values(), weights)
    if not at or best is None:
        return None
    limits = sorted(at)
    joules, seconds = [at[w].energy_j / at[w].samples for w in limits], [at[w].time_s / at[w].samples for w in limits]
    known = max(joules) > 0
    marks = [(best[0], f"optimum {best[0]:,.0f} W")]
    if ran_w is not None and abs(ran_w - best[0]) > SAME_W:
        marks.append((ran_w, f"run’s {ran_w:,.0f} W"))
    (j_size, j_unit), (s_size, s_unit) = _small(max(joules), "J"), _small(max(seconds), "s")
    option = base(
        grid={"left": 64, "right": 64, "top": 30, "bottom": 66},
        legend={"bottom": 0},
        xAxis={"type": "value", "name": "power limit [W]", "scale": True, **_AXIS_END},
        yAxis=[
            {"name": f"energy [{j_unit}]", **_range(joules, j_size, 0.5)},
            {"name": f"time [{s_unit}]", **_range(seconds, s_size, 0.3), "splitLine": {"show": False}},
        ],
        series=[
            _rate(f"energy [{j_unit}]", limits, joules if known else [], j_size, 0, marks),
            _rate(f"time [{s_unit}]", limits, seconds, s_size, 1, []),
        ],
    )
    text = (
        f"Energy and time per sample of batch size {batch_size} at {len(limits)} power limits from {limits[0]:,.0f} to "
        f"{limits[-1]:,.0f} W; the optimum is {best[0]:,.0f} W. The table holds the same figures."
    )
    return Chart(
        title=f"Power limits at batch size {batch_size}, per sample",
        option=option,
        text=text,
        note="Of all profiling of this job on this device. Axes do not begin at 0.",
        table=_curve_table(at, limits, weights, batch_size, dict(marks)),
    )


def _range(values: Sequence[float], size: float, height: float) -> Option:
    """An axis around the values; where they differ by next to nothing it does not blow that up, and they lie at
    ``height`` of it, so that two such lines do not hide each other.
    """
    low, high = min(values) / size, max(values) / size
    axis: Option = {"type": "value", "scale": True, "nameLocation": "middle", "nameGap": 44}
    if high - low >= FLAT * high:
        return axis
    middle, span = (low + high) / 2, FLAT * high
    ends = {"min": number(middle - height * span), "max": number(middle + (1 - height) * span)}
    return {**axis, **ends, "axisLabel": {"showMinLabel": False, "showMaxLabel": False}}


def _small(most: float, unit: str) -> tuple[float, str]:
    """(size, name) of a unit for a quantity of one sample."""
    for size, head in ((1.0, ""), (1e-3, "m")):
        if most >= size:
            return size, head + unit
    return 1e-6, f"µ{unit}"


def _rate(
    name: str,
    limits: Sequence[float],
    values: Sequence[float],
    size: float,
    axis: int,
    marks: Sequence[tuple[float, str]],
) -> Option:
    series: Option = {
        "type": "line",
        "name": name,
        "yAxisIndex": axis,
        "symbol": ("circle", "rect")[axis],
        "symbolSize": 7,
        "lineStyle": {"color": COLOURS[axis], "type": ("solid", "dashed")[axis]},
        "itemStyle": {"color": COLOURS[axis]},
        "data": [
            {
                "value": [w, number(v / size)],
                "tip": f"{w:,.0f} W: {v / size:.4g} {name.split('[')[1].rstrip(']')} per sample",
            }
            for w, v in zip(limits, values, strict=False)
        ],
    }
    if marks:
        series["markLine"] = {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": LINE},
            "data": [
                {
                    "xAxis": w,
                    "lineStyle": {"type": ("solid", "dotted")[i]},
                    "label": {"formatter": label, **_aside(w, [other for other, _ in marks])},
                }
                for i, (w, label) in enumerate(marks)
            ],
        }
    return series


def _aside(w: float, marks: Sequence[float]) -> Option:
    """Labels of two marks go away from each other."""
    if len(marks) < 2:
        return {}
    return {"align": "left", "offset": [-4, 0]} if w == max(marks) else {"align": "right", "offset": [4, 0]}


def _curve_table(
    at: Mapping[float, ProfileSample], limits: Sequence[float], weights: Weights, size: int, marks: dict[float, str]
) -> Table:
    rows = []
    for w in limits:
        s = at[w]
        rows.append(
            [
                f"{w:,.0f} W",
                f"{s.energy_j / s.samples:.4g} J" if s.energy_j > 0 else "–",
                f"{s.time_s / s.samples:.4g} s",
                _watts(s.energy_j / s.time_s) if s.energy_j > 0 else "–",
                weights.text(weights.cost(s.energy_j, s.time_s) / s.samples),
                "; ".join(text.split(" ")[0] for limit, text in marks.items() if abs(limit - w) <= SAME_W),
            ]
        )
    return Table(
        caption=f"Energy and time per sample at batch size {size}",
        columns=["Limit", "Energy", "Time", "Mean power", "Cost", "Mark"],
        numeric=[True, True, True, True, True, False],
        rows=rows,
    )
