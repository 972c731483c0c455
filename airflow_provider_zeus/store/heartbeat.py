"""A heartbeat: one in time, a late one after its lease, and one of a trial that is closed."""

from __future__ import annotations

from airflow_provider_zeus.model.partial_sums import Report, merged, resolved
from airflow_provider_zeus.model.trial import REDELIVERED, State, Trial, TrialKey
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.service import JobLog, abandon, trial_of_start
from airflow_provider_zeus.store.sql import measurements, trials


def heartbeat(log: JobLog, key: TrialKey, report: Report, lease_s: float) -> str | None:
    """Renew the lease and write partial sums, as :func:`.rules.after_heartbeat` has it.

    Return why the trial no longer belongs to its run, or None.
    """
    before = trial_of_start(log, key, report)
    # Two starts run one attempt: the earlier is closed, so that its next heartbeat tells it.
    if before.key != key:
        for other in trials.of_task_instance(log.connection, key.ti_id):
            is_earlier = other.number < before.number and rules.same_attempt(other, before)
            if is_earlier and other.state is State.RUNNING:
                abandon(log, other, REDELIVERED)
    # Only after a lapse, or each heartbeat would read all trials of its run.
    others = _beside(log, before) if rules.lapsed(before) else []
    news = resolved(before.observation, report)
    observation = merged(before.observation, news.observation)
    trial = rules.after_heartbeat(
        before, observation, others, now=log.now, seq=log.seq + 1, lease_s=lease_s
    )
    if trial is not before:
        log.put(trial, before, news)
    elif trial.state is State.ABANDONED:
        # Equal sums may come with new samples and power points: they were paid for.
        measurements.add(log.connection, trial, news)
    return trial.reason if trial.state is State.ABANDONED else None


def _beside(log: JobLog, trial: Trial) -> list[Trial]:
    """The trials of the same task instance and DAG run: one of them may have taken it over."""
    origin = trial.origin
    others = trials.of_task_instance(log.connection, trial.key.ti_id)
    if origin.dag_id or origin.run_id:
        others += trials.only_trials(trials.of_run(log.connection, origin.dag_id, origin.run_id))
    return others
