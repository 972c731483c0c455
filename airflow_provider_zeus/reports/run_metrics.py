"""A run of a job as metrics for a time-series database: cost of its trials, believed cost of its
job. Pure.

Names, units, tags and their meanings: docs/metrics.md. The unit ends the name. A figure that is not
known gives no metric. Tags take few values: a device or a source that a training made up is
``other``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights, observed_cost, weights_of
from airflow_provider_zeus.model.trial import Observation, Trial
from airflow_provider_zeus.model.wire import without_none
from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.posterior import own_arithmetic, posteriors
from airflow_provider_zeus.printable import plain_name
from airflow_provider_zeus.reports.run_figures import RunFigures

MOST_DEVICES = 8  # each name is a series of its own in a metrics store; the others are OTHER
SOURCES = ("nvml_counter", "nvml_poll", "rapl", "rapl_share", "estimate", "simulated")
MOST_SIZES = 32  # each size is a series of its own in a metrics store
OTHER = "other"
NONE = "none"

Tags = Mapping[str, str]
_TagPairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``total``: ``value`` is added to a sum; otherwise it replaces the value before."""

    name: str
    value: float
    tags: Tags
    total: bool = False


def trial_metrics(trials: Sequence[Trial], log: Sequence[Trial]) -> list[Metric]:
    """Metrics of the ended trials of one run, oldest first; sums by phase and state, and the
    figures of the newest.

    :param log: the job's newest trials, which name its devices.
    """
    if not trials:
        return []
    sums = defaultdict[tuple[str, _TagPairs], float](float)
    for trial in trials:
        tags = {**_tags(trial, log), "phase": trial.planned.phase.value, "state": trial.state.value}
        pairs = tuple(tags.items())
        sums["zeus.trials", pairs] += 1.0
        for figure, value in _figures(trial).items():
            sums[f"zeus.trials.{figure}", pairs] += value
    totals = [
        Metric(name=name, value=value, tags=dict(pairs), total=True)
        for (name, pairs), value in sums.items()
    ]
    newest = trials[-1]
    figures = {
        **_figures(newest),
        "batch_size": newest.batch_size,
        "limit_w": newest.observation.power_limit_w,
    }
    return [*totals, *_gauges("zeus.trial", figures, _tags(newest, log))]


@own_arithmetic()
def job_metrics(run: RunFigures) -> list[Metric]:
    """Saving of a run against the default batch size at full power, and the believed cost of each
    batch size.

    Empty if the log does not hold the run whole. Needs numpy.
    """
    log = run.log
    if log is None or run.saving is None:
        return []
    belief = log.belief()
    device = log.device
    weights = Weights.of(log.job, device)
    unit = weights.unit.lower()
    # the saving compares runs of this device alone
    here = [t for t in run.ended if t.observation.where == log.where]
    tags = _tags((here or run.ended)[-1], run.newest)
    saved = run.saving.cost.saved
    ends = {
        f"saving_{unit}": saved.value,
        f"saving_low_{unit}": saved.low,
        f"saving_high_{unit}": saved.high,
    }
    metrics = _gauges("zeus.trial", ends, tags)
    believed = posteriors(
        belief,
        epoch_costs(belief, device, run.profiles, weights),
        epoch_costs_elsewhere(belief, device, weights),
        loads=loads(belief, device),
    )
    for b in log.job.batch_sizes[:MOST_SIZES]:
        if b in believed:
            cost = {f"cost_{unit}": believed[b].cost.value}
            metrics += _gauges("zeus.believed", cost, {**tags, "batch_size": str(b)})
    return metrics


def _figures(trial: Trial) -> dict[str, float]:
    """Energy, time, cost and epochs of an attempt, as far as they are known."""
    o = trial.observation
    weights = weights_of(trial.job, o)
    cost = {f"cost_{weights.unit.lower()}": observed_cost(o, weights)}
    figures = {"energy_j": o.energy_j, "time_s": o.time_s, **cost, "epochs": o.epochs}
    return {name: value for name, value in _finite(figures).items() if value >= 0}


def _gauges(prefix: str, figures: Mapping[str, float | None], tags: Tags) -> list[Metric]:
    return [
        Metric(name=f"{prefix}.{name}", value=value, tags=tags)
        for name, value in _finite(figures).items()
    ]


def _finite(figures: Mapping[str, float | None]) -> dict[str, float]:
    """The figures that are known and finite."""
    numbers = {name: float(value) for name, value in without_none(figures).items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _tags(trial: Trial, log: Sequence[Trial]) -> dict[str, str]:
    """Job, task and meter of a trial; the device is OTHER if it is not among the first in the
    log.
    """
    o = trial.observation
    # a database keeps a series for each value of a tag, so there are few
    devices = dict.fromkeys(_device(t.observation) for t in log)
    devices.pop(None, None)
    return {
        "zeus_job": _named(trial.job_id),
        "dag_id": _named(trial.origin.dag_id),
        "task_id": _named(trial.origin.task_id),
        "device": _tag(_device(o), [*devices][:MOST_DEVICES]),
        "source": _tag(o.energy_source, SOURCES),
    }


def _device(o: Observation) -> str | None:
    if o.device_model is None:
        return None
    return o.device_model.replace(" ", "_")


def _tag(name: str | None, names: Sequence[str | None]) -> str:
    """A name as a tag; OTHER if it is none of ``names``."""
    if name is None:
        return NONE
    if name not in names:
        return OTHER
    return _named(name)


def _named(name: str) -> str:
    return plain_name(name) or NONE
