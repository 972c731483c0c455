"""What goes into the trial log and comes out of it: questions, answers, reports, history, sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_provider_zeus.model.event import Held
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Observation,
    Origin,
    PowerPoint,
    Previous,
    ProfileSample,
    Trial,
    Where,
)

FRESH_S, RETRY_S = 900.0, 60.0  # a series is asked for again after that; after that, where there was no answer
Profile = tuple[Where, str, Sequence[ProfileSample]]  # device, job_version, one sum per (batch size, power limit)
UPGRADE = "airflow zeus db upgrade"  # creates or migrates the tables of a Connection's database


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest:
    """What a recurrence sends when it asks for a batch size."""

    job: ZeusJob  # checked, templates rendered, live settings not yet applied
    job_id: str
    ti_id: str
    origin: Origin
    device: DeviceInfo | None = None  # None: not known where the request is made (a pod)
    lease_s: float = 90.0
    pinned_by: str | None = None  # what makes the run take the default batch size; None: nothing does
    finish_by_s: float | None = None  # when the run has to end [s since the epoch]; None: no deadline
    runs_left: int | None = None  # runs after this one until the schedule ends; None: not known, or no end


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswer:
    """The answer: an open trial, and what the job's earlier runs measured about power on this device."""

    trial: Trial  # running, with its planned attempt
    profile: tuple[ProfileSample, ...] = ()  # sums per (batch size, limit)
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # gpu uuid -> (limit found, limit last set) [W] of the newest trial there, while it has not restored the limit
    redelivered: bool = False  # the same open trial was returned before
    after_killed: bool = False  # the newest trial of its DAG before it was abandoned
    previous: Previous | None = None  # None: no run of this job has left a model
    shared_with: Sequence[int] = ()  # other map indexes of the task that have trials of the job in this run


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Partial (heartbeat) or final (tell) observation of one trial."""

    observation: Observation
    profile: Sequence[ProfileSample] = ()  # new since the last report of this trial
    points: Sequence[PowerPoint] = ()  # new since the last report of this trial
    unsure: Sequence[Report] = ()
    # heartbeats before it that got no answer, oldest first: stored or not

    reads_newer: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """How far the log of a job has got. It comes before the job's other parts."""

    job_id: str
    told_seq: int  # number of closings so far
    last_number: int  # of the newest trial
    events: Mapping[str, Held] = field(default_factory=dict)  # that hold, by DAG


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """What one version of a job measured on one device."""

    job_id: str
    where: Where
    job_version: str
    samples: Sequence[ProfileSample]  # one sum per (batch size, power limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrials:
    """Trials of one run, and their power over time. A run of many trials has several of these."""

    MOST: ClassVar[int] = 4  # trials

    job_id: str
    trials: Sequence[Trial]
    points: Sequence[Sequence[PowerPoint]]  # of each trial


HistoryPart = JobHead | JobProfile | RunTrials


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A trial whose row is damaged. The policy learns nothing from it, and no page shows it."""

    job_id: str
    number: int | None  # None: it cannot be read either
    dag_id: str
    problem: str


def trial_label(damage: Unreadable) -> str:
    """Job and number of a trial that cannot be read."""
    return f"{damage.job_id or 'an unknown job'}/{'?' if damage.number is None else damage.number}"
