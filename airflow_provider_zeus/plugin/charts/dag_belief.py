"""Charts of what the log teaches: the cost of each batch size, and how well models of each start served. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Phase
from airflow_provider_zeus.optimizer.starts import START_TOLERANCE, Served, serves_worse
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    GREY,
    CostAxis,
    Option,
    base,
    line,
    number,
    scatter,
    size_colour,
    value_axis,
)
from airflow_provider_zeus.plugin.charts.dag_charts import START_MARKS
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.reports.belief_table import BatchSizeStatus
from airflow_provider_zeus.reports.belief_table import BeliefTable as Beliefs
from airflow_provider_zeus.units import counted

BELIEVED = "believed"
OBSERVED = "observed"
STANDINGS = {
    BatchSizeStatus.INCUMBENT: "in use",
    BatchSizeStatus.CONVERGED: "reached the target",
    BatchSizeStatus.INFEASIBLE: "does not run here",
    BatchSizeStatus.FAILING: "missed the target",
    BatchSizeStatus.IN_REACH: "may be tried next",
    BatchSizeStatus.UNTAUGHT: "ran, taught nothing",
    BatchSizeStatus.EARLIER: "earlier runs only",
    BatchSizeStatus.UNTRIED: "not tried",
}


def belief_chart(beliefs: Beliefs, weights: Weights) -> Chart:
    """Chart of cost by batch size: the believed cost with its interval, the observed cost of each run.

    :param weights: of energy and time in it.
    """
    title = "Belief per batch size" + (", from a cold start" if beliefs.settled.start else "")
    costs = [row.believed.cost for row in beliefs.lines]
    values = [v for row in beliefs.lines for v in row.typical] + [v for c in costs for v in (c.low, c.value, c.high)]
    ends = [v for v in values if v is not None and v > 0]
    whole = next((row for row in beliefs.lines if row.batch_size == beliefs.settled.batch_size), None)
    of_settled = (whole and whole.believed.cost.value) or max(ends, default=1.0)
    axis = CostAxis.of(max(ends, default=0.0), weights, (of_settled, f"batch size {beliefs.settled.batch_size}"))
    table = _table(title, beliefs, axis)
    if not ends:
        return Chart(
            title=title,
            note="Nothing is believed yet: no run that reached the target has reported its cost.",
            table=table,
        )
    note = (
        "Believed: expected cost of a run to the target. Observed: runs that reached it, profiling included, as they "
        "would have been on a typical slice of the data; the table has what they cost."
    )
    size, text = axis.size, axis.text
    believed, whiskers, observed = list[Option](), list[list[object]](), list[Option]()

    for i, row in enumerate(beliefs.lines):
        value, low, high = row.believed.cost.value, row.believed.cost.low, row.believed.cost.high
        if value is not None:
            tip = f"batch size {row.batch_size}, {STANDINGS[row.standing]}\n"
            tip += f"believed {text(value)}\n{between(row.believed.cost, text)}"
            style = {"color": size_colour(row.batch_size)}
            believed.append({"value": [i, number(value / size)], "tip": tip, "itemStyle": style})
        if low is not None and high is not None and low > 0:  # a vertical line; "-" is the gap to the next one
            whiskers += [[i, number(low / size)], [i, number(high / size)], [i, "-"]]
        for typical, cost in zip(row.typical, row.observed, strict=True):
            tip = f"batch size {row.batch_size}\ncost {text(cost)}\non a typical slice {text(typical)}"
            faint: Option = {"color": size_colour(row.batch_size), "opacity": 0.7}
            observed.append({"value": [i, number(typical / size)], "tip": tip, "itemStyle": faint})
    wide = max(ends) > 20 * min(ends)  # then the axis is logarithmic
    option = base(
        grid={"left": 64, "right": 24, "top": 36, "bottom": 72},
        legend={"bottom": 0, "data": [BELIEVED, SURE, OBSERVED]},
        xAxis={
            "type": "category",
            "name": "batch size",
            "nameLocation": "middle",
            "nameGap": 26,
            "data": [
                f"{row.batch_size}{' ★' if row.standing is BatchSizeStatus.INCUMBENT else ''}" for row in beliefs.lines
            ],
        },
        yAxis={"type": "log" if wide else "value", "name": axis.name, **({} if wide else {"min": 0})},
        series=[
            # beside the belief
            scatter(OBSERVED, 7, {"color": GREY, "opacity": 0.7}, observed) | {"symbolOffset": [16, 0]},
            line(SURE, GREY, whiskers) | {"silent": True, "symbol": "rect", "symbolSize": [14, 2]},
            scatter(BELIEVED, 13, {"color": GREY, "opacity": 1}, believed, symbol="diamond"),
        ],
    )
    return Chart(title=title, option=option, text=_summary(beliefs, text), note=note, table=table)


def between(estimate: Estimate, text: Callable[[float], str]) -> str:
    """The interval of a cost as text, or why there is none."""
    if estimate.low is None or estimate.high is None:
        return estimate.reason or "–"
    return f"{text(estimate.low)} to {text(estimate.high)}"


def _summary(beliefs: Beliefs, text: Callable[[float], str]) -> str:
    count, b = f"Costs of {len(beliefs.lines)} batch sizes", beliefs.settled.batch_size
    reached = [r for r in beliefs.lines if r.standing in (BatchSizeStatus.INCUMBENT, BatchSizeStatus.CONVERGED)]
    if not reached:
        return f"{count}; no run that teaches has reached the target within the window."
    cost = next((r.believed.cost.value for r in reached if r.standing is BatchSizeStatus.INCUMBENT), None)
    if cost is None:
        return f"{count}. In use: {b}; what a run of it to the target costs here is not known."
    pinned = beliefs.settled.phase is Phase.PINNED
    found = f"{count}. {'Pinned' if pinned else 'In use'} (★): {b}, {text(cost)} a run."
    lower = [(r.batch_size, c) for r in reached if (c := r.believed.cost.value) is not None and c < cost]
    if not lower:
        return found
    doubt = "" if pinned else ", but not surely" + (", or too slow" if beliefs.settled.in_time else "")
    named = ", ".join(f"{size} ({text(c)})" for size, c in lower)
    return f"{found} Believed cheaper{doubt}: {named}."


def _table(title: str, beliefs: Beliefs, axis: CostAxis) -> Table:
    def text(estimate: Estimate) -> str:
        return "–" if estimate.value is None else axis.text(estimate.value)

    rows = [
        [
            str(row.batch_size) + ("" if row.listed else " (no longer listed)"),
            STANDINGS[row.standing],
            str(row.runs),
            str(row.stopped),
            "–" if (epochs := row.believed.epochs.value) is None else words.epochs(round(epochs, 1)).text,
            text(row.believed.epoch_cost) + ("" if row.believed.measured else " (not measured here)"),
            text(row.believed.cost),
            between(row.believed.cost, axis.text),
            text(row.observed_mean),
        ]
        for row in beliefs.lines
    ]
    columns = ["Batch size", "Standing", "Reached target", "Stopped", "Epochs", "Cost of an epoch", "Cost of a run"]
    columns += [SURE, "Observed mean"]
    return Table(caption=title, columns=columns, numeric=[True, False, *[True] * 7], rows=rows)


def service(served: Sequence[Served]) -> Chart:
    """Error of models on the data after theirs, over that of the model trained there, mean by start."""
    title = "Quality in service, by the start of the model"
    found = {start: [s.log_ratio for s in served if s.start == start] for start in Start}
    ratios = {start: math.exp(math.fsum(each) / len(each)) for start, each in found.items() if each}
    out = [start for start in ratios if start != Start.COLD and serves_worse(served, start)]
    rows = [
        [start.value, f"{ratio:.3f}", str(len(found[start])), "not used" if start in out else "used"]
        for start, ratio in ratios.items()
    ]
    dots = [  # with the marks that its runs have in the chart of costs
        {
            "value": [start.value, number(ratio)],
            "symbol": START_MARKS.get(start, "circle"),
            "label": {"show": True, "formatter": f"{ratio:.3f}", "position": "right"},
        }
        for start, ratio in ratios.items()
    ]
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 40},
        xAxis={"type": "category", "data": [start.value for start in ratios]},
        yAxis=value_axis("error before / after training", 44, scale=True),
        series=[scatter("", 13, {"color": COLOURS[0]}, dots)],
    )
    told = ", ".join(f"{start} {ratio:.3f} ({counted(len(found[start]), 'run')})" for start, ratio in ratios.items())
    text = f"Error of the earlier model on new data over that after training there: {told}. Higher is worse."
    note = (
        "Error of a model on the next data over that of the model trained on them: 1 is as good, higher is worse. "
        f"A start that serves worse than cold ones by more than {100 * START_TOLERANCE:g} %, surely, is not used for "
        "now."
    )
    table = Table(
        caption=title, columns=["Start", "Ratio", "Runs", "Now"], numeric=[False, True, True, False], rows=rows
    )
    return Chart(title=title, option=option, text=text, note=note, table=table)
