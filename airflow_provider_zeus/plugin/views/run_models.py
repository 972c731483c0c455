"""Answers of the tab of a run."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.views.models import Answer, Chart, Detail, Short, Source, Tile, Verdict


class Progress(BaseModel):
    """How far a running attempt is, by its last heartbeat."""

    text: str
    epochs: float | None
    max_epochs: float | None  # the most it may take: its bound, else the job's


class AttemptDetail(Detail):
    """One attempt of the run."""

    waits: str = ""  # where its cost is kept until it is stored; empty: it is stored


class TaskPart(BaseModel):
    """What one task (and map index) of the run did for one job: a run may have several."""

    job_id: str
    task_id: str
    map_index: int | None = None  # None: the task is not mapped
    title: str
    live: bool
    progress: Progress | None = None
    source: Source
    batch_size: int  # of the last attempt
    state: str
    state_text: str
    state_why: Short
    headline: list[Answer]  # what it cost, what it saved
    verdict: Verdict
    tiles: list[Tile]
    notes: list[str] = []
    facts: list[str]
    settings: list[str]  # live settings in force
    attempts: list[AttemptDetail]


class RunAnswer(BaseModel):
    """Everything that the page of a run shows except its charts."""

    store: str = ""  # address of the trial log, or a short name
    note: str | None = None  # instead of the parts: why there are none
    jobs: list[str] = []
    job_id: str | None = None  # the one asked for; None: all
    parts: list[TaskPart] = []
    refresh_s: float | None = None  # ask again after so many seconds; None: nothing will change


class RunCharts(BaseModel):
    """The charts of one part."""

    note: str | None = None  # instead of the charts
    power: Chart | None = None
    metric: Chart | None = None  # by epoch
    gpus: Chart | None = None  # energy of each, where several trained
    curves: list[Chart] = []  # one per batch size
