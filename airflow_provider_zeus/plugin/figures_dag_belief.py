"""What is believed of each batch size beside what was observed. Plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.optimizer.belief_table import Line, Standing
from airflow_provider_zeus.optimizer.belief_table import Table as Beliefs
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.figures import COLOURS, Option, base, number, scale
from airflow_provider_zeus.plugin.models import Chart, Table

TITLE = "Belief per batch size"
BELIEVED, SEEN, INTERVAL = "believed", "observed", "90 % interval"
WIDE = 20.0  # times the lowest cost, from which on a logarithmic axis is read more easily
STANDINGS = {
    Standing.INCUMBENT: "cheapest known",
    Standing.CONVERGED: "reached the target",
    Standing.INFEASIBLE: "does not run here",
    Standing.FAILING: "missed the target",
    Standing.IN_REACH: "may be tried next",
    Standing.UNTRIED: "not tried",
}
NOTE = "Believed: expected cost of a run to the target. Observed: runs that reached it, profiling included."


def belief_chart(beliefs: Beliefs) -> Chart:
    """Costs by batch size: believed with its interval, observed run by run."""
    table = _table(beliefs)
    ends = [v for line in beliefs.lines for v in (*line.observed, *_ends(line.believed.cost)) if v > 0]
    if not ends:
        return Chart(title=TITLE, note="Nothing is believed yet: no run has told its cost.", table=table)
    size, unit = scale(max(ends), beliefs.unit)
    believed = [_point(i, line, size, beliefs.unit) for i, line in enumerate(beliefs.lines)]
    seen = [
        {"value": [i, number(v / size)], "tip": f"batch size {line.batch_size}\n{words.cost(v, beliefs.unit).text}"}
        for i, line in enumerate(beliefs.lines)
        for v in line.observed
    ]
    wide = max(ends) > WIDE * min(ends)
    option = base(
        grid={"left": 64, "right": 24, "top": 36, "bottom": 72},
        legend={"bottom": 0, "data": [BELIEVED, INTERVAL, SEEN]},
        xAxis={
            "type": "category",
            "name": "batch size",
            "nameLocation": "middle",
            "nameGap": 26,
            "data": [_name(line) for line in beliefs.lines],
        },
        yAxis={"type": "log" if wide else "value", "name": f"cost [{unit}]", **({} if wide else {"min": 0})},
        series=[
            _dots(SEEN, seen, "circle", 7, COLOURS[7]) | {"symbolOffset": [16, 0]},  # beside the belief
            _whiskers(beliefs.lines, size),
            _dots(BELIEVED, [p for p in believed if p], "diamond", 13, COLOURS[0]),
        ],
    )
    return Chart(title=TITLE, option=option, text=_said(beliefs), note=NOTE, table=table)


def _ends(cost: Estimate) -> list[float]:
    return [v for v in (cost.low, cost.value, cost.high) if v is not None]


def _point(i: int, line: Line, size: float, unit: str) -> Option | None:
    value = line.believed.cost.value
    if value is None:
        return None
    tip = f"batch size {line.batch_size}, {STANDINGS[line.standing]}\nbelieved {words.cost(value, unit).text}"
    return {"value": [i, number(value / size)], "tip": f"{tip}\n{between(line.believed.cost, unit)}"}


def _whiskers(lines: Sequence[Line], size: float) -> Option:
    """Uprights from end to end; a gap between two of them."""
    data: list[list[object]] = []
    for i, line in enumerate(lines):
        low, high = line.believed.cost.low, line.believed.cost.high
        if low is not None and high is not None and low > 0:
            data += [[i, number(low / size)], [i, number(high / size)], [i, "-"]]
    style: Option = {"color": COLOURS[0], "width": 2}
    return {
        "type": "line",
        "name": INTERVAL,
        "silent": True,
        "symbol": "rect",
        "symbolSize": [14, 2],
        "itemStyle": {"color": COLOURS[0]},
        "lineStyle": style,
        "data": data,
    }


def _dots(name: str, data: Sequence[Option], symbol: str, size: int, colour: str) -> Option:
    return {
        "type": "scatter",
        "name": name,
        "symbol": symbol,
        "symbolSize": size,
        "itemStyle": {"color": colour, "opacity": 0.7 if name == SEEN else 1},
        "data": list(data),
    }


def between(of: Estimate, unit: str) -> str:
    """The interval of a cost, or why there is none."""
    if of.low is None or of.high is None:
        return of.reason or "–"
    return f"{words.cost(of.low, unit).text} to {words.cost(of.high, unit).text}"


def _name(line: Line) -> str:
    return f"{line.batch_size}{' ★' if line.standing is Standing.INCUMBENT else ''}"


def _said(beliefs: Beliefs) -> str:
    best = [line for line in beliefs.lines if line.standing is Standing.INCUMBENT]
    if not best or best[0].believed.cost.value is None:
        return f"Costs of {len(beliefs.lines)} batch sizes; none has reached the target within the window."
    cost = words.cost(best[0].believed.cost.value, beliefs.unit).text
    return f"Costs of {len(beliefs.lines)} batch sizes. Believed cheapest (★): {best[0].batch_size}, {cost} a run."


def _table(beliefs: Beliefs) -> Table:
    def text(of: Estimate) -> str:
        return "–" if of.value is None else words.cost(of.value, beliefs.unit).text

    def epochs(of: Estimate) -> str:
        return "–" if of.value is None else words.epochs(round(of.value, 1)).text

    rows = [
        [
            str(line.batch_size) + ("" if line.listed else " (no longer listed)"),
            STANDINGS[line.standing],
            str(line.runs),
            str(line.stopped),
            epochs(line.believed.epochs),
            text(line.believed.epoch_cost) + ("" if line.believed.measured else " (not measured here)"),
            text(line.believed.cost),
            between(line.believed.cost, beliefs.unit),
            text(line.observed_mean),
        ]
        for line in beliefs.lines
    ]
    columns = ["Batch size", "Standing", "Reached target", "Stopped", "Epochs", "Cost of an epoch", "Cost of a run"]
    columns += ["90 % interval", "Observed mean"]
    return Table(caption=TITLE, columns=columns, numeric=[True, False, *[True] * 7], rows=rows)
