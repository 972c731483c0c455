"""Chart of the sum saved over runs, with the cost of exploration and the break-even run.

Pure: plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.answer_parts import Chart, RunRow, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    Option,
    interval_band,
    line,
    number,
    plain,
    scale,
)
from airflow_provider_zeus.plugin.charts.run_axis import (
    label,
    over_runs,
    row_key,
    run_key,
    vertical_lines,
)
from airflow_provider_zeus.plugin.text import saved_text, words
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import UNKNOWN, three_digits

SUM = "saved so far"
EXPLORED = "spent on exploration so far"


class _Sum(NamedTuple):
    """Sums up to a run [J or s]."""

    row: RunRow
    saved: float
    low: float | None
    high: float | None
    explored: float | None

    @property
    def figures(self) -> tuple[float | None, ...]:
        """Its sums, in the order of the table."""
        return self.saved, self.low, self.high, self.explored


class _Axis(NamedTuple):
    """How the chart and its table write sums."""

    size: float  # an axis in joules would have too many digits
    name: str
    unit: str
    most: float
    in_runs: bool  # energy and time together have no unit: runs of the default do

    @classmethod
    def of(cls, saving: Savings, sums: Sequence[_Sum], weights: Weights) -> _Axis:
        unit = saving.cost.unit
        drawn = [value for part in sums for value in part.figures]
        most = max(abs(value) for value in drawn if value is not None)
        size, name = scale(most, unit)
        name = f"{weights.one_alone} saved [{name}]"
        # Joules of energy and time together would be read as energy.
        is_of_both = not weights.one_alone
        if is_of_both and saving.default_now:
            size, default = saving.default_now
            name = f"energy and time saved [runs of {default}]"
        return cls(size=size, name=name, unit=unit, most=most, in_runs=is_of_both)

    def text(self, value: float | None) -> str:
        """A sum, for people; a dash for None."""
        if value is None:
            return UNKNOWN
        shown = self._shown(value)
        if shown < 0:
            return f"−{self._amount(shown)}"
        return self._amount(shown)

    def told(self, part: _Sum) -> str:
        """Saving and exploration up to a run."""
        explored = "not known"
        if part.explored is not None:
            explored = self.text(part.explored)
        saved = self._shown(part.saved)
        verb = "saved" if saved >= 0 else "lost"
        return f"{verb} {self._amount(saved)}, exploration {explored}"

    def _shown(self, value: float) -> float:
        """A sum as it is written [J, s or runs]."""
        if not self.in_runs:
            return value
        # A first run of the default saves nothing but noise, which would read as a loss.
        return round(value / self.size, 3)

    def _amount(self, shown: float) -> str:
        if not self.in_runs:
            return words.cost(abs(shown), self.unit, self.most).text
        count = three_digits(abs(shown))
        if count == "1":
            return "1 run"
        return f"{count} runs"


def saved_chart(saving: Savings, rows: Sequence[RunRow], weights: Weights) -> Chart:
    """Chart of the sum saved against the default batch size at full power; below 0 it is a loss.

    :param rows: newest first, all runs of ``saving`` among them.
    :param weights: a cost of energy and time together is told in runs of the default.
    """
    title = "Sum saved"
    sums = _sums(saving, rows)
    # A sum without the saving of one of its runs would be wrong.
    if not sums or any(step.saved.value is None for step in saving.steps):
        why = saving.cost.saved.reason or "a figure of one of the runs is not known"
        return Chart(title=title, note=f"What was saved is not known: {why}.")
    axis = _Axis.of(saving, sums, weights)
    option = over_runs(
        [part.row for part in sums],
        f"{axis.name}; below 0: lost",
        _series(sums, axis, saving.break_even_run),
        zero=False,
    )
    option["tooltip"]["trigger"] = "axis"
    against = saved_text.against(saving.default_batch_size)
    return Chart(
        title=title,
        option=option,
        text=f"Running total after the newest run: {axis.told(sums[-1])}.",
        note=f"Against {against}, on the same slices of the data.",
        table=Table(
            caption=title,
            columns=[
                "Run",
                "Saved so far",
                "at least (5 %)",
                "at most (95 %)",
                "Exploration so far",
            ],
            numeric=[False, True, True, True, True],
            rows=[[label(part.row), *map(axis.text, part.figures)] for part in reversed(sums)],
        ),
    )


def _sums(saving: Savings, rows: Sequence[RunRow]) -> list[_Sum]:
    """The sums up to each run that has a row, oldest first."""
    by_key = {row_key(row): row for row in rows}
    # A sum that lacks the exploration of one run would be too low.
    has_explored = all(step.exploration is not None for step in saving.steps)
    explored = 0.0
    sums = []
    for step in saving.steps:
        explored += step.exploration or 0.0
        # A run that has no row was left out of the table; its saving is in the sum.
        row = by_key.get(run_key(step.run.trials[-1]))
        if row is not None:
            sums.append(
                _Sum(
                    row=row,
                    saved=step.saved.value or 0.0,
                    low=step.saved.low,
                    high=step.saved.high,
                    explored=explored if has_explored else None,
                )
            )
    return sums


def _series(sums: Sequence[_Sum], axis: _Axis, break_even_run: int | None) -> list[Option]:
    saved = [
        {
            "value": [i, number(part.saved / axis.size)],
            "tip": plain(f"{label(part.row)}\n{axis.told(part)}"),
        }
        for i, part in enumerate(sums)
    ]
    explored = [
        {"value": [i, number(part.explored / axis.size)]}
        for i, part in enumerate(sums)
        if part.explored is not None
    ]
    lines = [
        line(SUM, COLOURS[0], saved),
        line(EXPLORED, COLOURS[1], explored, dash="dashed"),
    ]
    if len(sums) == 1:  # a line of one point is invisible
        lines = [part | {"symbol": "circle", "symbolSize": 8} for part in lines]
    band = interval_band([(i, part.low, part.high) for i, part in enumerate(sums)], axis.size)
    series = [*band, *lines]
    # From the first run on there was nothing to make up for: a mark would tell of a loss.
    if break_even_run is not None and break_even_run > 1:
        series.append(vertical_lines([(break_even_run - 1, "break-even")]))
    return series
