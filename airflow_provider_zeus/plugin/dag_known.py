"""What the log of one job says, worked out once for all parts of a DAG's tab. Pure; needs numpy, lazily."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.best_fixed import BestFixed, best_fixed
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.evidence import Evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.limits import Profiles
from airflow_provider_zeus.optimizer.saving import Saving, saving
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import ProfileSample, Trial
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.models import Source

RunKey = tuple[str, str, int]  # run id, task id, map index


@dataclass(frozen=True, slots=True)
class Mark:
    """From this run on something older no longer counts."""

    run: RunKey
    label: str  # in the chart
    text: str  # in a sentence


@dataclass(frozen=True, slots=True)
class Known:
    """The log with its fold, and what was saved."""

    log: Evidence
    profiles: Sequence[ProfileSample]
    weights: Weights
    saving: Saving
    best: BestFixed | None
    marks: Sequence[Mark]

    @classmethod
    def of(cls, trials: Sequence[Trial], log: Evidence, profiles: Sequence[ProfileSample]) -> Known:
        """``trials``: all of them, other versions of the job included; ``profiles``: of the log's device."""
        weights = Weights.of(log.job, log.device)
        size = log.belief().slice_size
        aimed = log.of_target()
        return cls(
            log=log,
            profiles=profiles,
            weights=weights,
            saving=saving(log, log.job, rng=random.Random(0), profiles=profiles),
            best=best_fixed(aimed, weights, size[1] if size else None, Profiles.of(profiles)),
            marks=[*_drifts(log), *_restarts(trials)],
        )

    @property
    def unit(self) -> str:
        """Of costs: J, or s where time alone counts."""
        return "s" if self.weights.time_alone else "J"

    @property
    def source(self) -> Source:
        """Badge of every figure in here: they are all of one device and source."""
        return words.badge([self.log.where[2]] if self.log.where else [])

    @property
    def whose(self) -> str:
        """The device."""
        if self.log.where is None:
            return ""
        model, count, _ = self.log.where
        return f"{count} × {model}" if count > 1 else model


def job_of(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job as its newest trial knew it, live settings applied."""
    return ZeusJob.from_dict(max(trials, key=lambda t: t.number).spec).with_settings(live)


def run_key(trial: Trial) -> RunKey:
    """Which run (and task, and map index) a trial belongs to."""
    return trial.origin.run_id, trial.origin.task_id, trial.origin.map_index


def left_out(counted: Mapping[str, int]) -> list[str]:
    """What the figures leave out, in sentences."""
    return [f"Left out: {n:,} trial{'s' if n > 1 else ''} {why}." for why, n in counted.items()]


def _drifts(log: Evidence) -> list[Mark]:
    marks = []
    for change in log.belief().changes:
        first = next((t for t in log.trials if t.number >= change.since), None)
        if first is not None:
            factor = f"{math.exp(change.jump):.2g}"
            runs = f"{len(change.told_by)} runs" if len(change.told_by) > 1 else "1 run"
            text = (
                f"The data changed: {runs} needed {factor} × the epochs predicted; epochs of older runs are forgotten."
            )
            marks.append(Mark(run_key(first), "data changed", text))
    return marks


def _restarts(trials: Sequence[Trial]) -> list[Mark]:
    """Where the job's version or its target changed."""
    marks = []
    ordered = sorted(trials, key=lambda t: t.number)
    for before, after in pairwise(ordered):
        was, now = before.spec, after.spec
        if was.get("job_version", "1") != now.get("job_version", "1"):
            text = f"New job version {now.get('job_version', '1')}: everything is learnt anew."
            marks.append(Mark(run_key(after), "new version", text))
        elif was.get("target") != now.get("target") and _target(was) != _target(now):
            text = f"New target {now.get('target')}: epochs are learnt anew."
            marks.append(Mark(run_key(after), "new target", text))
    return marks


def _target(spec: Mapping[str, Any]) -> object:
    try:
        return Target.parse(spec.get("target"))
    except JobSpecError:
        return spec.get("target")
