"""Chart of energy and time per sample against the power limit of a batch size.

Pure: plain data in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights, best_limit
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.plugin.answer_parts import Chart, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    ROW_PX,
    Option,
    Unit,
    base,
    grid,
    mark_lines,
    number,
    value_axis,
    watts,
)
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, same_limit
from airflow_provider_zeus.units import UNKNOWN


@dataclass(frozen=True, slots=True)
class _Mark:
    """A power limit that has a vertical line."""

    limit_w: float
    name: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.limit_w:,.0f} W"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """Energy or time per sample at each power limit: a line with an axis of its own."""

    name: str
    unit: Unit
    values: Sequence[float]
    colour: str
    symbol: str
    dash: str
    axis_index: int
    height: float  # two flat lines at one height would cover each other

    @classmethod
    def energy(cls, values_j: Sequence[float]) -> _Quantity:
        """``values_j``: 0 if nothing measures energy."""
        return cls(
            name="energy",
            unit=_small(max(values_j), "J"),
            values=values_j,
            colour=COLOURS[0],
            symbol="circle",
            dash="solid",
            axis_index=0,
            height=0.5,
        )

    @classmethod
    def time(cls, values_s: Sequence[float]) -> _Quantity:
        return cls(
            name="time",
            unit=_small(max(values_s), "s"),
            values=values_s,
            colour=COLOURS[1],
            symbol="rect",
            dash="dashed",
            axis_index=1,
            height=0.3,
        )

    @property
    def title(self) -> str:
        return f"{self.name} [{self.unit.name}]"

    def axis(self) -> Option:
        """An axis around the values.

        A small spread is not magnified: it spans a fifth of the highest value.
        """
        low = min(self.values) / self.unit.size
        high = max(self.values) / self.unit.size
        axis = value_axis(self.title, 44, scale=True)
        # An axis that starts near the values would make noise of one per cent a cliff.
        if high - low >= 0.2 * high:
            return axis
        middle = (low + high) / 2
        span = 0.2 * high
        bottom = middle - self.height * span
        top = middle + (1 - self.height) * span
        return {
            **axis,
            "min": number(min(bottom, low - 0.05 * span)),
            "max": number(max(top, high + 0.05 * span)),
            "axisLabel": {"showMinLabel": False, "showMaxLabel": False},
        }

    def line(self, limits_w: Sequence[float]) -> Option:
        points = []
        if any(self.values):
            points = [
                self._point(limit_w, value)
                for limit_w, value in zip(limits_w, self.values, strict=True)
            ]
        return {
            "type": "line",
            "name": self.title,
            "yAxisIndex": self.axis_index,
            "symbol": self.symbol,
            "symbolSize": 7,
            "lineStyle": {"color": self.colour, "type": self.dash},
            "itemStyle": {"color": self.colour},
            "data": points,
        }

    def _point(self, limit_w: float, value: float) -> Option:
        height = value / self.unit.size
        tip = f"{limit_w:,.0f} W: {height:.4g} {self.unit.name} per sample"
        return {"value": [limit_w, number(height)], "tip": tip}

    def text(self, value: float) -> str:
        """A value of it, for people; a dash if it is not known."""
        if value <= 0:
            return UNKNOWN
        return f"{value / self.unit.size:.4g} {self.unit.name}"


def curve(
    samples: Sequence[ProfileSample],
    batch_size: int,
    weights: Weights,
    ran_w: float | None,
    *,
    uncapped: bool = False,
) -> Chart | None:
    """Chart of J and s per sample against the power limit; None if nothing was profiled.

    :param ran_w: the limit of this run's attempt [W].
    :param uncapped: no limit could save anything, so none is the best.
    """
    # Each batch size draws other power, so each has a curve of its own.
    profile = LimitProfiles.of(samples).sums.get(batch_size, {})
    best = best_limit(profile.values(), weights)
    if best is None:
        return None
    best_w, _ = best
    marks = []
    optimum = "none is chosen"
    if not uncapped:
        marks.append(_Mark(best_w, "optimum"))
        optimum = f"the optimum is {best_w:,.0f} W"
    # Two marks at one limit would cover each other.
    is_elsewhere = uncapped or not same_limit(ran_w, best_w)
    if ran_w is not None and is_elsewhere:
        marks.append(_Mark(ran_w, "run’s"))
    sums = [profile[limit_w] for limit_w in sorted(profile)]
    energy = _Quantity.energy([of_limit.energy_j / of_limit.samples for of_limit in sums])
    time = _Quantity.time([of_limit.time_s / of_limit.samples for of_limit in sums])
    limits_w = [of_limit.limit_w for of_limit in sums]
    text = (
        f"Energy and time per sample of batch size {batch_size} at {len(sums)} power limits from "
        f"{limits_w[0]:,.0f} to {limits_w[-1]:,.0f} W; {optimum}. The table holds the same figures."
    )
    energy_line = energy.line(limits_w)
    if marks:
        energy_line["markLine"] = _mark_lines(marks, (limits_w[0] + limits_w[-1]) / 2)
    rows_above = max(len(marks) - 1, 0)
    option = base(
        grid=grid(right=64, top=30 + ROW_PX * rows_above),
        legend={"bottom": 0},
        xAxis=value_axis("power limit [W]", 28, scale=True),
        # One grid: the lines of a second one would lie between those of the first.
        yAxis=[energy.axis(), {**time.axis(), "splitLine": {"show": False}}],
        series=[energy_line, time.line(limits_w)],
    )
    caption = (
        f"Energy and time per sample at batch size {batch_size}; together weighed "
        f"{weights.split}, in % of the highest limit's"
    )
    return Chart(
        title=f"Power limits at batch size {batch_size}, per sample",
        option=option,
        text=text,
        note="From all profiling of this job on this device. Axes do not start at 0.",
        table=Table(
            caption=caption,
            columns=["Limit", "Energy", "Time", "Mean power", "Together", "Mark"],
            numeric=[True, True, True, True, True, False],
            rows=_table_rows(sums, weights, marks, energy, time),
        ),
    )


def _small(most: float, unit: str) -> Unit:
    """The unit of a quantity per sample, such as mJ."""
    if most >= 1.0:
        return Unit(1.0, unit)
    if most >= 1e-3:
        return Unit(1e-3, f"m{unit}")
    return Unit(1e-6, f"µ{unit}")


def _mark_lines(marks: Sequence[_Mark], middle_w: float) -> Option:
    """Each label stands in a row of its own, towards the middle of the axis."""
    lines = []
    dash = "solid"  # lines differ without colours
    for i, mark in enumerate(marks):
        align = "left"
        aside_px = -4
        if mark.limit_w > middle_w:
            align = "right"
            aside_px = 4
        label = {
            "formatter": mark.label,
            "align": align,
            "offset": [aside_px, -ROW_PX * i],
        }
        lines.append({"xAxis": mark.limit_w, "lineStyle": {"type": dash}, "label": label})
        dash = "dotted"
    return mark_lines(lines)


def _table_rows(
    sums: Sequence[ProfileSample],
    weights: Weights,
    marks: Sequence[_Mark],
    energy: _Quantity,
    time: _Quantity,
) -> list[list[str]]:
    costs = [
        weights.cost(of_limit.energy_j, of_limit.time_s) / of_limit.samples for of_limit in sums
    ]
    # In % of full power, which is what the reader compares with.
    whole = costs[-1]
    rows = []
    for of_limit, cost in zip(sums, costs, strict=True):
        power_w = None
        if of_limit.energy_j > 0:
            power_w = of_limit.energy_j / of_limit.time_s
        names = [mark.name for mark in marks if same_limit(mark.limit_w, of_limit.limit_w)]
        rows.append(
            [
                f"{of_limit.limit_w:,.0f} W",
                energy.text(of_limit.energy_j / of_limit.samples),
                time.text(of_limit.time_s / of_limit.samples),
                watts(power_w),
                f"{100 * cost / whole:.4g} %" if whole > 0 else UNKNOWN,
                "; ".join(names),
            ]
        )
    return rows
