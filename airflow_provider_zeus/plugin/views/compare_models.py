"""Answer of the page that compares runs or jobs."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.views.models import Chart, Table


class Place(BaseModel):
    """What one column is about, for its link."""

    dag_id: str
    run_id: str | None  # None: all runs of the job
    job_id: str


class CompareAnswer(BaseModel):
    """Two or more runs, or jobs, side by side."""

    note: str | None = None  # instead of all else: why there is nothing to compare
    places: list[Place] = []
    costs: Table | None = None
    decisions: Table | None = None
    remarks: list[str] = []  # why columns may not compare
    charts: list[Chart] = []  # the metric by epoch, then the power of each
