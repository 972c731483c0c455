"""What goes into the trial log and comes out of it: questions, answers, reports, history, sums; Variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from airflow_provider_zeus.model.budget import Allowance, BudgetUse
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Observation,
    Origin,
    PowerPoint,
    Previous,
    ProfileSample,
    Trial,
    TrialKey,
    Where,
)
from airflow_provider_zeus.units import J_PER_KWH, counted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSum:
    """Sums over the trials of one job in one DAG and of one energy source that began in one period."""

    dag_id: str
    job_id: str
    source: str | None  # None: nothing measured energy
    period: int
    runs: int  # scheduled runs; one of several tries or attempts counts once
    energy_j: float | None  # of the trials that measured it; None: none did
    time_s: float | None
    gpu_s: float | None  # time of each of its devices, added up
    unknown: int  # trials that reported no time
    paid: float | None = None  # what the energy cost whose hours were priced, without PUE; None: none was
    paid_j: float | None = None  # that energy
    currencies: tuple[str, ...] = ()  # of that, at most two named
    g_co2e: float | None = None  # the same in grams of CO2e
    g_co2e_j: float | None = None
    start_saved: float | None = None  # of ``paid``, by waiting for a cheaper start; below 0: lost; None: no run waited
    start_saved_g: float | None = None  # the same of ``g_co2e``

    def drawn(self) -> list[Observation]:
        """The energy as attempts: that whose hours were priced, and the rest."""
        paid_j, g_j, all_j = self.paid_j or 0.0, self.g_co2e_j or 0.0, self.energy_j or 0.0
        both_j = min(paid_j, g_j)
        price = None if not paid_j else (self.paid or 0.0) / paid_j * J_PER_KWH
        grams = None if not g_j else (self.g_co2e or 0.0) / g_j * J_PER_KWH
        currencies = self.currencies or (None,)
        parts = [
            Observation(
                energy_j=j / len(currencies),
                price_per_kwh=p,
                price_at_once=None if p is None else p + (self.start_saved or 0.0) / paid_j * J_PER_KWH,
                price_currency=currency if p is not None else None,
                g_co2e_per_kwh=g,
                g_co2e_at_once=None if g is None else g + (self.start_saved_g or 0.0) / g_j * J_PER_KWH,
            )
            for j, p, g in (
                (both_j, price, grams),
                (paid_j - both_j, price, None),
                (g_j - both_j, None, grams),
                (max(all_j - paid_j - g_j + both_j, 0.0), None, None),
            )
            for currency in currencies
        ]
        return [part for part in parts if part.energy_j]


def silent_text(sums: Iterable[PeriodSum]) -> str:
    """How many attempts of how many jobs reported nothing, so that no figure holds them; empty: none."""
    silent = [s for s in sums if s.unknown]
    if not silent:
        return ""
    attempts = counted(sum(s.unknown for s in silent), "attempt")
    return f"{attempts} of {counted(len({(s.dag_id, s.job_id) for s in silent}), 'job')} that reported nothing"


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
