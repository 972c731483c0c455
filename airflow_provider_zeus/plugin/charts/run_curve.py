"""Chart of energy and time per sample against the power limit of a batch size. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_zeus.model.cost import Weights, best_limit
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    ROW_PX,
    Option,
    base,
    mark_lines,
    number,
    value_axis,
    watts,
)
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, same_limit


def curve(
    samples: Sequence[ProfileSample], batch_size: int, weights: Weights, ran_w: float | None, *, uncapped: bool = False
) -> Chart | None:
    """Chart of J and s per sample against the power limit, with the optimum marked; None where nothing was profiled.

    :param ran_w: the limit of this run's attempt [W]; ``uncapped``: no limit could save anything, so none is the best.
    """
    at = LimitProfiles.of(samples).sums.get(batch_size, {})
    best = best_limit(at.values(), weights)
    if not at or best is None:
        return None
    limits = sorted(at)
    joules, seconds = [at[w].energy_j / at[w].samples for w in limits], [at[w].time_s / at[w].samples for w in limits]
    known = max(joules) > 0
    marks = [] if uncapped else [(best[0], f"optimum {best[0]:,.0f} W")]
    if ran_w is not None and (uncapped or not same_limit(ran_w, best[0])):
        marks.append((ran_w, f"run’s {ran_w:,.0f} W"))
    (j_size, j_unit), (s_size, s_unit) = _small(max(joules), "J"), _small(max(seconds), "s")
    option = base(
        grid={"left": 64, "right": 64, "top": 30 + ROW_PX * max(len(marks) - 1, 0), "bottom": 66},
        legend={"bottom": 0},
        xAxis=value_axis("power limit [W]", 28, scale=True),
        yAxis=[
            _axis(f"energy [{j_unit}]", joules, j_size, 0.5),
            {**_axis(f"time [{s_unit}]", seconds, s_size, 0.3), "splitLine": {"show": False}},
        ],
        series=[
            _rate(f"energy [{j_unit}]", limits, joules if known else [], j_size, 0, marks),
            _rate(f"time [{s_unit}]", limits, seconds, s_size, 1, []),
        ],
    )
    optimum = "none is chosen" if uncapped else f"the optimum is {best[0]:,.0f} W"
    text = (
        f"Energy and time per sample of batch size {batch_size} at {len(limits)} power limits from {limits[0]:,.0f} to "
        f"{limits[-1]:,.0f} W; {optimum}. The table holds the same figures."
    )
    return Chart(
        title=f"Power limits at batch size {batch_size}, per sample",
        option=option,
        text=text,
        note="From all profiling of this job on this device. Axes do not start at 0.",
        table=_curve_table(at, limits, weights, batch_size, dict(marks)),
    )


def _axis(name: str, values: Sequence[float], size: float, height: float) -> Option:
    """An axis around the values. A small spread is not magnified: the axis spans a fifth of the highest value, and they
    lie at ``height`` (0 to 1) of it, so that two flat lines do not overlap.
    """
    low, high = min(values) / size, max(values) / size
    axis = value_axis(name, 44, scale=True)
    if high - low >= 0.2 * high:
        return axis
    middle, span = (low + high) / 2, 0.2 * high
    bottom, top = middle - height * span, middle + (1 - height) * span
    ends = {"min": number(min(bottom, low - 0.05 * span)), "max": number(max(top, high + 0.05 * span))}
    return {**axis, **ends, "axisLabel": {"showMinLabel": False, "showMaxLabel": False}}


def _small(most: float, unit: str) -> tuple[float, str]:
    """Size and name of a unit for a quantity per sample, such as (1e-3, "mJ")."""
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
        data = []
        for i, (w, text) in enumerate(marks):  # each label in a row of its own, towards the middle of the axis
            side, shift = ("right", 4) if 2 * w > limits[0] + limits[-1] else ("left", -4)
            label = {"formatter": text, "align": side, "offset": [shift, -ROW_PX * i]}
            data.append({"xAxis": w, "lineStyle": {"type": ("solid", "dotted")[i]}, "label": label})
        series["markLine"] = mark_lines(data)
    return series


def _curve_table(
    at: Mapping[float, ProfileSample], limits: Sequence[float], weights: Weights, size: int, marks: dict[float, str]
) -> Table:
    (j_size, j_unit) = _small(max(s.energy_j / s.samples for s in at.values()), "J")
    (s_size, s_unit) = _small(max(s.time_s / s.samples for s in at.values()), "s")
    costs = {w: weights.cost(s.energy_j, s.time_s) / s.samples for w, s in at.items()}
    rows, whole = [], costs[limits[-1]]
    for w in limits:
        s = at[w]
        rows.append(
            [
                f"{w:,.0f} W",
                f"{s.energy_j / s.samples / j_size:.4g} {j_unit}" if s.energy_j > 0 else "–",
                f"{s.time_s / s.samples / s_size:.4g} {s_unit}",
                watts(s.energy_j / s.time_s) if s.energy_j > 0 else "–",
                f"{100 * costs[w] / whole:.4g} %" if whole > 0 else "–",
                "; ".join(text.split(" ")[0] for limit, text in marks.items() if same_limit(limit, w)),
            ]
        )
    together = f"together weighed {weights.split}, in % of the highest limit's"
    return Table(
        caption=f"Energy and time per sample at batch size {size}; {together}",
        columns=["Limit", "Energy", "Time", "Mean power", "Together", "Mark"],
        numeric=[True, True, True, True, True, False],
        rows=rows,
    )
