"""The parts of the answers of all views. Texts are for people; the page shows them as they are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

UNKNOWN = "–"
LONGEST = 500  # characters of a text from the log in lists; a run's own page shows all of it


def _cut(text: Any) -> Any:
    return f"{text[:LONGEST]} …" if isinstance(text, str) and len(text) > LONGEST else text


Short = Annotated[str, BeforeValidator(_cut)]  # a training may have written it, of any length


class Figure(BaseModel):
    """A figure in its base unit [J, s, W, epochs, money, g], for people, and exactly (or why it is missing)."""

    value: float | None = None
    text: str = UNKNOWN
    exact: Short = ""


class Source(BaseModel):
    """Where figures come from: the badge beside them. Figures of different sources are never added."""

    name: Short | None = None  # as in the log; None: nothing measures energy
    text: Short = ""  # empty: nothing was measured yet
    kind: str = "source"  # source | estimate | simulated | imported | no-source
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
    option: dict[str, Any] | None = None  # ECharts option; None: nothing to draw, and ``note`` says why
    text: str = ""
    note: str = ""  # legend, what is left out
    source: Source = Source()  # of its figures: the badge beside the title
    table: Table | None = None


class AttemptState(BaseModel):
    """One attempt of a run, in the table."""

    batch_size: int
    state: str  # value of model.trial.State
    state_text: str


class RunRow(BaseModel):
    """What one run of the job cost: the sum of its attempts and tries."""

    run_id: str
    task_id: str
    map_index: int | None = None  # None: the task is not mapped
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
    unit: str  # of the cost: J, or s where time alone counts
    phase: str  # of the first attempt: why this run was what it was
    explored: bool = False  # its first attempt was one at a batch size not yet proven, or might have been given up
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
    busy: Figure | None = None  # share of the time in which the GPU worked; None: no device that tells it
    device: Short
    source: Source


class Tile(BaseModel):
    """One figure at the top of a tab."""

    name: str
    figure: Figure
    note: Short = ""
    kind: str = ""  # good | bad | warn: the texts say it too
    source: Source = Source()  # without a text: no meter measured the figure


class Answer(BaseModel):
    """One question that the first line of a tab answers."""

    question: str  # Cost | Saved | Next run | Budget
    share: float | None = None  # of a budget, drawn as a bar
    about: Short = ""  # of what
    figures: list[Tile] = []
    note: Short = ""


class Verdict(BaseModel):
    """Whether a run or a job was worth it, in a sentence."""

    kind: str  # saved | lost | even | unknown | running
    word: str
    text: Short


class Problem(BaseModel):
    """The trial log cannot be read."""

    problem: str  # with its remedy
