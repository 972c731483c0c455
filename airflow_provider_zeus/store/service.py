"""Operations on the log of one job, the same for each store: ask, begin, adopt, heartbeat, tell, close, reap.

A :class:`TrialService` is the log within one transaction (SQL), or between one read and one write (Variable). The rules
for a single trial are in :mod:`~airflow_provider_zeus.store.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Protocol

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.model.budget import BudgetUse, use
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Origin,
    PowerPoint,
    Previous,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    Where,
)
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed
from airflow_provider_zeus.reports.budget_figures import USUAL, usual
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, Report
from airflow_provider_zeus.store.reported_figures import finite, resolved

MEASURED = 8 * USUAL  # newest trials that are read for what a run takes: its attempts, and those of its retries


class TrialService(Protocol):
    """The log of one job, locked."""

    now: float  # seconds since the epoch, the store's clock
    seq: int  # number of closings so far
    newest: int  # number of the newest trial, 0 when there is none

    def find(self, key: TrialKey) -> Trial | None:
        """The trial of a key; None where there is none that can be read."""

    def open_trials(self) -> list[Trial]:
        """Trials whose row says ``running``, in order of number."""

    def of_task_instance(self, ti_id: str) -> list[Trial]:
        """Each readable trial of one try of a task."""

    def next_attempt(self, ti_id: str) -> int:
        """The number after the highest attempt of one try of a task."""

    def of_run(self, dag_id: str, run_id: str) -> list[Trial]:
        """The trials of one DAG run."""

    def belief(self, job: ZeusJob, oldest_open: int | None) -> Belief:
        """What the policy has learned from the log, in order of number."""

    def profile(self, device: Where | None, job_version: str) -> tuple[ProfileSample, ...]:
        """One sum per (batch size, limit) of one version of the job on one device."""

    def limits_found(self) -> Mapping[str, tuple[float, float]]:
        """GPU uuid -> (power limit found, last set) [W], where the newest trial has not restored it."""

    def left_a_model(self, origin: Origin, run_types: Sequence[str], most: int) -> list[Trial]:
        """The newest ``most`` trials of these run types that left a model or kept an earlier one, newest first.

        Of the map index of ``origin``, and of DAG runs that began before its own (:func:`.rules.newest_runs`).
        """

    def spent(self, begin_s: float, source: str | None) -> tuple[float | None, float]:
        """Energy [J] and time of all devices [s] of the job's trials of an energy source that began since then.

        None: none of them measured energy. Open trials count as far as they have reported.
        """

    def measured(self, source: str | None, most: int) -> list[Trial]:
        """The newest ``most`` ended trainings of an energy source that have a time, in order of number."""

    def add(self, trial: Trial) -> None:
        """Write a new row."""

    def put(self, trial: Trial, *, relearn: bool = False) -> None:
        """Write an existing row; ``relearn``: what the policy learns from it has changed."""

    def numbers(self) -> Mapping[TrialKey, int]:
        """The number of each trial of the job, of damaged ones too where it is known."""

    def take_in(self, trial: Trial) -> None:
        """Write a closed row of another log. Its number may be below ``newest``; ``newest`` and ``seq`` grow to it."""

    def add_profile(self, device: Where, job_version: str, samples: Iterable[ProfileSample]) -> None:
        """Append profile samples of one version of the job on one device."""

    def add_samples(self, trial: Trial, samples: Iterable[ProfileSample]) -> None:
        """Append profile samples that the trial measured on its device, for its version of the job."""

    def add_points(self, key: TrialKey, points: Sequence[PowerPoint]) -> None:
        """Append power points."""


def ask(log: TrialService, request: AskRequest, settings: Mapping[str, Any]) -> AskAnswer:
    """Close stale trials. Return the open trial of this task instance's try, or choose and open the next one."""
    if request.pinned_by is not None:
        settings = {**settings, "pin_batch_size": request.job.default_batch_size, "pinned_by": request.pinned_by}
    running = _still_open(log, request)
    job = request.job.with_settings(settings)
    belief = log.belief(job, min((t.number for t in running), default=None))
    device = request.device or belief.last_device()
    own = log.of_task_instance(request.ti_id)
    again = rules.redelivered(own, request.job_id)
    budgets = _budgets(log, request, running, device)
    spent_up = job.on_budget == "incumbent" and next((u for u in budgets if u.share >= 1), None)
    version = rules.version_of(again.spec) if again else job.job_version
    profile = log.profile(device.where if device else None, version)
    if again:
        trial = _redeliver(log, again, request.lease_s)
    else:
        number = log.newest + 1
        seed = decision_seed(request.job_id, number, job.seed)
        decision = choose(
            job,
            belief,
            profiles=profile,
            device=device,
            running=running,
            seed=seed,
            settings={**settings, "budget_spent": spent_up.text} if spent_up else settings,
            run_type=request.origin.run_type,
            runs_left=request.runs_left,
            finish_by_s=request.finish_by_s,
            now_s=log.now,
        )
        attempt = log.next_attempt(request.ti_id)
        trial = rules.opened(request, job, decision, number=number, attempt=attempt, seq=log.seq, now=log.now)
        log.add(trial)
    return AskAnswer(
        trial=trial,
        profile=profile,
        profile_device=device,
        limits_found_w=log.limits_found(),
        previous=_previous(log, request.origin, job),
        budgets=budgets,
        redelivered=again is not None,
        shared_with=_other_map_indexes(log, request),
    )


def _budgets(
    log: TrialService, request: AskRequest, running: Sequence[Trial], device: DeviceInfo | None
) -> list[BudgetUse]:
    """How much of the job's budgets is used, by trials of the run's energy source. Open runs count as whole ones."""
    if not request.allowances:
        return []
    source = device.energy_source if device else None
    takes = usual([*log.measured(source, MEASURED), *running], source)
    open_runs = [rules.spent_by(t.observation) for t in running if t.key.ti_id != request.ti_id]
    uses = (use(a, log.spent(a.begin_s, source), open_runs, takes) for a in request.allowances)
    return [each for each in uses if each is not None]


def _previous(log: TrialService, origin: Origin, job: ZeusJob) -> Previous | None:
    """What ``run.previous`` reads; None for a run that does not teach: a backfill's slice may be an older one."""
    if origin.run_type not in job.learn_from:
        return None
    found = log.left_a_model(origin, job.learn_from, job.retrain_every or 1)
    if not found or rules.version_of(found[0].spec) != job.job_version:
        return None
    in_a_row = takewhile(lambda trial: trial.state is State.NOT_NEEDED, found)
    return Previous(returned=found[0].observation.returned, not_needed=len(list(in_a_row)))


def _other_map_indexes(log: TrialService, request: AskRequest) -> list[int]:
    """Other map indexes of the request's task that have trials of its job in the same DAG run."""
    origin = request.origin
    if origin.map_index < 0:
        return []
    trials = [t for t in log.of_run(origin.dag_id, origin.run_id) if t.job_id == request.job_id]
    return sorted({t.origin.map_index for t in trials if t.origin.task_id == origin.task_id} - {origin.map_index})


def _redeliver(log: TrialService, trial: Trial, lease_s: float) -> Trial:
    """The open trial of a request that is repeated; a row of its own once a start has reported to that trial."""
    if trial.observation.start_id is None:
        trial = rules.renewed(trial, log.now, lease_s)
        log.put(trial)
        return trial
    _abandon(log, trial, rules.REDELIVERED)
    return _repeated(log, trial, lease_s)


def _repeated(log: TrialService, trial: Trial, lease_s: float) -> Trial:
    """A row of its own for another start of the same attempt."""
    key = TrialKey(trial.key.ti_id, log.next_attempt(trial.key.ti_id))
    again = rules.repeated(trial, key, number=log.newest + 1, now=log.now, lease_s=lease_s)
    log.add(again)
    return again


def _still_open(log: TrialService, request: AskRequest) -> list[Trial]:
    """Open trials, after the request has closed the stale ones."""
    running = log.open_trials()
    for trial, reason in rules.stale(running, request, log.now):
        running.remove(trial)
        _abandon(log, trial, reason)
    return running


def _abandon(log: TrialService, trial: Trial, reason: str) -> Trial:
    log.seq += 1
    closed = rules.abandon(trial, reason, log.now, log.seq)
    log.put(closed, relearn=True)
    return closed


def close_trial(log: TrialService, job_id: str, number: int, by: str) -> Trial:
    """Close an open trial by hand. Raises StoreError where no trial of this number is open."""
    trial = next((t for t in log.open_trials() if t.number == number), None)
    if trial is None:
        raise StoreError(
            f"Trial {number} of {job_id} is not open: it has ended, or the log has none of this number. "
            f"See 'airflow zeus trials {job_id}'."
        )
    return _abandon(log, trial, f"{rules.BY_HAND} by {by}")


def reap(log: TrialService) -> list[Trial]:
    """Close the open trials whose lease expired; return them."""
    expired = [t for t in log.open_trials() if rules.expired(t, log.now)]
    return [_abandon(log, trial, rules.LEASE_EXPIRED) for trial in expired]


def begin(log: TrialService, key: TrialKey, previous: TrialKey, lease_s: float) -> Trial:
    """Write the row of the attempt after ``previous`` unless it exists; under another key where ``key`` is taken."""
    before = _known(log, previous)
    trial = rules.next_of(before, key, number=log.newest + 1, now=log.now, lease_s=lease_s)
    return _found_or_added(log, trial)


def adopt(log: TrialService, trial: Trial, lease_s: float) -> Trial:
    """Write the row of a trial that began while the store could not be reached, unless it exists.

    A request whose answer was lost has left an open row under the same key. No start will use it, so it is closed.
    """
    start_id = trial.observation.start_id
    found = None if trial.number else log.find(trial.key)
    if found and rules.answer_was_lost(found, trial):
        _abandon(log, found, rules.ANSWER_LOST)
    trial = rules.adopted(trial, number=log.newest + 1, now=log.now, lease_s=lease_s)
    return _found_or_added(log, trial, start_id)


def _found_or_added(log: TrialService, trial: Trial, start_id: str | None = None) -> Trial:
    """The row of the same attempt of the same decision. Where another start has taken the key, a row with a new key."""
    found = log.find(trial.key)
    if found is None:
        log.add(trial)
        return trial
    if rules.same_attempt(found, trial):
        return found
    own = log.of_task_instance(trial.key.ti_id)
    displaced = [t for t in own if t.key.attempt > trial.key.attempt and rules.same_attempt(t, trial)]
    mine = next((t for t in displaced if t.observation.start_id in (None, start_id)), None)
    if mine is None:
        mine = replace(trial, key=TrialKey(trial.key.ti_id, log.next_attempt(trial.key.ti_id)))
        log.add(mine)
    return mine


def heartbeat(log: TrialService, key: TrialKey, report: Report, lease_s: float) -> str | None:
    """Renew the lease and write partial sums. Return why the trial no longer belongs to its run, or None.

    A trial that was closed because its lease expired is reopened, unless a later try or start of its task exists. A
    trial that was taken over, or closed by hand, gets only its figures. A trial that ended does not change.
    """
    trial = _trial_of_start(log, key, report)
    if trial.key != key:
        _close_earlier_starts(log, trial)
    report = resolved(trial.observation, report)
    lapsed = trial.state is State.ABANDONED and trial.reason == rules.LEASE_EXPIRED
    if lapsed:
        trial = _reopened(log, trial)
    if trial.state is State.RUNNING:
        trial = rules.after_heartbeat(trial, report.observation, log.now, lease_s)
        log.put(trial, relearn=lapsed)
        _add_measurements(log, trial, report)
    elif trial.state is State.ABANDONED:
        _add_figures(log, trial, report)
        return trial.reason
    return None


def _reopened(log: TrialService, trial: Trial) -> Trial:
    """A trial whose lease expired and whose run still reports: reopened, or with the reason why it was taken over."""
    origin = trial.origin
    others = log.of_task_instance(trial.key.ti_id)
    if origin.dag_id or origin.run_id:
        others += log.of_run(origin.dag_id, origin.run_id)
    why = rules.taken_over(trial, others)
    if why is not None:
        trial = replace(trial, reason=why)
        log.put(trial)
        return trial
    log.seq += 1
    return rules.reopened(trial, log.seq)


def _add_figures(log: TrialService, trial: Trial, report: Report) -> None:
    """Write the figures that the run of a closed trial still reports."""
    known = rules.with_figures(trial, report.observation, log.seq + 1)
    if known is not trial:
        log.seq += 1
        log.put(known, relearn=True)
    _add_measurements(log, known, report)


def _close_earlier_starts(log: TrialService, trial: Trial) -> None:
    """Of two starts under one key the later one goes on; the earlier one learns of it with its next heartbeat."""
    for other in log.of_task_instance(trial.key.ti_id):
        if other.state is State.RUNNING and other.number < trial.number and rules.same_attempt(other, trial):
            _abandon(log, other, rules.REDELIVERED)


def tell(log: TrialService, key: TrialKey, state: State, report: Report, reason: str | None) -> Trial:
    """Close a trial. Idempotent."""
    before = _trial_of_start(log, key, report)
    trial = rules.closed(before, state, report.observation, reason, now=log.now, seq=log.seq + 1)
    if trial is not before:
        log.seq += 1
        log.put(trial, relearn=True)
        _add_measurements(log, trial, resolved(before.observation, report))
    return trial


def _add_measurements(log: TrialService, trial: Trial, report: Report) -> None:
    report = finite(report)
    log.add_samples(trial, report.profile)
    log.add_points(trial.key, report.points)


def _trial_of_start(log: TrialService, key: TrialKey, report: Report) -> Trial:
    """The row that this start of the plan writes to: a second start under one key gets a row of its own."""
    trial = _known(log, key)
    if not rules.another_start(trial.observation, report.observation):
        return trial
    own = log.of_task_instance(key.ti_id)
    start_id = report.observation.start_id
    found = next((t for t in own if t.observation.start_id == start_id and t.planned == trial.planned), None)
    if found:
        return found
    return _repeated(log, trial, trial.lease_s)


def _known(log: TrialService, key: TrialKey) -> Trial:
    trial = log.find(key)
    if trial is None:
        raise unknown(key)
    return trial


def unknown(key: TrialKey) -> UnknownTrialError:
    """The error of a key that the log does not hold."""
    return UnknownTrialError(
        f"No trial {key.ti_id}, attempt {key.attempt}, in the log: ask for it before reporting to it."
    )
