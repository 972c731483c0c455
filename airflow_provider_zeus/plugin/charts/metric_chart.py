"""Chart of the metric after each epoch, of the attempts of a run. Pure: plain data in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.size_bounds import MOST_EPOCHS
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.answer_parts import Chart, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    LEGEND,
    ROW_PX,
    Option,
    base,
    colours_of,
    grid,
    mark_lines,
    number,
    plain,
    value_axis,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.units import UNKNOWN, counted

MOST_ROWS = 50  # a table of thousands of epochs slows the page


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """The metric of one attempt after each of its epochs."""

    name: str  # two series of one name would be one in the legend
    metric: str
    values: tuple[float, ...]
    target: float | None
    batch_size: int | None

    @classmethod
    def of(cls, trial: Trial, name: str) -> MetricCurve | None:
        """The curve of a trial; None if the log holds none."""
        # The observation is newer than the job: its target may have been set while it trained.
        observation = trial.observation
        if not observation.epoch_metrics:
            return None
        metric = "metric"
        aim = observation.target_value
        with suppress(JobSpecError):  # another version wrote it: its values are drawn all the same
            target = Target.parse(trial.spec.get("target"))
            metric = target.metric
            if aim is None:
                aim = target.value
        return cls(
            name=name,
            metric=metric,
            values=observation.epoch_metrics,
            target=aim,
            batch_size=trial.batch_size,
        )

    def text(self, epoch: int) -> str:
        """The metric after an epoch; a dash if the attempt ended before."""
        if epoch > len(self.values):
            return UNKNOWN
        return f"{self.values[epoch - 1]:.4g}"


def attempts(trials: Sequence[Trial]) -> Chart | None:
    """Chart of the attempts of one run; None if the log holds the metric of none."""
    of_all = [
        MetricCurve.of(trial, f"{n}: {words.sized(trial)}") for n, trial in enumerate(trials, 1)
    ]
    curves = known_values(of_all)
    if not curves:
        return None
    return chart_of(curves)


def chart_of(curves: Sequence[MetricCurve]) -> Chart:
    """Chart of at least one curve; all are of the metric of one job."""
    first, *_ = curves
    title = f"{first.metric} by epoch"
    longest = max(len(curve.values) for curve in curves)
    ends = "; ".join(
        f"{curve.name} ended at {curve.values[-1]:.4g} after {counted(len(curve.values), 'epoch')}"
        for curve in curves
    )
    note = "As the training reported it after each of its epochs."
    if longest >= MOST_EPOCHS:
        note += f" Only the first {MOST_EPOCHS:,} epochs of an attempt are kept."
    return Chart(
        title=title,
        option=_option(curves, first.metric, longest),
        text=f"{first.metric} after each epoch: {ends}. The table holds the same figures.",
        note=note,
        table=_table(title, curves, longest),
    )


def _option(curves: Sequence[MetricCurve], metric: str, longest: int) -> Option:
    aims = list(dict.fromkeys(curve.target for curve in curves if curve.target is not None))
    colours = colours_of([curve.batch_size for curve in curves])
    option = base(
        grid=grid(),
        legend=LEGEND,
        xAxis=value_axis("epoch", 28, min=1, max=max(longest, 2), minInterval=1),
        yAxis=value_axis(plain(metric), 44, scale=True),
        series=[_line(curve, colour) for curve, colour in zip(curves, colours, strict=True)],
    )
    if aims:
        _add_targets(option, curves, aims)
    return option


def _add_targets(option: Option, curves: Sequence[MetricCurve], aims: Sequence[float]) -> None:
    """Add a line for each target to a chart, with its name beside it, off all curves."""
    option["grid"]["right"] = 96
    lowest = min(min(curve.values) for curve in curves)
    highest = max(max(curve.values) for curve in curves)
    low = min(lowest, *aims)
    high = max(highest, *aims)
    high_px = 164.0  # in the smallest chart labels are nearest: there they must not overlap
    curve_line, *_ = option["series"]
    curve_line["markLine"] = mark_lines(_targets(aims, (high - low) / high_px))
    # ECharts extends no axis for a line. The new ends are no round numbers, so they have no labels.
    axis = option["yAxis"]
    if low < lowest:
        axis["min"] = number(low)
        axis["axisLabel"]["showMinLabel"] = False
    if high > highest:
        axis["max"] = number(high)
        axis["axisLabel"]["showMaxLabel"] = False


def _table(title: str, curves: Sequence[MetricCurve], longest: int) -> Table:
    """The metric after every so many epochs, so that the table stays short."""
    # Evenly over all epochs: the first rows alone would hide how the training ended.
    every = math.ceil(longest / MOST_ROWS)
    epochs = sorted({1, longest, *range(every, longest + 1, every)})
    rows = [[str(n), *(curve.text(n) for curve in curves)] for n in epochs]
    return Table(
        caption=title,
        columns=["Epoch", *(curve.name for curve in curves)],
        numeric=[True, *(True for _ in curves)],
        rows=rows,
    )


def _targets(aims: Sequence[float], per_px: float) -> list[Option]:
    """A line for each target, from the highest on.

    If labels would cover each other, one bears the texts of all, in their order.

    :param per_px: of the metric, in the smallest such chart.
    """
    marks: list[Option] = []
    label: Option = {}
    label_at = math.inf
    texts: list[str] = []
    for aim in sorted(aims, reverse=True):
        text = f"target {aim:.4g}"
        # The label grows with each target that it takes in, so it reaches further down.
        half_label = per_px * ROW_PX * (len(texts) + 1) / 2
        if label_at - aim < half_label:
            texts.append(text)
            label["formatter"] = "\n".join(texts)
            marks.append({"yAxis": number(aim), "label": {"show": False}})
        else:
            texts = [text]
            label = {"formatter": text, "lineHeight": ROW_PX}
            label_at = number(aim)
            marks.append({"yAxis": label_at, "label": label})
    return marks


def _line(curve: MetricCurve, colour: str) -> Option:
    name = plain(curve.name)
    points = [
        {"value": [n, number(value)], "tip": f"{name}\nepoch {n}: {value:.4g}"}
        for n, value in enumerate(curve.values, 1)
    ]
    return {
        "type": "line",
        "name": name,
        "symbolSize": 5,
        "showSymbol": len(points) <= 2 * MOST_ROWS,  # more would cover the line
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour},
        "data": points,
    }
