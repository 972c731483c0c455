"""The parts of the answers of all views. Texts are for people; the page shows them as they are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from airflow_provider_zeus.units import UNKNOWN

LONGEST = 500  # characters of a text from the log in lists; a run's own page shows all of it


def short(text: Any) -> Any:
    """A text of at most :data:`LONGEST` characters; anything else stays as it is."""
    return f"{text[:LONGEST]} …" if isinstance(text, str) and len(text) > LONGEST else text


Short = Annotated[str, BeforeValidator(short)]  # a training may have written it, of any length


class Figure(BaseModel):
    """A figure in its base unit [J, s, W, epochs, money, g], for people, and exactly (or why it is
    missing).
    """

    value: float | None = None
    text: str = UNKNOWN
    exact: Short = ""


class Source(BaseModel):
    """The source of figures: the badge beside them.

    Figures of different sources are never added.
    """

    name: Short | None = None  # as in the log; None: nothing measures energy
    text: Short = ""  # empty: nothing was measured yet
    kind: str = "source"  # source | estimate | simulated | no-source
    why: str = ""  # what the badge means, on hover


class Table(BaseModel):
    """The figures of a chart as text; every chart has one beside it."""

    caption: str
    columns: list[str]
    numeric: list[bool]  # by column: right-aligned
    rows: list[list[str]]


class Chart(BaseModel):
    """A chart, a text for those who cannot see it, and its table."""

    title: str
    # ECharts option; None: nothing to draw, and ``note`` says why
    option: dict[str, Any] | None = None
    text: str = ""
    note: str = ""  # legend, what is left out
    table: Table | None = None


class AttemptState(BaseModel):
    """One attempt of a run, in the table."""

    batch_size: int | None  # None: the task was measured alone
    state: str  # value of model.trial.State
    state_text: str
    start: str | None = None  # of a job that chooses it


class RunRow(BaseModel):
    """The cost of one run of the job: the sum of its attempts and tries."""

    number: int  # as people call it: run 12; 0: not in the log yet
    run_id: str
    task_id: str
    map_index: int | None  # None: the task is not mapped
    run_type: str
    data_slice: Short | None
    slice_text: Short  # the same for people; empty: none
    began_at: float  # seconds since the epoch
    attempts: list[AttemptState]
    limit: Figure  # of the last attempt
    epochs: Figure
    energy: Figure
    time: Figure
    cost: Figure
    unit: str  # of the cost: J, or s if time alone counts
    phase: str  # of the first attempt: why this run was what it was
    explored: bool  # its first attempt was a try
    why: Short
    state: str  # of the last attempt
    state_text: str
    state_why: Short
    source: Source


class Total(BaseModel):
    """Sums over the rows of one energy source; figures of different sources are never added."""

    source: Source
    runs: int
    energy: Figure
    time: Figure


class Detail(BaseModel):
    """One attempt of a run, on the run's page."""

    number: str  # as people call it: attempt 12.2
    where: str  # task and map index
    batch_size: int | None  # None: the task was measured alone
    state: str
    state_text: str
    phase: str
    why: str  # why it was chosen
    ended: str  # why it ended
    limit: Figure
    epochs: Figure
    energy: Figure
    time: Figure
    # what profiling took beyond training; None: nothing was profiled, or nothing tells it
    excess: Figure | None
    busy: Figure | None  # share of the time in which the GPU worked; None: no device that tells it
    device: Short
    source: Source
    waits: str = ""  # where its cost is kept until it is stored; empty: it is stored


class Tile(BaseModel):
    """One figure at the top of a tab."""

    name: str
    figure: Figure
    note: Short = ""
    kind: str = ""  # good | bad | warn: the texts say it too


class Answer(BaseModel):
    """One question that the first line of a tab answers."""

    question: str  # Cost | Saved | Next run
    about: Short = ""  # of what
    figures: list[Tile] = []
    note: Short = ""


class Sentence(BaseModel):
    """The first line of a tab, with the one badge of all its figures."""

    text: Short
    sure: str = ""  # its words that say how sure it is
    exact: str = ""  # the intervals, on their hover
    source: Source = Source()


class Verdict(BaseModel):
    """Whether a run was worth it, in a sentence."""

    kind: str  # saved | lost | even | unknown | running
    word: str
    text: Short


class Problem(BaseModel):
    """The trial log cannot be read."""

    problem: str  # with its remedy


class JobState(BaseModel):
    """The state of a job, with a sentence why."""

    # waiting | not exploring yet | exploring | learning | settled | below target | drifted | stale
    # | no metric | failing
    name: str
    why: Short


class Trend(BaseModel):
    """Costs of the newest runs as a text of blocks, and their change."""

    blocks: str = ""  # a block for each run, oldest first; empty: too few runs that compare
    text: str  # "↓ 12 %", or that the runs are too few
    exact: str


class JobRow(BaseModel):
    """One job in one DAG."""

    dag_id: str
    job_id: str
    run_id: str  # of the newest run
    began_at: float  # of it, seconds since the epoch
    batch_size: int | None  # of its last attempt; None: the task was measured alone
    outcome: str  # value of model.trial.State
    outcome_text: str
    last_energy: Figure  # of the newest run that has ended
    last_time: Figure
    tags: list[Short]  # of the DAG
    owners: list[Short]
    source: Source
    trend: Trend
    state: JobState
    settings: list[Short]  # live settings in words
    changed: Short  # who changed them last in the UI, and when


class JobSaved(BaseModel):
    """The saving of one job so far in one DAG, by one source."""

    word: str  # Saved | Lost | Not clear yet | Too early | Not exploring yet | Not known | Nothing
    kind: str = ""  # good | bad | warn; empty: neither is known
    # of cost, as a share of the default's if that is known; of a saving or a loss alone
    figure: Figure = Figure()
    amounts: str = ""  # of energy and time, where they compare
    text: Short  # in a sentence, with its intervals
    # "newest 1,000 runs" if the log holds older ones; that the default's run is old
    of: str = ""
    next: Short = ""  # the next run, and what it is expected to take
    state: JobState | None = None  # "drifted", which takes the whole log


class Controls(BaseModel):
    """Live settings of a job, and the effect of a change."""

    dag_id: str
    job_id: str
    batch_sizes: list[int]
    default_batch_size: int
    paused: bool
    pinned: int | None
    changed: Short  # who changed them last in the UI, and when; empty: not changed in the UI
    problem: str  # why no live setting is used; empty: they are, or there is none
    may_edit: bool
    pause_text: str  # what pausing does
    pin_text: str  # what pinning does
    resume_text: str  # what letting Zeus choose again does
    # what measuring the default in the next run does and costs; empty: it is asked for, or pinned
    audit_text: str


class AlertRow(BaseModel):
    """An event that holds."""

    sentence: Short
    remedy: Short
