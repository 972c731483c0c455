"""The work of a heartbeat on its trial: one in time, a late one after its lease, and one of a trial
that is closed.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_zeus.model.partial_sums import merged
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.store.rules import resolved
from airflow_provider_zeus.store.service import JobLog, abandon, trial_of_start
from airflow_provider_zeus.store.sql import measurements, trials


def heartbeat(log: JobLog, key: TrialKey, report: Report, lease_s: float) -> str | None:
    """Renew the lease and write partial sums.

    Return why the trial no longer belongs to its run, or None.

    A trial that was closed because its lease expired is reopened, unless a later try or start of
    its task exists. A trial that was taken over, or closed by hand, gets only its figures. A trial
    that ended does not change.
    """
    trial = trial_of_start(log, key, report)
    # of two starts under one key the later goes on; the earlier learns of it from its next beat
    if trial.key != key:
        for other in trials.of_task_instance(log.connection, trial.key.ti_id):
            is_earlier = other.number < trial.number and rules.same_attempt(other, trial)
            if is_earlier and other.state is State.RUNNING:
                abandon(log, other, rules.REDELIVERED)
    report = resolved(trial.observation, report)
    lapsed = trial.state is State.ABANDONED and trial.reason == rules.LEASE_EXPIRED
    if lapsed:
        trial = late_heartbeat(log, trial)
    if trial.state is State.RUNNING:
        observation = merged(trial.observation, report.observation)
        trial = replace(rules.renewed(trial, log.now, lease_s), observation=observation)
        log.put(trial, relearn=lapsed)
        measurements.add(log.connection, trial, report)
    elif trial.state is State.ABANDONED:
        measured = rules.with_figures(trial, report.observation, log.seq + 1)
        if measured is not trial:
            log.seq += 1
            log.put(measured, relearn=True)
        measurements.add(log.connection, measured, report)
        return trial.reason
    return None


def late_heartbeat(log: JobLog, trial: Trial) -> Trial:
    """A trial whose lease expired and whose run still reports: reopened, or with why it was taken
    over.
    """
    origin = trial.origin
    others = trials.of_task_instance(log.connection, trial.key.ti_id)
    if origin.dag_id or origin.run_id:
        others += trials.only_trials(trials.of_run(log.connection, origin.dag_id, origin.run_id))
    why = rules.taken_over(trial, others)
    if why is not None:
        trial = replace(trial, reason=why)
        log.put(trial)
        return trial
    log.seq += 1
    return replace(trial, state=State.RUNNING, reason=None, told_seq=log.seq, closed_at=None)
