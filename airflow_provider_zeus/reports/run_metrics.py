"""A run of a job as metrics for a time-series database: what its trials spent, what the job is believed to cost. Pure.

Names, units, tags and what they mean: docs/metrics.md. The unit ends the name. A figure that is not known gives no
metric. Tags take few values: a device or a source that a training made up is ``other``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.budget import BudgetUse
from airflow_provider_zeus.model.cost import Weights, observed_cost, weights_of
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, ProfileSample, Trial
from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.posterior import posteriors
from airflow_provider_zeus.printable import plain_name
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset
from airflow_provider_zeus.reports.run_savings import RunSaving, Yardstick

NEWEST = 100  # trials of a job that its saving, its belief and the names of its devices are read from
MOST_DEVICES = 8  # names among them; the others are OTHER
MOST_SIZES = 32  # batch sizes whose believed cost is told
SOURCES = ("nvml_counter", "nvml_poll", "rapl", "estimate", "simulated")
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
    figures = {**_figures(newest), "batch_size": float(newest.batch_size), "limit_w": o.power_limit_w}
    tags = _tags(newest, log)
    return [*sums.values(), *(_gauges("zeus.trial", figures, tags))]


def job_metrics(
    trials: Sequence[Trial], log: Sequence[Trial], job: ZeusJob, profiles: Sequence[ProfileSample]
) -> tuple[list[Metric], RunSaving | None]:
    """What the run saved against the default batch size at full power, and what each batch size is believed to cost.

    The saving comes with them, for others that tell it; None: not known. Needs numpy.

    :param trials: all of the run, each with a trial of ``log``.
    :param log: the job's newest trials.
    :param profiles: of the run's device.
    """
    where = trials[-1].observation.where
    if where is None:
        return [], None
    dataset, tags = as_dataset(log, job, where), _tags(trials[-1], log)
    dataset = replace(dataset, folded=dataset.belief())
    unit = "s" if Weights.of(job, dataset.device).time_alone else "j"
    saved = Yardstick.of(dataset, where, rng=random.Random(0), profiles=profiles).saving(trials)
    costs = _believed(dataset, profiles)
    of_run = saved.cost.saved
    ends = {f"saving_{unit}": of_run.value, f"saving_low_{unit}": of_run.low, f"saving_high_{unit}": of_run.high}
    found = list(_gauges("zeus.trial", ends, tags))
    for b in job.batch_sizes[:MOST_SIZES]:
        found += _gauges("zeus.believed", {f"cost_{unit}": costs.get(b)}, {**tags, "batch_size": str(b)})
    return found, saved


def budget_metrics(trial: Trial, budgets: Iterable[BudgetUse], device: DeviceInfo | None) -> list[Metric]:
    """How much of each budget is spent, and its amount, as the run began; ``device``: whose energy counts."""
    tags = {**_origin(trial), "source": _source(device.energy_source if device else None)}
    found: list[Metric] = []
    for used in budgets:
        budget = used.allowance.budget
        figures = {"spent": used.spent, "amount": budget.amount, "used_ratio": used.share}
        found += _gauges("zeus.budget", figures, {**tags, "period": budget.period, "unit": budget.unit})
    return found


def _believed(log: Dataset, profiles: Sequence[ProfileSample]) -> dict[int, float | None]:
    """Believed cost of a run to the target, by batch size."""
    belief, device = log.belief(), log.device
    weights = Weights.of(log.job, device)
    here, there = epoch_costs(belief, device, profiles, weights), epoch_costs_elsewhere(belief, device, weights)
    return {b: found.cost.value for b, found in posteriors(belief, here, there, loads(belief, device)).items()}


def _figures(trial: Trial) -> dict[str, float]:
    """What is known of an attempt's energy, time, cost and epochs."""
    o, job = trial.observation, trial.job
    weights = weights_of(job, o)
    cost = "cost_s" if weights.time_alone else "cost_j"
    figures = {"energy_j": o.energy_j, "time_s": o.time_s, cost: observed_cost(o, weights), "epochs": o.epochs}
    return {name: value for name, value in figures.items() if value is not None and 0 <= value < math.inf}


def _gauges(prefix: str, figures: Mapping[str, float | None], tags: Tags) -> Iterator[Metric]:
    for name, value in figures.items():
        if value is not None and math.isfinite(value):
            yield Metric(name=f"{prefix}.{name}", value=float(value), tags=tags)


def _tags(trial: Trial, log: Sequence[Trial]) -> dict[str, str]:
    o = trial.observation
    return {**_origin(trial), "device": _device(o, log), "source": _source(o.energy_source)}


def _origin(trial: Trial) -> dict[str, str]:
    origin = trial.origin
    named = {"zeus_job": trial.job_id, "dag_id": origin.dag_id, "task_id": origin.task_id}
    return {name: plain_name(value) or NONE for name, value in named.items()}


def _device(o: Observation, log: Sequence[Trial]) -> str:
    """The device of an attempt; OTHER where it is not among the first that the log names."""
    if o.device_model is None:
        return NONE
    models = dict.fromkeys(t.observation.device_model for t in log if t.observation.device_model is not None)
    if o.device_model not in list(models)[:MOST_DEVICES]:
        return OTHER
    return plain_name(o.device_model.replace(" ", "_")) or NONE


def _source(energy_source: str | None) -> str:
    return NONE if energy_source is None else energy_source if energy_source in SOURCES else OTHER
