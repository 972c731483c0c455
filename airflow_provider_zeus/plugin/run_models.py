"""What the tab of a run is answered with."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.models import Chart, Detail, Figure, Short, Source


class Tile(BaseModel):
    """One figure at the top of a run."""

    name: str
    figure: Figure
    note: Short = ""
    kind: str = ""  # good | bad | warn: said in words too
    source: Source = Source()  # without a text: the figure comes from no meter


class Verdict(BaseModel):
    """Whether the run was worth it, in a sentence."""

    kind: str  # saved | lost | even | unknown | running
    word: str
    text: Short


class Progress(BaseModel):
    """How far a running attempt is, as its last heartbeat told."""

    text: str
    epochs: float | None
    max_epochs: float | None  # the most it may take: its bound, else the job's


class Attempt(Detail):
    """One attempt of the run."""

    waits: str = ""  # where its cost is kept that is not yet told; empty: nothing waits


class Part(BaseModel):
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
    verdict: Verdict
    tiles: list[Tile]
    notes: list[str] = []
    facts: list[str]
    settings: list[str]  # live settings in force
    attempts: list[Attempt]


class RunAnswer(BaseModel):
    """Everything that the page of a run shows, but for its charts."""

    store: str = ""  # where the trial log lies
    note: str | None = None  # instead of the parts: why there are none
    jobs: list[str] = []
    job_id: str | None = None  # the one asked for; None: all
    parts: list[Part] = []
    refresh_s: float | None = None  # ask again after so many seconds; None: nothing will change


class RunCharts(BaseModel):
    """The charts of one part."""

    note: str | None = None  # instead of the charts
    power: Chart | None = None
    gpus: Chart | None = None  # energy of each, where several trained
    curves: list[Chart] = []  # one per batch size
