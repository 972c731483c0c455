"""The records that go into the trial log and come out of it: questions, answers, reports,
history, sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from airflow_provider_zeus.model.event import Held
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.learning_rate import EarlierRate
from airflow_provider_zeus.model.run_numbers import TryNumbers
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Origin,
    PowerPoint,
    Previous,
    ProfileSample,
    Trial,
    Where,
)
from airflow_provider_zeus.model.wire import Name

# a series is asked for again after that; after that, if there was no answer
FRESH_S = 900.0
RETRY_S = 60.0
UPGRADE = "airflow zeus db upgrade"  # creates or migrates the tables of a Connection's database


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest:
    """The question of a recurrence for a batch size."""

    job: ZeusJob  # checked, templates rendered, live settings not yet applied
    job_id: str
    ti_id: str
    origin: Origin
    device: DeviceInfo | None = None  # None: not known where the request is made (a pod)
    lease_s: float = 90.0
    # what makes the run take the default batch size; None: nothing does
    pinned_by: str | None = None
    # when the run has to end [s since the epoch]; None: no deadline
    finish_by_s: float | None = None
    # runs after this one until the schedule ends; None: not known, or no end
    runs_left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswer:
    """The answer: an open trial, and the measurements of the job's earlier runs about power on this
    device.
    """

    trial: Trial  # running, with its planned attempt
    profile: tuple[ProfileSample, ...] = ()  # sums per (batch size, limit)
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # gpu uuid -> (limit found, limit last set) [W] of the newest trial there, while it has not
    # restored the limit what the attempts of this task instance are called
    numbers: TryNumbers = field(default_factory=TryNumbers)
    redelivered: bool = False  # the same open trial was returned before
    after_killed: bool = False  # the newest trial of its DAG before it was abandoned
    previous: Previous | None = None  # None: no run of this job has left a model
    # of the run before; the caller adds it, from what it reads for its remarks
    earlier_rate: EarlierRate | None = None
    # other map indexes of the task that have trials of the job in this run
    shared_with: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySum:
    """The costs of the trials of a task on one day (UTC) measured from outside, of one source."""

    dag_id: Name
    begin_s: int  # of the day
    energy_source: Name  # empty: nothing measured energy
    price_currency: Name  # empty: no hour was priced
    trials: int
    runs: int  # trials that are the first of their run
    unknown: int  # trials that reported no time
    without_energy: int  # trials that reported a time, and no energy though they have a source
    energy_j: float
    time_s: float
    gpu_s: float
    paid: float  # for the energy whose hours were priced
    paid_j: float  # that energy
    start_saved: float  # of ``paid``, by waiting for a cheaper start
    g_co2e: float
    g_co2e_j: float
    start_saved_g: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """How far the log of a job has got. It comes before the job's other parts."""

    job_id: str
    told_seq: int  # number of closings so far
    last_number: int  # of the newest trial
    events: Mapping[str, Held] = field(default_factory=dict)  # that hold, by DAG
    days: Sequence[DaySum] = ()  # of its trials measured from outside, deleted ones too


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """The profile of one version of a job on one device."""

    job_id: str
    device_model: str
    device_count: int
    energy_source: str | None
    job_version: str
    samples: Sequence[ProfileSample]  # one sum per (batch size, power limit)

    @property
    def where(self) -> Where:
        """The device."""
        return self.device_model, self.device_count, self.energy_source


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrials:
    """Trials of one run, and their power over time. A run of many trials has several of these."""

    MOST: ClassVar[int] = 4  # trials

    job_id: str
    trials: Sequence[Trial]
    points: Sequence[Sequence[PowerPoint]]  # of each trial


HistoryPart = JobHead | JobProfile | RunTrials


class TakenIn(NamedTuple):
    """How many trials of a job's history were new to a log, and how many it held already."""

    new: int
    present: int


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
