"""Chart of the metric after each epoch, of the attempts of a run. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.size_bounds import MOST_EPOCHS
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.charts.chart_parts import (
    ROW_PX,
    Option,
    base,
    colours_of,
    mark_lines,
    number,
    plain,
    value_axis,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.units import UNKNOWN

MOST_ROWS = 50  # of the table


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """The metric of one attempt after each of its epochs."""

    name: str  # of the attempt, unique in its chart
    metric: str  # such as "accuracy"
    values: tuple[float, ...]
    target: float | None
    batch_size: int | None

    @classmethod
    def of(cls, trial: Trial, name: str) -> MetricCurve | None:
        """The curve of a trial; None where the log holds none."""
        seen = trial.observation
        if not seen.epoch_metrics:
            return None
        try:
            target = Target.parse(trial.spec.get("target"))
        except JobSpecError:  # written by another version
            return cls(name, "metric", seen.epoch_metrics, seen.target_value, trial.batch_size)
        aim = target.value if seen.target_value is None else seen.target_value
        return cls(name, target.metric, seen.epoch_metrics, aim, trial.batch_size)


def attempts(trials: Sequence[Trial]) -> Chart | None:
    """Chart of the attempts of one run; None where the log holds the metric of none."""
    named = [(trial, f"{n}: {words.sized(trial)}") for n, trial in enumerate(trials, 1)]
    curves = [curve for trial, name in named if (curve := MetricCurve.of(trial, name))]
    return chart_of(curves) if curves else None


def chart_of(curves: Sequence[MetricCurve]) -> Chart:
    """Chart of at least one curve; all are of the metric of one job."""
    metric = curves[0].metric
    longest = max(len(curve.values) for curve in curves)
    aims = list(dict.fromkeys(curve.target for curve in curves if curve.target is not None))
    colours = colours_of([curve.batch_size for curve in curves])
    option = base(
        grid={"left": 64, "right": 96 if aims else 24, "top": 30, "bottom": 66},  # beside it the target, off all curves
        legend={"type": "scroll", "bottom": 0},
        xAxis=value_axis("epoch", 28, min=1, max=max(longest, 2), minInterval=1),
        yAxis=value_axis(plain(metric), 44, scale=True),
        series=[_line(curve, colours[i]) for i, curve in enumerate(curves)],
    )
    if aims:
        values, axis = [value for curve in curves for value in curve.values], option["yAxis"]
        low, high = min(*values, *aims), max(*values, *aims)
        high_px = 164.0  # of the smallest such chart without its margins
        option["series"][0]["markLine"] = mark_lines(_targets(aims, (high - low) / high_px))
        if low < min(values):  # ECharts extends no axis for a line
            axis |= {"min": number(low), "axisLabel": {"showMinLabel": False}}
        if high > max(values):
            axis |= {"max": number(high), "axisLabel": {**axis.get("axisLabel", {}), "showMaxLabel": False}}
    ends = [
        f"{c.name} ended at {c.values[-1]:.4g} after {len(c.values)} epoch{'s' * (len(c.values) > 1)}" for c in curves
    ]
    every = -(-longest // MOST_ROWS)
    rows = [
        [str(n), *(f"{c.values[n - 1]:.4g}" if n <= len(c.values) else UNKNOWN for c in curves)]
        for n in range(1, longest + 1)
        if n % every == 0 or n in (1, longest)
    ]
    cut = f" Only the first {MOST_EPOCHS:,} epochs of an attempt are kept." if longest >= MOST_EPOCHS else ""
    return Chart(
        title=f"{metric} by epoch",
        option=option,
        text=f"{metric} after each epoch: {'; '.join(ends)}. The table holds the same figures.",
        note=f"As the training reported it after each of its epochs.{cut}",
        table=Table(
            caption=f"{metric} by epoch",
            columns=["Epoch", *(curve.name for curve in curves)],
            numeric=[True, *(True for _ in curves)],
            rows=rows,
        ),
    )


def _targets(aims: Sequence[float], per_px: float) -> list[Option]:
    """A line for each target, from the highest on; where their labels would overlap, one bears all, in their order.

    :param per_px: of the metric, in the smallest such chart.
    """
    marks: list[Option] = []
    named: Option = {}
    for aim in sorted(aims, reverse=True):
        text, lines = f"target {aim:.4g}", named["label"]["formatter"].count("\n") + 1 if named else 0
        mark: Option = {"yAxis": number(aim), "label": {"formatter": text, "lineHeight": ROW_PX}}
        if named and named["yAxis"] - aim < per_px * ROW_PX * (lines + 1) / 2:
            named["label"]["formatter"] += f"\n{text}"
            mark["label"] = {"show": False}
        else:
            named = mark
        marks.append(mark)
    return marks


def _line(curve: MetricCurve, colour: str) -> Option:
    name = plain(curve.name)
    points = [{"value": [n, number(v)], "tip": f"{name}\nepoch {n}: {v:.4g}"} for n, v in enumerate(curve.values, 1)]
    return {
        "type": "line",
        "name": name,
        "symbolSize": 5,
        "showSymbol": len(points) <= 2 * MOST_ROWS,
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour},
        "data": points,
    }
