"""The tab of a run: from its trials to the answer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import Trial, TrialKey
from airflow_provider_zeus.plugin import costs, words
from airflow_provider_zeus.plugin.run_models import Part

NO_TRIAL = "This run has no Zeus trial: none of its tasks with a Zeus job has begun."

PartKey = tuple[str, str, int]  # job, task, map index


def parts_of(trials: Sequence[Trial]) -> dict[PartKey, list[Trial]]:
    """The trials of a run by job, task and map index, each in order of number."""
    parts: dict[PartKey, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.job_id, t.origin.task_id, t.origin.map_index, t.number)):
        parts.setdefault((trial.job_id, trial.origin.task_id, trial.origin.map_index), []).append(trial)
    return parts


def part(trials: Sequence[Trial], live: Mapping[str, Any], untold: Collection[TrialKey]) -> Part:
    """One part of the run, costed with the job's present eta."""
    last = trials[-1]
    job = ZeusJob.from_dict(last.spec).with_settings(live)
    seen = [t.observation for t in trials if t.observation.time_s is not None]
    mapped = last.origin.map_index if last.origin.map_index >= 0 else None
    return Part(
        job_id=last.job_id,
        task_id=last.origin.task_id,
        map_index=mapped,
        title=last.origin.task_id if mapped is None else f"{last.origin.task_id} [{mapped}]",
        source=words.badge([o.energy_source for o in seen]),
        facts=words.facts(job, costs.weights_of(job, seen[-1]) if seen else None),
        settings=words.settings(live),
        attempts=costs.details_of(trials, job, untold),
    )
