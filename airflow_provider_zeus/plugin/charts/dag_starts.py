"""Chart of how well models served, by where their trainings started. Pure: plain data in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.optimizer.starts import Served, serves_worse
from airflow_provider_zeus.plugin.charts.chart_parts import COLOURS, Option, base, number, scatter, value_axis
from airflow_provider_zeus.plugin.charts.dag_charts import START_MARKS
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.units import counted


def service(served: Sequence[Served], tolerance: float) -> Chart:
    """Error of models on the data after theirs, over that of the model trained there, mean by start.

    :param tolerance: ``ZeusJob.start_tolerance``.
    """
    title = "Quality in service, by the start of the model"
    found = {start: [s.log_ratio for s in served if s.start == start] for start in Start}
    ratios = {start: math.exp(math.fsum(each) / len(each)) for start, each in found.items() if each}
    out = [start for start in ratios if start != Start.COLD and serves_worse(served, start, tolerance)]
    rows = [
        [start.value, f"{ratio:.3f}", str(len(found[start])), "not used" if start in out else "used"]
        for start, ratio in ratios.items()
    ]
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 40},
        xAxis={"type": "category", "data": [start.value for start in ratios]},
        yAxis=value_axis("error before / after training", 44, scale=True),
        series=[scatter("", 13, {"color": COLOURS[0]}, [_mark(*each) for each in ratios.items()])],
    )
    told = ", ".join(f"{start} {ratio:.3f} ({counted(len(found[start]), 'run')})" for start, ratio in ratios.items())
    text = f"Error of the earlier model on new data over that after training there: {told}. Higher is worse."
    note = (
        "Error of a model on the next data over that of the model trained on them: 1 is as good, higher is worse. "
        f"A start that serves worse than cold ones by more than {100 * tolerance:g} %, surely, is not used for now."
    )
    table = Table(
        caption=title, columns=["Start", "Ratio", "Runs", "Now"], numeric=[False, True, True, False], rows=rows
    )
    return Chart(title=title, option=option, text=text, note=note, table=table)


def _mark(start: Start, ratio: float) -> Option:
    """The mean of a start, by the mark that its runs have in the chart of costs."""
    label = {"show": True, "formatter": f"{ratio:.3f}", "position": "right"}
    return {"value": [start.value, number(ratio)], "symbol": START_MARKS.get(start, "circle"), "label": label}
