"""Sends a run's metrics to Airflow's own Stats: StatsD, Datadog or OpenTelemetry, as ``[metrics]`` says.

Where Airflow's metrics are off, or Zeus is, nothing is read and nothing is sent. Nothing here raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_zeus.model.budget import BudgetUse
from airflow_provider_zeus.model.trial import DeviceInfo, State, Trial
from airflow_provider_zeus.operators.config import OFF, enabled
from airflow_provider_zeus.reports.run_metrics import NEWEST, Metric, budget_metrics, job_metrics, trial_metrics
from airflow_provider_zeus.reports.run_savings import RunSaving
from airflow_provider_zeus.store.patience import bounded

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

LOG_S = 1.0  # limit of reading the log, and of what is worked out from it
MOST_TRIALS = 100  # of one run: the newest; a result from another host may have many
_THE_JOBS = ("zeus_job", "dag_id", "task_id", "device")  # tags that the job stands for in a name

log = logging.getLogger(__name__)


def send_run(ended: Sequence[Trial], store: Store | None) -> RunSaving | None:
    """Send the metrics of a run whose trials have ended. Raises nothing.

    Returns what the run saved, where that had to be worked out; None: it is not known here.

    :param ended: its trials, in order.
    :param store: that holds them; None: it cannot be read now, and what needs the log is absent.
    """
    if not ended or not _is_on():
        return None
    trials = ended[-MOST_TRIALS:]
    newest: list[Trial] = []
    of_job: list[Metric] = []
    saving: RunSaving | None = None
    try:
        if store is not None:
            newest, of_job, saving = bounded(lambda: _of_log(store, trials), LOG_S)
    except Exception as error:
        log.info("Zeus sends no saving and no believed cost of this run as metrics: %s", error)
    _send(lambda: [*trial_metrics(trials, newest), *of_job])
    return saving


def _of_log(store: Store, trials: Sequence[Trial]) -> tuple[list[Trial], list[Metric], RunSaving | None]:
    """The job's newest trials, its metrics after a run, and what the run saved: where the log holds the run whole."""
    last = trials[-1]
    newest = store.trials(last.job_id, last=NEWEST)
    own = [t for t in newest if t.recurrence == last.recurrence]
    where, job = last.observation.where, last.job
    told = sum(t.key.ti_id == last.key.ti_id for t in own)
    if where is None or told < len(trials) or any(t.state is State.RUNNING for t in own):
        return newest, [], None
    return newest, *job_metrics(own, newest, job, store.profile(last.job_id, where, job.job_version))


def send_budgets(trial: Trial, budgets: Sequence[BudgetUse], device: DeviceInfo | None) -> None:
    """Send how much of a job's budgets is used as a run begins. Raises nothing."""
    if budgets and _is_on():
        _send(lambda: budget_metrics(trial, budgets, device))


def _is_on() -> bool:
    try:
        return enabled() != OFF and any(map(_config, ("statsd_datadog_enabled", "statsd_on", "otel_on")))
    except Exception:
        log.warning("Zeus sends no metrics: [metrics] or [zeus] enabled cannot be read.", exc_info=True)
        return False


def _takes_tags() -> bool:
    """Whether the receiver takes tags; plain StatsD does not. Airflow prefers Datadog to StatsD to OpenTelemetry."""
    if _config("statsd_datadog_enabled"):
        return _config("statsd_datadog_metrics_tags")
    return not _config("statsd_on") or _config("statsd_influxdb_enabled")


def _config(name: str) -> bool:
    from airflow.sdk import conf

    return conf.getboolean("metrics", name, fallback=name == "statsd_datadog_metrics_tags")


def _send(metrics: Callable[[], Iterable[Metric]]) -> None:
    try:
        from airflow_provider_zeus.airflow_compat import Stats

        takes_tags = _takes_tags()
        for metric in metrics():
            name, tags = (metric.name, dict(metric.tags)) if takes_tags else (named(metric), None)
            if metric.total:
                Stats.incr(name, metric.value, tags=tags)  # type: ignore[arg-type]  # all receivers take fractions
            else:
                Stats.gauge(name, metric.value, tags=tags)
    except Exception:
        log.warning("Zeus could not send the metrics of this run.", exc_info=True)


def named(metric: Metric) -> str:
    """The name where there are no tags: the job follows, then the values of the tags that it does not stand for."""
    rest = [value for tag, value in metric.tags.items() if tag not in _THE_JOBS]
    return ".".join([metric.name, *(value.replace(".", "__") for value in (metric.tags["zeus_job"], *rest))])
