"""Chart of the cost of each run of a DAG's tab. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.answer_parts import Chart, RunRow, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    LINE,
    ROW_PX,
    Box,
    CostAxis,
    Option,
    hollow,
    interval_band,
    label_rows,
    label_width_px,
    line,
    number,
    plain,
    scatter,
    size_colour,
)
from airflow_provider_zeus.plugin.charts.run_axis import (
    LARGE,
    HistoryBreak,
    RunKey,
    label,
    over_runs,
    row_key,
    vertical_lines,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.units import counted

NOT_NEEDED = "not needed"
MOST_LABELS = 40  # more labels would cover the line
ROWS_UP = 2  # more rows would shrink the chart; a label without a place is left out
CROSS = "path://M0,0L10,10M10,0L0,10"
DASH = "path://M0,4L10,4L10,6L0,6Z"
# It reads as a mark of its own beside circle and square.
HALF_ROUND = "path://M0,5A5,5 0 0 1 10,5L10,10L0,10Z"
MARKS = {  # symbols, since not everybody sees colours
    CROSS: "Cross: missed its target.",
    "triangle": "Triangle: failed, or kept no model.",
    "diamond": "Diamond, such as {}: the size before the arrow was given up; the cost is of both.",
    "rect": "Square: from the earlier model.",
    HALF_ROUND: "Half round: from the earlier model, shrunk.",
}
START_MARKS: dict[str, str] = {Start.WARM: "rect", Start.SHRUNK: HALF_ROUND}
NOT_DRAWN = (State.RUNNING.value, State.NO_DATA.value)
ENDED_WELL = {State.DONE.value, *(state.value for state in State if state.kept_model)}


@dataclass(frozen=True, slots=True)
class ComparisonCurve:
    """The cost of each run under an alternative [J or s], drawn beside the runs."""

    name: str
    values: Mapping[RunKey, Estimate]  # with intervals: a line alone would look exact
    dash: str = "dashed"  # two lines must differ without colours


@dataclass(frozen=True, slots=True)
class _RunPoint:
    """A run that trained, and its point."""

    row: RunRow
    point: Option


def charted(rows: Sequence[RunRow]) -> list[RunRow]:
    """The rows of one chart, by their slices: ended, with a known cost in the newest one's unit.

    Runs that were not needed are among them if another row is.
    """
    # A job goes on in seconds if its new device has no meter, and the axis holds one unit.
    units = [row.unit for row in rows if _is_known(row)]
    if not units:
        return []
    newest_unit, *_ = units
    oldest_first = [row for row in reversed(rows) if is_idle(row) or _is_known(row, newest_unit)]
    return sorted(oldest_first, key=_slice_moment)


def _is_known(row: RunRow, unit: str | None = None) -> bool:
    """Whether a run trained to its end, and its cost is known; ``unit``: in that one."""
    if row.cost.value is None or row.state in NOT_DRAWN or is_idle(row):
        return False
    return unit is None or row.unit == unit


def _slice_moment(row: RunRow) -> float:
    """When a run's slice ends [s since the epoch]; if it names no time, when the run began."""
    try:
        moment = datetime.fromisoformat(row.data_slice or "")
    except ValueError:
        # Slices of free names have no order of their own.
        return row.began_at
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def is_idle(row: RunRow) -> bool:
    """Whether the run trained nothing since an earlier model is still good."""
    return row.state == State.NOT_NEEDED.value


def left_out(rows: Sequence[RunRow], shown: Sequence[RunRow]) -> str:
    """A sentence on the rows that are not shown; empty if there are none.

    ``shown``: by :func:`charted`.
    """
    running = sum(row.state == State.RUNNING.value for row in rows)
    empty = sum(row.state == State.NO_DATA.value for row in rows)
    others = len(rows) - running - empty - len(shown)
    parts = []
    if running:
        parts.append(f"{counted(running, 'run')} still running")
    if empty:
        parts.append(f"{counted(empty, 'run')} without data")
    if others:
        parts.append(f"{counted(others, 'run')} whose cost is not known in this unit")
    if not parts:
        return ""
    return f"Not in the chart: {' and '.join(parts)}."


def cost_chart(
    rows: Sequence[RunRow],
    weights: Weights,
    curves: Sequence[ComparisonCurve] = (),
    breaks: Sequence[HistoryBreak] = (),
    whole: tuple[float, str] | None = None,
) -> Chart:
    """Chart of cost over runs, with a point per run in the colour of its batch size.

    :param rows: newest first, as ``costs.rows_of`` gives them.
    :param weights: of energy and time in the cost.
    :param curves: in the unit of the newest row.
    :param whole: the cost that is 100 % if it is of both; None: the first run's.
    """
    title = "Cost of each run"
    shown = charted(rows)
    if not shown:
        return Chart(title=title, note=f"No run of known cost yet. {left_out(rows, shown)}".strip())
    keys = [row_key(row) for row in shown]
    # A line without a point in sight would stand in the legend all the same.
    curves = [curve for curve in curves if not curve.values.keys().isdisjoint(keys)]
    highest = _highest(shown, keys, curves)
    if whole is None:
        costs = [_cost(row) for row in shown]
        whole = (next(filter(None, costs), 1.0), "the first run")
    weights = weights._replace(time_alone=shown[0].unit == "s")
    axis = CostAxis.of(highest, weights, whole)
    rows_up = _label_rows(shown, highest)
    points = [_point(i, row, axis, row_up=rows_up.get(i)) for i, row in enumerate(shown)]
    trained = [
        _RunPoint(row, point) for row, point in zip(shown, points, strict=True) if not is_idle(row)
    ]
    # Lines first: points that people point at lie over them.
    series = [*_paths(trained), *_dots(trained), *_idle_dots(shown)]
    for curve in curves:
        series += _comparison(curve, keys, axis.size)
    marks = [(keys.index(mark.run), mark.label) for mark in breaks if mark.run in keys]
    if marks:
        series.append(vertical_lines(marks))
    option = over_runs(shown, axis.name, series, zero=True)
    if curves:  # their names need room beside the chart
        option["grid"]["right"] = 110
    # A job without batch sizes has one colour, which needs no words.
    has_sizes = any(_size(run.row) is not None for run in trained)
    if not has_sizes and len(option["legend"]["data"]) == 1:
        # One series needs no legend, and its room.
        option["legend"]["data"] = []
        option["grid"]["bottom"] -= 28
    notes = [*_legend_notes(trained, has_sizes=has_sizes), *(mark.text for mark in breaks)]
    return Chart(
        title=title,
        option=option,
        text=_summary([run.row for run in trained], axis, has_sizes=has_sizes),
        note=" ".join([*notes, left_out(rows, shown)]).strip(),
        table=_table(title, shown, curves, axis),
    )


def _highest(
    shown: Sequence[RunRow], keys: Sequence[RunKey], curves: Sequence[ComparisonCurve]
) -> float:
    """The highest cost that is drawn."""
    costs = [_cost(row) for row in shown]
    for curve in curves:
        drawn = [curve.values[key] for key in keys if key in curve.values]
        costs += [cost.high or cost.value or 0.0 for cost in drawn]
    return max(costs)


def _cost(row: RunRow) -> float:
    """Cost of a run; 0 if nothing tells it, as of a run that trained nothing."""
    return row.cost.value or 0.0


def _label_rows(shown: Sequence[RunRow], highest: float) -> dict[int, int]:
    """By how many rows labels are raised, by the index of their points; others have no label."""
    # Sizes that were given up stand in no legend, so their labels come first.
    labelled = [i for i, row in enumerate(shown) if _gave_up(row)]
    if len(shown) <= MOST_LABELS:
        labelled += [i for i in range(len(shown)) if _is_change(shown, i)]
    # Of the smallest such chart without its margins: labels that fit there fit in any.
    step_px = 440.0 / len(shown)
    high_px = 120.0
    per_px = highest or 1.0
    labels = [
        Box(
            x=step_px * i,
            y=high_px * _cost(shown[i]) / per_px,
            wide=label_width_px(_sizes(shown[i])),
        )
        for i in labelled
    ]
    rows = zip(labelled, label_rows(labels), strict=True)
    return {i: row for i, row in rows if row < ROWS_UP}


def _is_change(shown: Sequence[RunRow], i: int) -> bool:
    """Whether a run trained another size than the run before it, at once."""
    if _gave_up(shown[i]):
        return False
    if i == 0:
        return True
    return _size(shown[i]) != _size(shown[i - 1])


def _legend_notes(trained: Sequence[_RunPoint], *, has_sizes: bool) -> list[str]:
    """The meaning of colours and symbols."""
    notes = ["Each point is a run, measured as it is."]
    if has_sizes:
        notes = [
            "Colour and number: batch size.",
            "Filled: the best known, or one that was set. Hollow: exploring.",
        ]
    example = {run.point["symbol"]: _sizes(run.row) for run in trained}
    for symbol, meaning in MARKS.items():
        if symbol in example:
            notes.append(meaning.format(example[symbol]))
    return notes


def _summary(trained: Sequence[RunRow], axis: CostAxis, *, has_sizes: bool) -> str:
    def cost(row: RunRow) -> str:
        text = axis.text(_cost(row))
        if has_sizes:
            text += f" with batch size {_size(row)}"
        return text

    cheapest = min(trained, key=_cost)
    newest = max(trained, key=lambda row: row.began_at)
    order = "oldest slice first"
    if has_sizes:
        order += f", {sum(row.explored for row in trained)} of them exploring"
    return (
        f"Cost of {counted(len(trained), 'run')}, {order}. "
        f"Newest: {cost(newest)}. Cheapest: {cost(cheapest)}. The table holds the same figures."
    )


def _table(
    title: str, shown: Sequence[RunRow], curves: Sequence[ComparisonCurve], axis: CostAxis
) -> Table:
    rows = [
        [
            label(row),
            words.size(_size(row)),
            _exploring(row),
            NOT_NEEDED if is_idle(row) else axis.text(_cost(row)),
            *(_compared(curve.values.get(row_key(row)), axis) for curve in curves),
            row.source.text,
        ]
        for row in reversed(shown)
    ]
    columns = [
        "Run",
        "Batch size",
        "Exploring",
        words.sentence_case(axis.name),
        *(curve.name for curve in curves),
        "Source",
    ]
    numeric = [False, True, False, True, *(True for _ in curves), False]
    return Table(caption=title, columns=columns, numeric=numeric, rows=rows)


def _exploring(row: RunRow) -> str:
    if is_idle(row) or _size(row) is None:
        return "–"
    return "yes" if row.explored else "no"


def _compared(estimate: Estimate | None, axis: CostAxis) -> str:
    """The cost of an alternative with its interval."""
    if estimate is None or estimate.value is None:
        return "–"
    value = axis.text(estimate.value)
    if estimate.low is None or estimate.low == estimate.high:
        return value
    return f"{value} ({axis.text(estimate.low)} to {axis.text(estimate.high or 0.0)})"


def _point(i: int, row: RunRow, axis: CostAxis, row_up: int | None) -> Option:
    """``row_up``: by how many rows its label is raised; None: it has none."""
    symbol = _symbol(row)
    point: Option = {
        "value": [i, number(_cost(row) / axis.size)],
        "tip": _tip(row, axis),
        "symbol": symbol,
    }
    # A filled cross would hide its colour, since a cross has no inside.
    if row.explored or symbol == CROSS:
        point["itemStyle"] = hollow(size_colour(_size(row)))
    if row_up is not None and _size(row) is not None:
        point["label"] = {"show": True, "formatter": _sizes(row), "offset": [0, -ROW_PX * row_up]}
    return point


def _symbol(row: RunRow) -> str:
    """How the point of a run is drawn: one of :data:`MARKS`, or a circle."""
    # A missed target weighs more than how the run began.
    if row.state == State.EXHAUSTED.value:
        return CROSS
    if row.state not in ENDED_WELL:
        return "triangle"
    if _gave_up(row):
        return "diamond"
    start = row.attempts[-1].start
    if start in START_MARKS:
        return START_MARKS[start]
    return "circle"


def _tip(row: RunRow, axis: CostAxis) -> str:
    lines = [label(row)]
    if axis.whole:
        lines.append(f"{axis.text(_cost(row))} of {axis.whole}")
    lines.append(f"energy {row.energy.text}, time {row.time.text}")
    if _size(row) is None:
        lines.append(row.state_text)
    else:
        sizes = [f"{words.size(tried.batch_size)} ({tried.state_text})" for tried in row.attempts]
        lines.append(f"batch size {', '.join(sizes)}")
    lines.append(f"{row.phase}, power limit {row.limit.text}, {row.source.text}")
    return plain("\n".join(lines))


def _comparison(curve: ComparisonCurve, keys: Sequence[RunKey], size: float) -> list[Option]:
    """A comparison as a line, with its intervals as a band."""
    costs = [(i, curve.values[key]) for i, key in enumerate(keys) if key in curve.values]
    band = interval_band([(i, cost.low, cost.high) for i, cost in costs], size, step="middle")
    data = [[i, number((cost.value or 0.0) / size)] for i, cost in costs]
    # The default's line is mostly the upper one: the names of two lines that meet stay apart.
    down_px = {"dashed": -8, "dotted": 8}
    name, _, _ = curve.name.partition(" at ")
    end_label = {"show": len(costs) > 1, "formatter": name, "offset": [0, down_px[curve.dash]]}
    drawn = line(curve.name, LINE, data, dash=curve.dash)
    return [*band, drawn | {"silent": True, "step": "middle", "endLabel": end_label}]


def _paths(trained: Sequence[_RunPoint]) -> list[Option]:
    """A thin line for each energy source: figures of different sources do not compare."""
    of_source = grouped(trained, lambda run: run.row.source.text)
    thin = {"silent": True, "lineStyle": {"color": LINE, "width": 1, "opacity": 0.6}}
    return [
        line("", LINE, [run.point["value"] for run in runs]) | thin for runs in of_source.values()
    ]


def _dots(trained: Sequence[_RunPoint]) -> list[Option]:
    """The points by batch size, and by energy source if there are several."""
    sources = {run.row.source.text for run in trained}
    groups = grouped(trained, lambda run: (_size(run.row) or 0, run.row.source.text))
    # Hundreds of large points would cover each other.
    px = 11 if len(trained) <= LARGE else 7
    dots = list[Option]()
    for (_, source), runs in sorted(groups.items(), key=lambda group: group[0]):
        size = _size(runs[0].row)
        name = str(size or "measured")
        if len(sources) > 1:
            name += f" ({source})"
        style = {"color": size_colour(size), "opacity": 1}
        drawn = scatter(name, [run.point for run in runs], px=px, style=style)
        # Over all lines, which would cut them.
        dots.append(drawn | {"label": {"position": "top"}, "z": 3})
    return dots


def _idle_dots(shown: Sequence[RunRow]) -> list[Option]:
    """Dashes of the runs that trained nothing."""
    dashes = [
        {"value": [i, 0], "tip": plain(f"{label(row)}\n{row.state_why}")}
        for i, row in enumerate(shown)
        if is_idle(row)
    ]
    if not dashes:
        return []
    return [scatter(NOT_NEEDED, dashes, px=9, style=hollow(LINE), symbol=DASH)]


def _size(row: RunRow) -> int | None:
    return row.attempts[-1].batch_size


def _gave_up(row: RunRow) -> bool:
    """Whether sizes were given up before the one that it trained."""
    return any(tried.state == State.GIVEN_UP.value for tried in row.attempts[:-1])


def _sizes(row: RunRow) -> str:
    """The size that it trained, after those that were given up before it: "16→64"."""
    sizes = [tried.batch_size for tried in row.attempts[:-1] if tried.state == State.GIVEN_UP.value]
    return "→".join(map(words.size, (*sizes, _size(row))))
