"""What the data routes answer. Texts are for people; the page shows them as they are."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

UNKNOWN = "–"


class Figure(BaseModel):
    """A figure in its base unit [J, s, W, epochs], for people, and exactly (or why it is missing)."""

    value: float | None = None
    text: str = UNKNOWN
    exact: str = ""


class Tried(BaseModel):
    """One attempt of a run, in the table."""

    batch_size: int
    state: str  # value of optimizer.trial.State
    state_text: str


class Row(BaseModel):
    """What one run of the job cost: the sum of its attempts and tries."""

    run_id: str
    task_id: str
    map_index: int | None = None  # None: the task is not mapped
    run_type: str
    data_slice: str | None
    slice_text: str  # the same for people; empty: none
    began_at: float  # seconds since the epoch
    attempts: list[Tried]
    peeks: list[int]  # batch sizes looked at for a few seconds after the kept attempt
    limit: Figure  # of the last attempt
    epochs: Figure
    energy: Figure
    time: Figure
    cost: Figure
    unit: str  # of the cost: J, or s where time alone counts
    phase: str  # of the first attempt: why this run was what it was
    why: str
    state: str  # of the last attempt
    state_text: str
    state_why: str
    source: str | None  # energy source; None: nothing measures energy
    source_text: str
    simulated: bool


class Total(BaseModel):
    """Sums over the rows of one energy source; figures of different sources are never added."""

    source_text: str
    runs: int
    energy: Figure
    time: Figure
    cost: Figure


class Detail(BaseModel):
    """One attempt of a run, on the run's page."""

    where: str  # task, map index and try
    batch_size: int
    state: str
    state_text: str
    phase: str
    why: str  # why it was chosen
    ended: str  # why it ended
    limit: Figure
    epochs: Figure
    energy: Figure
    time: Figure
    cost: Figure
    excess: Figure  # part of the cost that profiling took
    device: str
    source_text: str
    simulated: bool


class Answer(BaseModel):
    """Everything that the page of a DAG, or of one run, shows."""

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
    attempts: list[Detail] = []  # of the run, on its page


class Problem(BaseModel):
    """The trial log cannot be read."""

    problem: str  # with its remedy
