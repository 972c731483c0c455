"""A run of a job as metrics for a time-series database: what its trials spent, what the job is believed to cost. Pure.

Names, units, tags and what they mean: docs/metrics.md. The unit ends the name. A figure that is not known gives no
metric. Tags take few values: a device or a source that a training made up is ``other``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights, observed_cost, weights_of
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.posterior import own_arithmetic, posteriors
from airflow_provider_zeus.printable import plain_name
from airflow_provider_zeus.reports.run_figures import RunFigures

MOST_DEVICES = 8  # names of devices that the newest trials have; the others are OTHER
SOURCES = ("nvml_counter", "nvml_poll", "rapl", "rapl_share", "estimate", "simulated")
OTHER, NONE = "other", "none"

Tags = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``total``: ``value`` is added to a sum; otherwise it replaces the value before."""

    name: str
    value: float
    tags: Tags
    total: bool = False


def trial_metrics(trials: Sequence[Trial], log: Sequence[Trial]) -> list[Metric]:
    """Metrics of the ended trials of one run, oldest first; sums by phase and state, and the figures of the newest.

    :param log: the job's newest trials, which say what its devices are called.
    """
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], Metric] = {}
    for trial in trials:
        tags = {**_tags(trial, log), "phase": trial.planned.phase.value, "state": trial.state.value}
        for figure, value in {"": 1.0, **_figures(trial)}.items():
            name = f"zeus.trials.{figure}" if figure else "zeus.trials"
            key = name, tuple(tags.items())
            before = sums[key].value if key in sums else 0.0
            sums[key] = Metric(name=name, value=before + value, tags=tags, total=True)
    if not trials:
        return []
    newest, o = trials[-1], trials[-1].observation
    size = None if newest.batch_size is None else float(newest.batch_size)
    figures = {**_figures(newest), "batch_size": size, "limit_w": o.power_limit_w}
    tags = _tags(newest, log)
    return [*sums.values(), *(_gauges("zeus.trial", figures, tags))]


@own_arithmetic()
def job_metrics(run: RunFigures, most_sizes: int = 32) -> list[Metric]:
    """What a run saved against the default batch size at full power, and what each batch size is believed to cost.

    Empty where the log does not hold the run whole. Needs numpy.
    """
    log, saving = run.log, run.saving
    if log is None or saving is None:
        return []
    belief, device = log.belief(), log.device
    weights = Weights.of(log.job, device)
    unit = weights.unit.lower()
    measured = next((t for t in reversed(run.ended) if t.observation.where == log.where), run.ended[-1])
    tags, saved = _tags(measured, run.newest), saving.cost.saved
    ends = {f"saving_{unit}": saved.value, f"saving_low_{unit}": saved.low, f"saving_high_{unit}": saved.high}
    found = list(_gauges("zeus.trial", ends, tags))
    here, there = epoch_costs(belief, device, run.profiles, weights), epoch_costs_elsewhere(belief, device, weights)
    believed = posteriors(belief, here, there, loads(belief, device))
    for b in log.job.batch_sizes[:most_sizes]:
        cost = believed[b].cost.value if b in believed else None
        found += _gauges("zeus.believed", {f"cost_{unit}": cost}, {**tags, "batch_size": str(b)})
    return found


def _figures(trial: Trial) -> dict[str, float]:
    """What is known of an attempt's energy, time, cost and epochs."""
    o, job = trial.observation, trial.job
    weights = weights_of(job, o)
    cost = {f"cost_{weights.unit.lower()}": observed_cost(o, weights)}
    figures = {"energy_j": o.energy_j, "time_s": o.time_s, **cost, "epochs": o.epochs}
    return {name: value for name, value in figures.items() if value is not None and 0 <= value < math.inf}


def _gauges(prefix: str, figures: Mapping[str, float | None], tags: Tags) -> Iterator[Metric]:
    for name, value in figures.items():
        if value is not None and math.isfinite(value):
            yield Metric(name=f"{prefix}.{name}", value=float(value), tags=tags)


def _tags(trial: Trial, log: Sequence[Trial]) -> dict[str, str]:
    """Whose trial it is and what measured it; the device is OTHER where it is not among the first in the log."""
    o, device = trial.observation, NONE
    if o.device_model is not None:
        models = [m.replace(" ", "_") for t in log if (m := t.observation.device_model) is not None]
        device = _named(o.device_model.replace(" ", "_"), models)
    return {**_origin(trial), "device": device, "source": _source(o.energy_source)}


def _origin(trial: Trial) -> dict[str, str]:
    origin = trial.origin
    named = {"zeus_job": trial.job_id, "dag_id": origin.dag_id, "task_id": origin.task_id}
    return {name: plain_name(value) or NONE for name, value in named.items()}


def _named(value: str, known: Iterable[str]) -> str:
    """A name as a tag; OTHER where it is not among the first :data:`MOST_DEVICES` of those that are known."""
    return (plain_name(value) or NONE) if value in list(dict.fromkeys(known))[:MOST_DEVICES] else OTHER


def _source(energy_source: str | None) -> str:
    return NONE if energy_source is None else energy_source if energy_source in SOURCES else OTHER
