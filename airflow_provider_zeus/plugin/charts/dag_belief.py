"""Charts of the lessons of the log: costs by batch size, and how well models served, by start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Phase
from airflow_provider_zeus.optimizer.starts import START_TOLERANCE, Served, serves_worse
from airflow_provider_zeus.plugin.answer_parts import Chart, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    GREY,
    NAME_ABOVE,
    CostAxis,
    Option,
    base,
    grid,
    line,
    number,
    scatter,
    size_colour,
    value_axis,
)
from airflow_provider_zeus.plugin.charts.dag_charts import START_MARKS
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.reports.belief_table import BatchSizeStatus, BeliefRow, BeliefTable
from airflow_provider_zeus.units import UNKNOWN, counted

CostText = Callable[[float], str]
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


def belief_chart(beliefs: BeliefTable, weights: Weights) -> Chart:
    """Chart of cost by batch size: the belief with its interval, the observed cost of each run.

    :param weights: of energy and time in it.
    """
    title = "Belief per batch size"
    if beliefs.settled.start:
        title += ", from a cold start"
    costs = _positive_costs(beliefs)
    highest = max(costs, default=0.0)
    axis = CostAxis.of(highest, weights, _whole(beliefs, highest))
    table = _table(title, beliefs, axis)
    if not costs:
        return Chart(
            title=title,
            note="Nothing is believed yet: no run that reached the target has reported its cost.",
            table=table,
        )
    note = (
        "Believed: expected cost of a run to the target. Observed: runs that reached it, profiling "
        "included, as they would have been on a typical slice of the data; the table has what they "
        "cost."
    )
    return Chart(
        title=title,
        option=_option(beliefs, axis, costs),
        text=_summary(beliefs, axis.text),
        note=note,
        table=table,
    )


def _positive_costs(beliefs: BeliefTable) -> list[float]:
    """All costs above 0 with the ends of their intervals: a log axis has no place for 0."""
    costs: list[float | None] = []
    for row in beliefs.lines:
        believed = row.believed.cost
        costs += [*row.typical, believed.low, believed.value, believed.high]
    return list(filter(None, costs))


def _whole(beliefs: BeliefTable, highest: float) -> tuple[float, str]:
    """The cost that is 100 % if it is of both: of the size that runs if nothing is tried."""
    settled = beliefs.settled.batch_size
    name = f"batch size {settled}"
    for row in beliefs.lines:
        # The size in use is the one whose cost people know from their bill.
        if row.batch_size == settled and row.believed.cost.value:
            return row.believed.cost.value, name
    return highest or 1.0, name


def _option(beliefs: BeliefTable, axis: CostAxis, costs: Sequence[float]) -> Option:
    """``costs``: all that are drawn."""
    believed = list[Option]()
    whiskers = list[list[object]]()
    observed = list[Option]()
    # Sizes stand side by side with equal room: their distance means nothing.
    for i, row in enumerate(beliefs.lines):
        if row.believed.cost.value is not None:
            believed.append(_believed_dot(i, row, row.believed.cost.value, axis))
        whiskers += _whisker(i, row.believed.cost, axis.size)
        observed += _observed_dots(i, row, axis)
    scale: Option = {"type": "value", "min": 0}
    # On a linear axis the cheap sizes would all lie on the ground.
    is_wide = max(costs) > 20 * min(costs)
    if is_wide:
        scale = {"type": "log"}
    y_axis = {"name": axis.name, "nameTextStyle": NAME_ABOVE, **scale}
    beside = {"symbolOffset": [16, 0]}  # in its column, what is observed would cover the belief
    ends = {"silent": True, "symbol": "rect", "symbolSize": [14, 2]}
    return base(
        grid=grid(top=36, bottom=72),
        legend={"bottom": 0, "data": [BELIEVED, SURE, OBSERVED]},
        xAxis={
            "type": "category",
            "name": "batch size",
            "nameLocation": "middle",
            "nameGap": 26,
            "data": [_tick(row) for row in beliefs.lines],
        },
        yAxis=y_axis,
        series=[
            scatter(OBSERVED, observed, px=7, style={"color": GREY, "opacity": 0.7}) | beside,
            line(SURE, GREY, whiskers) | ends,
            scatter(
                BELIEVED, believed, px=13, style={"color": GREY, "opacity": 1}, symbol="diamond"
            ),
        ],
    )


def _tick(row: BeliefRow) -> str:
    if row.standing is BatchSizeStatus.INCUMBENT:
        return f"{row.batch_size} ★"
    return str(row.batch_size)


def _believed_dot(i: int, row: BeliefRow, cost: float, axis: CostAxis) -> Option:
    tip = (
        f"batch size {row.batch_size}, {STANDINGS[row.standing]}\n"
        f"believed {axis.text(cost)}\n{between(row.believed.cost, axis.text)}"
    )
    style = {"color": size_colour(row.batch_size)}
    return {"value": [i, number(cost / axis.size)], "tip": tip, "itemStyle": style}


def _whisker(i: int, cost: Estimate, size: float) -> list[list[object]]:
    """A vertical line over an interval; empty if a log axis could not show it."""
    if cost.low is None or cost.high is None:
        return []
    if cost.low <= 0:
        return []
    # ECharts breaks a line at "-": else it would join each whisker to the next.
    return [[i, number(cost.low / size)], [i, number(cost.high / size)], [i, "-"]]


def _observed_dots(i: int, row: BeliefRow, axis: CostAxis) -> list[Option]:
    style = {"color": size_colour(row.batch_size), "opacity": 0.7}
    return [
        {
            "value": [i, number(typical / axis.size)],
            "tip": f"batch size {row.batch_size}\ncost {axis.text(cost)}\n"
            f"on a typical slice {axis.text(typical)}",
            "itemStyle": style,
        }
        for typical, cost in zip(row.typical, row.observed, strict=True)
    ]


def between(estimate: Estimate, text: CostText) -> str:
    """The interval of a cost as text, or why there is none."""
    if estimate.low is None or estimate.high is None:
        return estimate.reason or "–"
    return f"{text(estimate.low)} to {text(estimate.high)}"


def _summary(beliefs: BeliefTable, text: CostText) -> str:
    count = f"Costs of {len(beliefs.lines)} batch sizes"
    # A size that never reached the target has no cost to it.
    reached = [
        row
        for row in beliefs.lines
        if row.standing in (BatchSizeStatus.INCUMBENT, BatchSizeStatus.CONVERGED)
    ]
    if not reached:
        return f"{count}; no run that teaches has reached the target within the window."
    size = beliefs.settled.batch_size
    in_use = [row for row in reached if row.standing is BatchSizeStatus.INCUMBENT]
    cost = in_use[-1].believed.cost.value if in_use else None
    if cost is None:
        return f"{count}. In use: {size}; what a run of it to the target costs here is not known."
    use = "In use"
    doubt = ", but not with what its misses cost"
    if beliefs.settled.in_time:
        doubt += ", or too slow"
    if beliefs.settled.phase is Phase.PINNED:
        use = "Pinned"
        doubt = ""
    summary = f"{count}. {use} (★): {size}, {text(cost)} a run."
    cheaper = _cheaper(reached, cost, text)
    if not cheaper:
        return summary
    return f"{summary} Believed cheaper{doubt}: {', '.join(cheaper)}."


def _cheaper(rows: Sequence[BeliefRow], than: float, text: CostText) -> list[str]:
    """The sizes that are believed to cost less, with their costs."""
    costs = [(row.batch_size, row.believed.cost.value) for row in rows]
    return [f"{b} ({text(cost)})" for b, cost in costs if cost is not None and cost < than]


def _table(title: str, beliefs: BeliefTable, axis: CostAxis) -> Table:
    columns = [
        "Batch size",
        "Standing",
        "Reached target",
        "Stopped",
        "Epochs",
        "Cost of an epoch",
        "Cost of a run",
        SURE,
        "Observed mean",
    ]
    return Table(
        caption=title,
        columns=columns,
        numeric=[True, False, *[True] * 7],
        rows=[_table_row(row, axis) for row in beliefs.lines],
    )


def _table_row(row: BeliefRow, axis: CostAxis) -> list[str]:
    def cost(estimate: Estimate) -> str:
        if estimate.value is None:
            return UNKNOWN
        return axis.text(estimate.value)

    size = str(row.batch_size)
    if not row.listed:
        size += " (no longer listed)"
    epochs = UNKNOWN
    if row.believed.epochs.value is not None:
        epochs = words.epochs(round(row.believed.epochs.value, 1)).text
    epoch_cost = cost(row.believed.epoch_cost)
    if not row.believed.measured:
        epoch_cost += " (not measured here)"
    return [
        size,
        STANDINGS[row.standing],
        str(row.runs),
        str(row.stopped),
        epochs,
        epoch_cost,
        cost(row.believed.cost),
        between(row.believed.cost, axis.text),
        cost(row.observed_mean),
    ]


def service(served: Sequence[Served]) -> Chart:
    """Error of models on the data after theirs, over that of the model trained there, by start."""
    title = "Quality in service, by the start of the model"
    starts = _served_starts(served)
    dots = [
        {
            "value": [kind.start.value, number(kind.ratio)],
            # As in the chart of costs, so that readers learn the marks once.
            "symbol": START_MARKS.get(kind.start, "circle"),
            "label": {"show": True, "formatter": f"{kind.ratio:.3f}", "position": "right"},
        }
        for kind in starts
    ]
    option = base(
        grid=grid(bottom=40),
        xAxis={"type": "category", "data": [kind.start.value for kind in starts]},
        yAxis=value_axis("error before / after training", 44, scale=True),
        series=[scatter("", dots, px=13, style={"color": COLOURS[0]})],
    )
    ratios = ", ".join(
        f"{kind.start} {kind.ratio:.3f} ({counted(kind.runs, 'run')})" for kind in starts
    )
    text = (
        "Error of the earlier model on new data over that after training there: "
        f"{ratios}. Higher is worse."
    )
    note = (
        "Error of a model on the next data over that of the model trained on them: 1 is as good, "
        "higher is worse. A start that serves worse than cold ones by more than "
        f"{100 * START_TOLERANCE:g} %, surely, is not used for now."
    )
    table = Table(
        caption=title,
        columns=["Start", "Ratio", "Runs", "Now"],
        numeric=[False, True, True, False],
        rows=[
            [
                kind.start.value,
                f"{kind.ratio:.3f}",
                str(kind.runs),
                "used" if kind.used else "not used",
            ]
            for kind in starts
        ],
    )
    return Chart(title=title, option=option, text=text, note=note, table=table)


@dataclass(frozen=True, slots=True)
class _ServedStart:
    """How models of one start served."""

    start: Start
    ratio: float  # a geometric mean: errors are factors
    runs: int
    used: bool


def _served_starts(served: Sequence[Served]) -> list[_ServedStart]:
    """Each start of which a model is known to have served."""
    starts = []
    for start in Start:
        # A geometric mean: twice as good and twice as bad cancel out.
        log_ratios = [model.log_ratio for model in served if model.start == start]
        if log_ratios:
            starts.append(
                _ServedStart(
                    start=start,
                    ratio=math.exp(math.fsum(log_ratios) / len(log_ratios)),
                    runs=len(log_ratios),
                    used=start == Start.COLD or not serves_worse(served, start),
                )
            )
    return starts
