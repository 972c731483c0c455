"""What the tab of a DAG is answered with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from airflow_provider_zeus.plugin.models import Row, Total


class DagAnswer(BaseModel):
    """Everything that the page of a DAG shows."""

    store: str = ""  # where the trial log lies
    note: str | None = None  # instead of a table: why there is none
    jobs: list[str] = []
    job_id: str | None = None
    facts: list[str] = []
    settings: list[str] = []  # live settings in force
    rows: list[Row] = []  # newest first
    more: bool = False  # older runs were left out
    totals: list[Total] = []
    chart: dict[str, Any] | None = None  # ECharts option
    chart_text: str = ""  # what the chart shows, for those who cannot see it
    chart_legend: str = ""
    left_out: str = ""  # what the chart does not show
