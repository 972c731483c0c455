"""Charts of the power of a run's attempts over time, and of the energy of each of its GPUs. Pure: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from airflow_provider_zeus.model.trial import UNCAPPED, PowerPoint, State, Trial
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    SHADE,
    Option,
    bars,
    base,
    colours_of,
    line,
    mark_lines,
    number,
    plain,
    scale,
    value_axis,
    watts,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.words import duration
from airflow_provider_zeus.plugin.views.models import LONGEST, Chart, Table

POWER, LIMIT, CHOSEN = "power drawn", "power limit in force", "chosen limit"
PHASES = {"profile": "profiling", "train": "training", "validate": "validation"}

_Known = tuple[int, Trial, dict[str, float]]  # attempt, its trial, joules by GPU


@dataclass(frozen=True, slots=True)
class _Span:
    """A power point with the training time that it covers, from ``start_s`` to ``end_s`` of all attempts."""

    attempt: int
    trial: Trial
    start_s: float
    end_s: float
    point: PowerPoint

    @property
    def device_count(self) -> int:
        return self.trial.observation.device_count or 1

    @property
    def limit_w(self) -> float | None:
        """The limit of all GPUs together, comparable with their power."""
        return None if self.point.limit_w is None else self.point.limit_w * self.device_count


def power(drawn: Sequence[tuple[Trial, Sequence[PowerPoint]]]) -> Chart:
    """Chart of power over training time, one attempt after the other."""
    title, spans, offset_s = "Power over time", list[_Span](), 0.0
    for attempt, (trial, points) in enumerate(drawn, 1):
        start_s = 0.0
        for point in points:
            spans.append(_Span(attempt, trial, offset_s + start_s, offset_s + point.t_s, point))
            start_s = point.t_s
        offset_s += start_s
    if not any(s.point.power_w is not None for s in spans):
        ended = [trial.observation for trial, _ in drawn if trial.observation.time_s is not None]
        why = (
            "Power is not known: nothing measured it."
            if all(seen.energy_source is None for seen in ended)
            else "The log holds no power over time of this run: it ended within a second, 'airflow zeus prune' has "
            "deleted it, or the store is Variables, which keep it for the newest trials only."
        )
        return Chart(title=title, note=why)
    size, unit = scale(spans[-1].end_s, "s")
    last = {s.attempt: s.point for s in spans}
    limits = [s.limit_w for s in spans]
    chosen: list[float | None] = []  # by profiling, of all GPUs together; None while it still runs, or chose none
    for s in spans:
        seen, profiles = s.trial.observation, last[s.attempt].phase == "profile"
        still = UNCAPPED in seen.reasons or (s.trial.state is State.RUNNING and profiles)
        chosen.append(None if seen.power_limit_w is None or still else seen.power_limit_w * s.device_count)
    lines = [
        _power_line(spans, size),
        line(LIMIT, COLOURS[1], _steps(spans, size, limits), "dashed", 1.5) | {"silent": True},
    ]
    if any(chosen):
        lines.append(line(CHOSEN, COLOURS[2], _steps(spans, size, chosen), "dotted") | {"silent": True})
    option = base(
        grid={"left": 60, "right": 24, "top": 28, "bottom": 66},
        legend={"bottom": 0, "data": [each["name"] for each in lines]},
        xAxis=value_axis(
            f"training time [{unit}]", 28, max=number(spans[-1].end_s / size), axisLabel={"showMaxLabel": False}
        ),
        yAxis=value_axis("power [W]", 40, min=0),
        series=lines,
    )
    option["tooltip"]["trigger"] = "axis"
    windows, attempts = len(_profiling(spans)), len({s.attempt for s in spans})
    text = (
        f"Power over {duration(spans[-1].end_s).text} of training in {attempts} attempt{'s' * (attempts > 1)}: mean "
        f"{watts(_mean_w(spans))}, highest {watts(max(s.point.power_w or 0.0 for s in spans))}; {windows} profiling "
        f"window{'s' * (windows != 1)}. The table holds the same figures."
    )
    shaded = "Shaded: windows in which power limits were profiled. "
    return Chart(
        title=title,
        option=option,
        text=text,
        note=f"{shaded if windows else ''}Each step is a mean over its time.",
        table=_table(spans),
    )


def _steps(spans: Sequence[_Span], size: float, values: Sequence[float | None]) -> list[Option]:
    """Data of a line that holds each value over its span: two points for each."""
    held = [(s, None if value is None else number(value)) for s, value in zip(spans, values, strict=True)]
    return [{"value": [number(at / size), value]} for s, value in held for at in (s.start_s, s.end_s)]


def _power_line(spans: Sequence[_Span], size: float) -> Option:
    """The line of power with a tip for each span, shaded profiling windows and a mark at the start of each attempt."""
    data = _steps(spans, size, [s.point.power_w for s in spans])
    for s, point in zip(spans, data[1::2], strict=True):
        point["tip"] = (
            f"{duration(s.start_s).text} to {duration(s.end_s).text}, {words.sized(s.trial)}\n"
            f"{plain(PHASES.get(s.point.phase, s.point.phase))}: {watts(s.point.power_w)}, limit {watts(s.limit_w)}"
        )
    windows = [[{"xAxis": number(at / size)} for at in window] for window in _profiling(spans)]
    firsts = [next(group) for _, group in groupby(spans, key=lambda s: s.attempt)]
    starts = [
        {
            "xAxis": number(s.start_s / size),
            "label": {"formatter": f"{words.sized(s.trial)}", "align": "left", "offset": [2, 0]},
        }
        for s in (firsts if len(firsts) > 1 else [])
    ]
    return line(POWER, COLOURS[0], data) | {
        "markArea": {"silent": True, "itemStyle": {"color": SHADE}, "data": windows},
        "markLine": mark_lines(starts, type="solid", width=1),
    }


def _profiling(spans: Sequence[_Span]) -> list[tuple[float, float]]:
    """Start and end [s] of each profiling window."""
    groups = [list(group) for _, group in groupby(spans, key=lambda s: (s.attempt, s.point.phase))]
    return [(group[0].start_s, group[-1].end_s) for group in groups if group[0].point.phase == "profile"]


def _mean_w(spans: Sequence[_Span]) -> float | None:
    """Mean power [W] over the time for which it is known."""
    known = [(s.end_s - s.start_s, s.point.power_w) for s in spans if s.point.power_w is not None]
    time_s = sum(seconds for seconds, _ in known)
    return sum(seconds * w for seconds, w in known) / time_s if time_s else known[0][1] if known else None


def _table(spans: Sequence[_Span]) -> Table:
    groups = [list(g) for _, g in groupby(spans, key=lambda s: (s.attempt, s.point.phase, s.point.limit_w))]
    return Table(
        caption="Mean power by attempt, phase and power limit",
        columns=["Attempt", "Phase", "From", "To", "Mean power", "Limit"],
        numeric=[False, False, True, True, True, True],
        rows=[
            [
                f"{group[0].attempt}: {words.sized(group[0].trial)}",
                PHASES.get(group[0].point.phase, group[0].point.phase),
                duration(group[0].start_s).text,
                duration(group[-1].end_s).text,
                watts(_mean_w(group)),
                watts(group[0].limit_w),
            ]
            for group in groups
        ],
    )


def gpus(trials: Sequence[Trial]) -> Chart | None:
    """Chart of the energy of each GPU [J], attempts stacked; None where no attempt had several GPUs.

    It shows the newest energy source only: figures of different sources are never added.
    """
    title = "Energy per GPU"
    several = [(n, t) for n, t in enumerate(trials, 1) if (t.observation.device_count or 1) > 1]
    found: list[_Known] = []
    for n, trial in several:
        each_j, names = trial.observation.gpu_energy_j or (), (trial.observation.gpu_uuid or "").split(",")
        if len(set(names)) != len(each_j):
            names = [f"number {i}" for i in range(1, len(each_j) + 1)]
        if each_j:
            found.append((n, trial, dict(zip(names, each_j, strict=True))))
    if not several:
        return None
    if not found:
        why = several[-1][1].observation.reasons.get("gpu_energy_j", "")[:LONGEST]
        return Chart(title=title, note=f"Not known: {why or 'the log holds no energy by GPU'}.")
    of = found[-1][1].observation.energy_source
    shown = [(n, t, each) for n, t, each in found if t.observation.energy_source == of]
    names = list(dict.fromkeys(name for *_, each in shown for name in each))
    sums = [sum(each.get(name, 0.0) for *_, each in shown) for name in names]
    size, unit = scale(max(sums), "J")
    colours = colours_of([trial.batch_size for _, trial, _ in shown])
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 66},
        legend={"type": "scroll", "bottom": 0},
        xAxis={"type": "category", "data": [f"GPU {i}" for i in range(1, len(names) + 1)]},
        yAxis=value_axis(f"energy [{unit}]", 44, min=0),
        series=[
            bars(
                f"{n}: {words.sized(trial)}",
                colour,
                [
                    {
                        "value": number(each.get(name, 0.0) / size),
                        "tip": plain(
                            f"GPU {i}: {name}\n{n}: {words.sized(trial)}\n"
                            f"{words.energy(each[name]).text if name in each else 'not used'}"
                        ),
                    }
                    for i, name in enumerate(names, 1)
                ],
            )
            for (n, trial, each), colour in zip(shown, colours, strict=True)
        ],
    )
    gaps = len(several) - len(shown)
    left_out = f" Not in it: {gaps} attempt{'s' * (gaps > 1)} whose figures are not known, or of another source."
    running = " An attempt still runs: its figures so far." if shown[-1][1].state is State.RUNNING else ""
    return Chart(
        title=title,
        option=option,
        text=f"Energy of {len(names)} GPUs, {words.energy(min(sums)).text} to {words.energy(max(sums)).text} each. "
        "The table holds the same figures.",
        note=f"By attempt, {words.source(of)}.{running}{left_out if gaps else ''}",
        table=_gpu_table(title, shown, names, sums),
    )


def _gpu_table(title: str, shown: Sequence[_Known], names: Sequence[str], sums: Sequence[float]) -> Table:
    total = sum(sums)
    rows = [
        [
            f"GPU {i}",
            name,
            *(words.energy(each[name]).text if name in each else "–" for *_, each in shown),
            words.energy(total_j).text,
            f"{100 * total_j / total:.0f} %" if total else "–",
        ]
        for i, (name, total_j) in enumerate(zip(names, sums, strict=True), 1)
    ]
    return Table(
        caption=title,
        columns=["GPU", "Identity", *(f"{n}: {words.sized(t)}" for n, t, _ in shown), "Total", "Share"],
        numeric=[False, False, *(True for _ in shown), True, True],
        rows=rows,
    )
