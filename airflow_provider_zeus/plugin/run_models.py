"""What the tab of a run is answered with."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.models import Detail, Source


class Part(BaseModel):
    """What one task (and map index) of the run did for one job: a run may have several."""

    job_id: str
    task_id: str
    map_index: int | None = None  # None: the task is not mapped
    title: str
    source: Source
    facts: list[str]
    settings: list[str]  # live settings in force
    attempts: list[Detail]


class RunAnswer(BaseModel):
    """Everything that the page of a run shows, but for its charts."""

    store: str = ""  # where the trial log lies
    note: str | None = None  # instead of the parts: why there are none
    jobs: list[str] = []
    job_id: str | None = None  # the one asked for; None: all
    parts: list[Part] = []
