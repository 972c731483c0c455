"""The trial log behind one protocol. Callers talk to :class:`Store` only; ``open_store()`` gives them one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import (
    DeviceInfo,
    Observation,
    Origin,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    Where,
)

UPGRADE = "airflow zeus db upgrade"  # makes or migrates the tables of a Connection's database


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest:
    """What a recurrence says of itself when it asks for a batch size."""

    job: ZeusJob  # checked, templates rendered, live settings not yet applied
    job_id: str
    ti_id: str
    origin: Origin
    device: DeviceInfo | None = None  # None: not known where the question is asked (a pod)
    lease_s: float = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The answer: an open trial, and what the job's earlier runs taught about power on this device."""

    trial: Trial  # running, its planned attempt comes first
    profile: tuple[ProfileSample, ...] = ()  # sums per (batch size, limit)
    profile_device: DeviceInfo | None = None  # measured on it; the request's, else that of the job's newest trial
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # gpu uuid -> (limit found, limit left behind) [W] of the newest trial there, while it has not given the limit back
    redelivered: bool = False  # the same open trial was handed out before


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Partial (heartbeat) or final (tell) news of one trial."""

    observation: Observation
    profile: Sequence[ProfileSample] = ()  # new since the last report of this trial
    points: Sequence[PowerPoint] = ()  # new since the last report of this trial
    unsure: Sequence[Report] = ()  # heartbeats before it whose answer was lost, oldest first: stored or not


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A trial that cannot be read: its row is damaged, so it teaches nothing and stands on no page."""

    job_id: str
    number: int | None  # None where that cannot be read either
    dag_id: str
    problem: str


def named(damage: Unreadable) -> str:
    """Job and number of a trial that cannot be read."""
    return f"{damage.job_id or 'an unknown job'}/{'?' if damage.number is None else damage.number}"


class Store(Protocol):
    """The trial log. Every method is one transaction; all raise StoreError (unreachable, newer schema, refused)."""

    @property
    def identity(self) -> str:
        """Where the log lies, for people: no password in it."""

    def ask(self, request: AskRequest) -> Asked:
        """Open the next trial of a recurrence; the same open key gives the same trial, a closed one the next attempt.

        Where a start of the plan has reported to the open trial already, that one is closed as abandoned and the same
        attempt is handed out under the next key: two starts are two observations.
        Closes earlier tries of the same task instance and expired leases first; learns, chooses, inserts ``running``.
        """

    def begin(self, key: TrialKey, previous: TrialKey, *, lease_s: float = 90.0) -> Trial:
        """Write the row of the next attempt of ``previous``'s decision when its process begins it. Idempotent.

        Its key is another than ``key`` where that one is another start's; reports go to the key of the row.
        """

    def adopt(self, trial: Trial, *, lease_s: float = 90.0) -> Trial:
        """Write the open row of a trial that began while the store could not be asked; it gets its number. Idempotent.

        So that what such a run cost can be told later, to the key of the row.
        """

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums; why the trial is no longer its run's, None while it is.

        A lease ends ``lease_s`` from now, or later where the trial was asked for with a longer one. A trial whose lease
        lapsed is open again. One that a later try or start took over, or that a person closed, gets its figures alone.
        A trial that ended is not changed. Raises UnknownTrialError where the log does not hold the trial.
        """

    def tell(self, key: TrialKey, state: State, report: Report, *, reason: str | None = None) -> Trial:
        """Close a trial. Idempotent; moves ``abandoned`` to its true state, changes no other closed trial.

        What a person closed gets its figures and stays as it is. The trial's reason says where a later try or start
        took it over. Raises UnknownTrialError where the log does not hold the trial.
        """

    def close_trial(self, job_id: str, number: int, *, by: str) -> Trial:
        """Close an open trial by hand: abandoned, for good. Raises StoreError where none of this number is open."""

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired, as the next ``ask`` would; those closed. Idempotent."""

    def trials(self, job_id: str, *, last: int | None = None) -> list[Trial]:
        """The log of a job in order of number; ``last`` limits it to the newest. Expired leases read ``abandoned``."""

    def recurrence(self, dag_id: str, run_id: str) -> list[Trial]:
        """Every trial of one DAG run, in order of job and number."""

    def runs(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> list[Trial]:
        """Every trial that a job has in the newest ``last`` runs of one DAG, in order of number.

        ``skip``: so many newer runs are passed over. The newest run is the one with the newest trial; what another
        DAG's runs did in the job is left out.
        """

    def pieces(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> Iterator[list[Trial]]:
        """The trials of :meth:`runs`, in pieces that fit into memory; nothing of the store is held between two.

        What is pruned while they are read is left out. Not one transaction: each piece is.
        """

    def version(self, dag_id: str, job_id: str, *, last: int) -> Hashable:
        """Equal only while :meth:`runs` and :meth:`profile` answer the same; None where the store cannot tell."""

    def latest(self, *, last: int) -> list[Trial]:
        """Of every job in every DAG the trials whose numbers are among its ``last`` newest, by DAG, job, number.

        Of a job that several DAGs share each has its newest trial at least.
        """

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""

    def complete(self, job_id: str, batch_size: int, *, last: int) -> list[Trial]:
        """The ``last`` newest trials of one batch size that ended with a model, in order of number."""

    def profile(self, job_id: str, device: Where, job_version: str) -> list[ProfileSample]:
        """What one version of a job measured on one device: sums per (batch size, power limit), in that order."""

    def points(self, key: TrialKey) -> list[PowerPoint]:
        """Power over time of one trial, at most 500 points."""

    @property
    def unreadable(self) -> Sequence[Unreadable]:
        """Trials that the answers of this object left out, since their rows cannot be read; each once."""

    def settings(self, job_id: str) -> dict[str, Any]:
        """Live settings of a job: eta, job_version, pause_exploration, pin_batch_size; empty when none are set."""

    def close(self) -> None:
        """Release connections."""
