"""The protocol of the trial log. Callers use :class:`Store` only; ``open_store()`` returns one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from airflow_provider_zeus.model.budget import Allowance, BudgetUse
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Observation,
    Origin,
    PowerPoint,
    Previous,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    Where,
)
from airflow_provider_zeus.reports.months import PeriodSum

FRESH_S, RETRY_S = 900.0, 60.0  # a series is asked for anew after that; after that, where there was no answer
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
    allowances: Sequence[Allowance] = ()  # the job's budgets in the present periods
    finish_by_s: float | None = None  # when the run has to end [s since the epoch]; None: no deadline
    runs_left: int | None = None  # runs after this one until the schedule ends; None: not known, or no end


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswer:
    """The answer: an open trial, and what the job's earlier runs measured about power on this device."""

    trial: Trial  # running, with its planned attempt
    profile: tuple[ProfileSample, ...] = ()  # sums per (batch size, limit)
    profile_device: DeviceInfo | None = None  # of the profile: the request's, else that of the job's newest trial
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # gpu uuid -> (limit found, limit last set) [W] of the newest trial there, while it has not restored the limit
    redelivered: bool = False  # the same open trial was returned before
    previous: Previous | None = None  # None: no run of this job has left a model
    budgets: Sequence[BudgetUse] = ()  # as the job stands, those whose figures are known
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
class History:
    """Closed trials of one job that another log or a file holds, and what they measured."""

    job_id: str
    trials: Sequence[Trial]  # each key and each number once
    points: Mapping[TrialKey, Sequence[PowerPoint]] = field(default_factory=dict)
    profiles: Sequence[Profile] = ()


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


class VariablePort(Protocol):
    """Airflow's Variables. Each method raises StoreError when they cannot be reached."""

    def get(self, key: str) -> str | None:
        """Text of a Variable; None only where it does not exist."""

    def set(self, key: str, text: str) -> None:
        """Write a Variable."""

    def delete(self, key: str) -> None:
        """Delete a Variable; do nothing where it does not exist."""

    def keys(self, prefix: str) -> list[str]:
        """Keys that begin with ``prefix``. Raises StoreError where they cannot be listed (a task on Airflow 3.2)."""


class Store(Protocol):
    """The trial log. Each method is one transaction and raises StoreError (unreachable, unknown schema, refused)."""

    @property
    def identity(self) -> str:
        """Location of the log, for people: without a password."""

    def ask(self, request: AskRequest) -> AskAnswer:
        """Open the next trial of a recurrence; return the open trial of the same try of the task where there is one.

        First closes earlier tries of the same task instance, and trials whose lease expired. Then learns from the log,
        chooses, and inserts a row in state ``running``. Where a start of the plan has already reported to the open
        trial, that trial is closed as abandoned, and the same attempt gets the next key: two starts are two
        observations.
        """

    def begin(self, key: TrialKey, previous: TrialKey, *, lease_s: float = 90.0) -> Trial:
        """Write the row of the attempt after ``previous`` in the same decision. Idempotent.

        The row gets another key where another start has taken ``key``; send reports to the key of the returned row.
        """

    def adopt(self, trial: Trial, *, lease_s: float = 90.0) -> Trial:
        """Write the open row of a trial that began while the store could not be reached; give it a number. Idempotent.

        Send what the run costs to the key of the returned row.
        """

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums. Return why the trial no longer belongs to its run, or None.

        The lease ends ``lease_s`` from now, or later where the trial was opened with a longer one. A trial whose lease
        expired is reopened. A trial that a later try or start took over, or that a person closed, stays closed and gets
        its figures. A trial that ended does not change. Raises UnknownTrialError where the log does not hold it.
        """

    def tell(self, key: TrialKey, state: State, report: Report, *, reason: str | None = None) -> Trial:
        """Close a trial. Idempotent; moves ``abandoned`` to its true state, and changes no other closed trial.

        A trial that a person closed gets its figures and stays closed. The reason of a trial says so where a later try
        or start took it over. Raises UnknownTrialError where the log does not hold the trial.
        """

    def close_trial(self, job_id: str, number: int, *, by: str) -> Trial:
        """Close an open trial by hand: permanently abandoned. Raises StoreError where it is not open."""

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired, as the next ``ask`` would; return them. Idempotent."""

    def trials(self, job_id: str, *, last: int | None = None) -> list[Trial]:
        """The log of a job in order of number; ``last`` limits it to the newest. Expired leases read ``abandoned``."""

    def recurrence(self, dag_id: str, run_id: str) -> list[Trial]:
        """Every trial of one DAG run, in order of job and number."""

    def runs(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> list[Trial]:
        """Every trial that a job has in the newest ``last`` runs of one DAG, in order of number.

        Leaves out the newest ``skip`` runs, and trials of other DAGs. The newest run is the one with the newest trial.
        """

    def pieces(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> Iterator[list[Trial]]:
        """The trials of :meth:`runs`, in pieces that fit into memory. No connection is held between two pieces.

        Each piece is one transaction. Trials that are deleted meanwhile are left out.
        """

    def version(self, dag_id: str, job_id: str, *, last: int) -> Hashable:
        """A value that is equal only while :meth:`runs` and :meth:`profile` return the same; None: not known."""

    def latest(self, *, last: int) -> list[Trial]:
        """The ``last`` newest trials of each job in each DAG, in order of DAG, job and number."""

    def sums(self, bounds: Sequence[float]) -> list[PeriodSum]:
        """Sums over all jobs by period: period i begins at ``bounds[i]`` and ends before ``bounds[i + 1]`` [s since the
        epoch, ascending]. By period, DAG, job and source.
        """

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""

    def profile(self, job_id: str, device: Where, job_version: str) -> list[ProfileSample]:
        """What one version of a job measured on one device: one sum per (batch size, power limit), in that order."""

    def profiles(self, job_id: str) -> list[Profile]:
        """What a job measured, for each device and version of the job."""

    def points(self, key: TrialKey) -> list[PowerPoint]:
        """Power over time of one trial, at most 500 points."""

    def take_in(self, histories: Sequence[History]) -> list[Trial]:
        """Write the trials that the log does not hold yet; return them as written. Idempotent.

        They keep their numbers where the log holds no other trials of their job, else they follow its newest one. In
        SQL all or none are written. Raises StoreError where a trial is in the log under another job.
        """

    def rename(self, old: str, new: str, *, merge: bool = False) -> int:
        """Move the trials of a job, with all that they measured, to another name; return how many there are.

        :param merge: where the log has trials of ``new``, they follow those of ``old``.

        Raises StoreError where there is no job ``old``, where the log has trials of ``new`` without ``merge``, and
        while a trial of either job runs.
        """

    @property
    def unreadable(self) -> Sequence[Unreadable]:
        """Trials that this object left out of its answers because their rows are damaged; each once."""

    def settings(self, job_id: str) -> dict[str, Any]:
        """Live settings of a job: eta, job_version, pause_exploration, pin_batch_size; empty when none are set."""

    def signal(self, name: str) -> tuple[str | None, bool]:
        """(The series kept under a name, whether the caller is to ask the service now).

        In each :data:`FRESH_S` one caller is to ask; the others take what is kept. Where it tells nothing (its process
        died, say), another one is to ask after :data:`RETRY_S`.
        """

    def kept_signal(self, name: str) -> str | None:
        """The series kept under a name, for one who asks no service; None: there is none."""

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer, so that a caller asks again after :data:`RETRY_S`."""

    def close(self) -> None:
        """Release connections."""
