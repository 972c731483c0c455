"""Answers of the page of all jobs, and of the controls of one job."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_zeus.plugin.views.models import Figure, Short, Source


class JobState(BaseModel):
    """The state of a job, with a sentence why."""

    name: str  # waiting | exploring | learning | settled | drifted | stale | failing
    why: Short


class Trend(BaseModel):
    """Costs of the newest runs as a text of blocks, and their change."""

    blocks: str = ""  # a block for each run, oldest first; empty: too few runs that compare
    text: str  # "↓ 12 %", or that the runs are too few
    exact: str = ""


class JobRow(BaseModel):
    """One job in one DAG."""

    dag_id: str
    job_id: str
    run_id: str  # of the newest run
    began_at: float  # of it, seconds since the epoch
    batch_size: int  # of its last attempt
    outcome: str  # value of model.trial.State
    outcome_text: str
    running: bool
    last_energy: Figure  # of the newest run that has ended
    last_time: Figure
    last_cost: Figure  # in the job's own unit
    tags: list[Short] = []  # of the DAG
    owners: list[Short] = []
    source: Source
    trend: Trend
    state: JobState
    settings: list[Short] = []  # live settings in words
    changed: Short = ""  # who changed them last in the UI, and when


class JobsAnswer(BaseModel):
    """Every job that this user may see."""

    store: str
    note: str | None = None  # there is none: how to start
    left_out: str = ""  # trials that cannot be read, in a sentence
    jobs: list[JobRow] = []


class JobSaved(BaseModel):
    """What one job saved so far in one DAG, of one source."""

    word: str  # Saved | Lost | Undecided | Not known
    kind: str  # good | bad | warn
    figure: Figure  # of cost, as a share of the default's where that is known
    amounts: str = ""  # of energy and time
    text: Short  # in a sentence
    of: str = ""  # "newest 1,000 runs" where the log holds older ones
    source: Source
    state: JobState | None = None  # "drifted", which takes the whole log


class Controls(BaseModel):
    """Live settings of a job, and what a change of them does."""

    dag_id: str
    job_id: str
    batch_sizes: list[int]
    default_batch_size: int
    paused: bool
    pinned: int | None
    changed: Short  # who changed them last in the UI, and when; empty: not changed in the UI
    problem: str  # why no live setting is used; empty: they are, or there is none
    may_edit: bool
    pause_text: str  # what pausing, or resuming, does
    pin_text: str  # what pinning does
    unpin_text: str
    audit_text: str  # what measuring the default in the next run does and costs; empty: it is asked for, or pinned


class SettingChange(BaseModel):
    """A requested change; settings that it does not name stay as they are."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job_id: str = Field(min_length=1, max_length=1000)
    pause_exploration: bool | None = None
    pin_batch_size: int | None = Field(default=None, gt=0, lt=2**31)
    unpin: bool = False
    audit: bool = False  # measure the default in the next run
