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

# Requests cost, so one task asks a service for all; sooner again if that task got no answer.
FRESH_S = 900.0
RETRY_S = 60.0
UPGRADE = "airflow zeus db upgrade"  # one text, so that all errors name the same command


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest:
    """The question of a recurrence for a batch size.

    Of the last three, None: nothing pins the size; there is no deadline [s since the epoch]; the
    schedule's end is not known.
    """

    job: ZeusJob  # without live settings: a change just before the decision still counts
    job_id: str
    ti_id: str
    origin: Origin
    device: DeviceInfo | None = None  # None: a pod is asked for before its device is known
    lease_s: float = 90.0
    # The decision names it: a person would look for a live setting that is not there.
    pinned_by: str | None = None
    # Not a duration: a retry has to end when its first try had to.
    finish_by_s: float | None = None
    # A try pays only if enough later runs use what it finds.
    runs_left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswer:
    """The answer: an open trial, and the measurements of the job's earlier runs about power on this
    device.

    :param limits_found_w: gpu uuid -> (limit found, limit last set) [W] of the newest trial there,
        if it has not restored the limit.
    """

    trial: Trial
    # Sums: the profiler needs no more of earlier windows.
    profile: tuple[ProfileSample, ...] = ()
    # A training that died left its limit behind, which must not count as the one found.
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # A task's log has to name its attempts as pages do.
    numbers: TryNumbers = field(default_factory=TryNumbers)
    # A request that is repeated after a lost answer must not open a second row.
    redelivered: bool = False
    after_killed: bool = False  # a host that kills trainings may kill this one, too
    previous: Previous | None = None
    # The caller adds it: it reads earlier trials anyway, without the lock that the store holds.
    earlier_rate: EarlierRate | None = None
    # Zeus learns from these map indexes as from one training, so their author is warned.
    shared_with: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySum:
    """The costs of the trials of a task on one day (UTC) measured from outside, of one source."""

    dag_id: Name
    begin_s: int
    # An empty text if there is none: a part of a table's key cannot be NULL.
    energy_source: Name
    price_currency: Name
    trials: int
    runs: int  # people count runs, not tries
    unknown: int  # no sum holds them, so pages have to say how many
    without_energy: int  # their energy is in no sum, so it is a lower bound
    energy_j: float
    time_s: float
    gpu_s: float
    paid: float
    paid_j: float  # the rest has no price of its own hours, so paid / energy_j is too low
    start_saved: float  # it is no saving of a batch size, so it is told apart
    g_co2e: float
    g_co2e_j: float
    start_saved_g: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """How far the log of a job has got. It comes before the job's other parts."""

    job_id: str
    told_seq: int  # rows keep theirs in another log, so later closings there need higher ones
    last_number: int  # a number is never given twice, even if its row was deleted
    events: Mapping[str, Held] = field(default_factory=dict)
    days: Sequence[DaySum] = ()  # their rows go after some months, and the sums stay


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """The profile of one version of a job on one device."""

    job_id: str
    device_model: str
    device_count: int
    energy_source: str | None
    job_version: str
    samples: Sequence[ProfileSample]

    @property
    def where(self) -> Where:
        """The device."""
        return self.device_model, self.device_count, self.energy_source


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrials:
    """Trials of one run, and their power over time. A run of many trials has several of these."""

    MOST: ClassVar[int] = 4  # a line of an export has to be small enough to be read at once

    job_id: str
    trials: Sequence[Trial]
    points: Sequence[Sequence[PowerPoint]]


HistoryPart = JobHead | JobProfile | RunTrials


class TakenIn(NamedTuple):
    """How many trials of a job's history were new to a log, and how many it held already."""

    new: int
    present: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A trial whose row is damaged. The policy learns nothing from it, and no page shows it."""

    job_id: str
    number: int | None
    dag_id: str
    problem: str


def trial_label(damage: Unreadable) -> str:
    """Job and number of a trial that cannot be read."""
    return f"{damage.job_id or 'an unknown job'}/{'?' if damage.number is None else damage.number}"
