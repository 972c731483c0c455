"""Sends a run's metrics to Airflow's own Stats: StatsD, Datadog or OpenTelemetry, as ``[metrics]``
says.

If Airflow's metrics are off, or Zeus is, nothing is read and nothing is sent. Nothing here
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.reports.run_figures import RunFigures
from airflow_provider_zeus.reports.run_metrics import Metric, job_metrics, trial_metrics
from airflow_provider_zeus.switch import OFF, enabled

log = guarded_log(__name__)


def send_run(run: RunFigures) -> None:
    """Send the metrics of a run that has ended, those of the log as far as it could be read.

    Raises nothing.
    """
    if not run.ended or not _is_on():
        return
    of_job: list[Metric] = []
    try:
        of_job = bounded(lambda: job_metrics(run), 1.0)
    except Exception as error:
        log.info("Zeus sends no saving and no believed cost of this run as metrics: %s", error)
    newest = run.ended[-100:]  # a hostile result from another host may have any number
    _send(lambda: [*trial_metrics(newest, run.newest), *of_job])


def _is_on() -> bool:
    try:
        # with none of them on, reading the log for metrics would be in vain
        receivers = ("statsd_datadog_enabled", "statsd_on", "otel_on")
        return enabled() != OFF and any(map(_config, receivers))
    except Exception:
        log.warning(
            "Zeus sends no metrics: [metrics] or [zeus] enabled cannot be read.", exc_info=True
        )
        return False


def _config(name: str) -> bool:
    from airflow.sdk import conf

    return conf.getboolean("metrics", name, fallback=name == "statsd_datadog_metrics_tags")


def _send(metrics: Callable[[], Iterable[Metric]]) -> None:
    try:
        from airflow_provider_zeus.airflow_compat import Stats

        # In this order, since Airflow prefers Datadog to StatsD to OpenTelemetry.
        if _config("statsd_datadog_enabled"):
            takes_tags = _config("statsd_datadog_metrics_tags")
        else:  # plain StatsD has no tags, so names have to hold them
            takes_tags = not _config("statsd_on") or _config("statsd_influxdb_enabled")
        for metric in metrics():
            name = named(metric)
            tags = None
            if takes_tags:
                name = metric.name
                tags = dict(metric.tags)
            if metric.total:
                # Airflow's type says int, but all receivers take fractions.
                Stats.incr(name, metric.value, tags=tags)  # type: ignore[arg-type]
            else:
                Stats.gauge(name, metric.value, tags=tags)
    except Exception:
        log.warning("Zeus could not send the metrics of this run.", exc_info=True)


def named(metric: Metric) -> str:
    """The name if there are no tags: the job follows, then the values of the tags that it does
    not stand for.
    """
    the_jobs = ("zeus_job", "dag_id", "task_id", "device")
    # the job's name implies them, and a name of StatsD should stay short
    rest = [value for tag, value in metric.tags.items() if tag not in the_jobs]
    values = [value.replace(".", "__") for value in (metric.tags["zeus_job"], *rest)]
    return ".".join([metric.name, *values])
