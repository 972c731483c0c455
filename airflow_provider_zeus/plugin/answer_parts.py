"""The parts of the answers of all views. Texts are for people; the page shows them as they are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from airflow_provider_zeus.units import UNKNOWN

LONGEST = 500  # a training may write any length; a run's own page shows all of it


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

    name: Short | None = None
    text: Short = ""
    kind: str = "source"  # readers must not take an estimate for a measurement
    why: str = ""  # not every reader knows the word of a badge


class Table(BaseModel):
    """The figures of a chart as text; every chart has one beside it."""

    caption: str
    columns: list[str]
    numeric: list[bool]  # right-aligned, or digits of one rank would not stand below each other
    rows: list[list[str]]


class Chart(BaseModel):
    """A chart (an ECharts option), a text for those who cannot see it, and its table."""

    title: str
    # None: an empty frame would look like a fault, so ``note`` alone is shown.
    option: dict[str, Any] | None = None
    text: str = ""
    note: str = ""  # a table without what it leaves out would claim to be whole
    table: Table | None = None


class AttemptState(BaseModel):
    """One attempt of a run, in the table."""

    batch_size: int | None
    state: str  # no enum: a newer version may write one that is unknown here
    state_text: str
    start: str | None = None


class RunRow(BaseModel):
    """The cost of one run of the job: the sum of its attempts and tries."""

    number: int  # its id is too long to say; 0: the log has not numbered it yet
    run_id: str
    task_id: str
    map_index: int | None
    run_type: str
    data_slice: Short | None
    slice_text: Short
    began_at: float  # the browser shows it in the reader's own zone
    attempts: list[AttemptState]
    limit: Figure  # limits do not add up, so that of the last attempt
    epochs: Figure
    energy: Figure
    time: Figure
    cost: Figure
    unit: str  # without energy a cost is a time
    phase: str  # the first attempt says why this run was what it was
    explored: bool
    why: Short
    state: str  # of the last attempt, which decides how the run ended
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

    number: str  # people say "attempt 12.2", since its key is too long
    where: str
    batch_size: int | None
    state: str
    state_text: str
    phase: str
    why: str
    ended: str
    limit: Figure
    epochs: Figure
    energy: Figure
    time: Figure
    # Profiling pays off later, so its cost is told apart.
    excess: Figure | None
    busy: Figure | None
    device: Short
    source: Source
    waits: str = ""  # a cost that waits to be stored is not lost, and can be found


class Tile(BaseModel):
    """One figure at the top of a tab."""

    name: str
    figure: Figure
    note: Short = ""
    kind: str = ""  # the texts say it too: not everybody sees colours


class Answer(BaseModel):
    """One question that the first line of a tab answers.

    :param question: "Cost", "Saved" or "Next run"; ``about``: of which task.
    """

    question: str
    about: Short = ""
    figures: list[Tile] = []
    note: Short = ""


class Sentence(BaseModel):
    """The first line of a tab, with the one badge of all its figures."""

    text: Short
    sure: str = ""  # set apart, since a saving that is not sure is none
    exact: str = ""  # on hover: in the sentence, intervals would hide what it says
    source: Source = Source()


class Verdict(BaseModel):
    """Whether a run was worth it, in a sentence."""

    kind: str
    word: str
    text: Short


class Problem(BaseModel):
    """The trial log cannot be read."""

    problem: str


class JobState(BaseModel):
    """The state of a job, with a sentence why.

    ``name``: waiting, not exploring yet, exploring, learning, settled, below target, drifted,
    stale, no metric, failing, measured or tuned.
    """

    # No enum: the page makes a badge and a filter of any name, so a new state needs no script.
    name: str
    why: Short


class Trend(BaseModel):
    """Costs of the newest runs as a text of blocks, and their change."""

    blocks: str = ""  # empty: of few runs any trend is chance
    text: str
    exact: str


class JobRow(BaseModel):
    """One job in one DAG."""

    dag_id: str
    job_id: str
    run_id: str
    began_at: float
    batch_size: int | None
    outcome: str  # no enum: a newer version may write one that is unknown here
    outcome_text: str
    last_energy: Figure  # of the last run that ended: one that runs has no cost yet
    last_time: Figure
    tags: list[Short]
    owners: list[Short]
    source: Source
    trend: Trend
    state: JobState
    settings: list[Short]  # a setting that somebody forgot explains much
    changed: Short  # somebody may want to ask why


class JobSaved(BaseModel):
    """The saving of one job so far in one DAG, by one source.

    ``of``: such as "newest 1,000 runs", or that the default's run is old.
    """

    word: str
    kind: str = ""
    # A share of the default's cost is read without knowing the job.
    figure: Figure = Figure()
    amounts: str = ""
    text: Short
    # The saving of some runs must not read as that of all.
    of: str = ""
    next: Short = ""
    state: JobState | None = None  # to know it takes the whole log, so it comes late


class Controls(BaseModel):
    """Live settings of a job, and the effect of a change."""

    dag_id: str
    job_id: str
    batch_sizes: list[int]
    default_batch_size: int
    paused: bool
    pinned: int | None
    changed: Short  # somebody may want to ask why; empty: not changed in the UI
    problem: str  # a setting that is not used looks like a fault
    may_edit: bool
    pause_text: str  # a button says what it does before it is pressed
    pin_text: str
    resume_text: str
    # It costs a run, so the button says so before it is pressed.
    audit_text: str


class AlertRow(BaseModel):
    """An event that holds."""

    sentence: Short
    remedy: Short
