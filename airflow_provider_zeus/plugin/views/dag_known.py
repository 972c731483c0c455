"""The analysis of one job's log that all parts of a DAG's tab share. Pure; needs numpy, lazily."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import ProfileSample, Trial
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Source
from airflow_provider_zeus.reports.dataset import Dataset, RunId
from airflow_provider_zeus.reports.eta_choices import ETAS, EtaChoice, choice_at
from airflow_provider_zeus.reports.levers import Lever, levers
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision, Upcoming, upcoming
from airflow_provider_zeus.reports.pareto import OperatingPoint, pareto
from airflow_provider_zeus.reports.savings import Savings, saving
from airflow_provider_zeus.units import counted, devices

RunKey = tuple[str, str, int]  # run id, task id, map index


@dataclass(frozen=True, slots=True)
class HistoryBreak:
    """A run from which on older runs no longer count."""

    run: RunKey
    label: str  # in the chart
    text: str  # in a sentence


@dataclass(frozen=True, slots=True)
class JobAnalysis:
    """The dataset of a job, with what was saved and the breaks in its history."""

    log: Dataset
    profiles: Sequence[ProfileSample]
    weights: Weights
    decided: NextDecision  # what all parts say of the next run, and of the size that runs where nothing is tried
    saving: Savings
    next_run: Upcoming
    marks: Sequence[HistoryBreak]

    @classmethod
    def of(
        cls,
        trials: Sequence[Trial],
        log: Dataset,
        profiles: Sequence[ProfileSample],
        live: Mapping[str, Any] | None = None,
    ) -> JobAnalysis:
        """``trials``: also those of other versions of the job; ``profiles``: of the device; ``live``: live settings."""
        weights = Weights.of(log.job, log.device)
        decided = NextDecision.of(log, profiles=profiles, trials=trials, settings=live)
        found = saving(log, profiles=profiles, decided=decided)
        return cls(
            log=log,
            profiles=profiles,
            weights=weights,
            decided=decided,
            saving=found,
            next_run=upcoming(log, found.base, decided, profiles=profiles),
            marks=_breaks(log, trials),
        )

    def levers_by(self, weights: Weights) -> Sequence[Lever]:
        """What each lever saved, in the unit of these weights."""
        import numpy as np

        runs = [step.run for step in self.saving.steps]
        return levers(runs, self.saving.base, LimitProfiles.of(self.profiles), weights, np.random.default_rng(0))

    @property
    def limit_w(self) -> float | None:
        """The power limit [W] of that size: the best one, else that of its newest run; None: none was read."""
        best_w = None if self.saving.best is None else self.saving.best.limit_w
        return self.log.newest_limit_w(self.decided.settled.batch_size) if best_w is None else best_w

    @property
    def hardness(self) -> dict[RunId, float]:
        """How hard the slice of each run was; empty where nothing is estimated."""
        epochs = self.saving.base.epochs
        return epochs.hardness() if epochs else {}

    def front(self) -> tuple[OperatingPoint, ...]:
        """Energy against time, each run as on a typical slice."""
        return pareto(self.log, profiles=self.profiles, hardness=self.hardness)

    def choices(self) -> list[EtaChoice]:
        """What runs at the job's eta and what would run at others, by eta."""
        settled = self.decided.settled
        today = EtaChoice(
            eta=self.log.job.eta, batch_size=settled.batch_size, limit_w=self.limit_w, start=settled.start
        )
        others = [eta for eta in ETAS if eta != today.eta]
        choices = [choice_at(eta, self.log, self.decided, profiles=self.profiles) for eta in others]
        return sorted([today, *choices], key=lambda choice: choice.eta)

    @property
    def source(self) -> Source:
        """The badge of all figures: they are of one device and energy source."""
        return words.badge([self.log.where[2]] if self.log.where else [])

    @property
    def device(self) -> str:
        """The device, as "2 × V100"; empty where no trial has named it."""
        return devices(*self.log.where[:2]) if self.log.where else ""


def job_today(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job of the newest trial, with the live settings applied. Raises JobSpecError."""
    return max(trials, key=lambda t: t.number).job.with_settings(live)


def run_key(trial: Trial) -> RunKey:
    """The run (and task, and map index) that a trial belongs to."""
    return trial.origin.run_id, trial.origin.task_id, trial.origin.map_index


def _breaks(log: Dataset, trials: Sequence[Trial]) -> list[HistoryBreak]:
    """Where the optimizer detected that the data changed; then where the job's version or its target changed."""

    def target(spec: Mapping[str, Any]) -> object:
        try:
            return Target.parse(spec.get("target"))
        except JobSpecError:
            return spec.get("target")

    marks = []
    for change in log.belief().changes:
        first = next((t for t in log.trials if t.number >= change.since), None)
        if first is not None:
            runs, factor = counted(len(change.shown_by), "run"), f"{math.exp(change.jump):.2g}"
            text = (
                f"The data changed: {runs} needed {factor} × the epochs predicted; older runs count less from here on."
            )
            marks.append(HistoryBreak(run_key(first), "data changed", text))
    for before, after in pairwise(sorted(trials, key=lambda t: t.number)):
        old, new = before.spec, after.spec
        if old.get("job_version", "1") != new.get("job_version", "1"):
            text = f"New job version {new.get('job_version', '1')}: everything is learned again."
            marks.append(HistoryBreak(run_key(after), "new version", text))
        elif old.get("target") != new.get("target") and target(old) != target(new):
            text = f"New target {new.get('target')}: epochs are learned again."
            marks.append(HistoryBreak(run_key(after), "new target", text))
    return marks
