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
from airflow_provider_zeus.model.trial import Phase, ProfileSample, Trial
from airflow_provider_zeus.plugin.answer_parts import Source
from airflow_provider_zeus.plugin.charts.run_axis import HistoryBreak, run_key
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.reports.dataset import Dataset, RunId
from airflow_provider_zeus.reports.eta_choices import ETAS, EtaChoice, choice_at
from airflow_provider_zeus.reports.levers import Lever, levers
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision, Upcoming, upcoming
from airflow_provider_zeus.reports.pareto import OperatingPoint, pareto
from airflow_provider_zeus.reports.savings import Savings, saving
from airflow_provider_zeus.units import counted, devices


@dataclass(frozen=True, slots=True)
class JobAnalysis:
    """The dataset of a job, with its savings and the breaks in its history."""

    log: Dataset
    profiles: Sequence[ProfileSample]
    weights: Weights
    # Made once: parts that each decided for themselves could contradict each other.
    decided: NextDecision
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
        """Work all of it out.

        :param trials: also those of other versions of the job.
        :param profiles: of the device.
        :param live: live settings.
        """
        decided = NextDecision.of(log, profiles=profiles, trials=trials, settings=live)
        savings = saving(log, profiles=profiles, decided=decided)
        return cls(
            log=log,
            profiles=profiles,
            weights=Weights.of(log.job, log.device),
            decided=decided,
            saving=savings,
            next_run=upcoming(log, savings.base, decided, profiles=profiles),
            marks=_breaks(log, trials),
        )

    def levers_by(self, weights: Weights) -> Sequence[Lever]:
        """The saving by each lever, in the unit of these weights."""
        import numpy as np

        runs = [step.run for step in self.saving.steps]
        profiles = LimitProfiles.of(self.profiles)
        # The same draws each time: a page that is opened again shows the same intervals.
        rng = np.random.default_rng(0)
        return levers(runs, self.saving.base, profiles, weights=weights, rng=rng)

    @property
    def limit_w(self) -> float | None:
        """The power limit [W] of that size: the best one, else that of its newest run.

        None: none was read.
        """
        # The limit that the policy would set now may differ from the one of the last run.
        best = self.saving.best
        if best is not None and best.limit_w is not None:
            return best.limit_w
        return self.log.newest_limit_w(self.decided.settled.batch_size)

    @property
    def hardness(self) -> dict[RunId, float]:
        """How hard the slice of each run was; empty if nothing is estimated."""
        epochs = self.saving.base.epochs
        return epochs.hardness() if epochs else {}

    def front(self) -> tuple[OperatingPoint, ...]:
        """Energy against time, each run as on a typical slice."""
        return pareto(self.log, profiles=self.profiles, hardness=self.hardness)

    def choices(self) -> list[EtaChoice]:
        """The choice at the job's eta and those at others, by eta."""
        settled = self.decided.settled
        today = EtaChoice(
            eta=self.log.job.eta,
            batch_size=settled.batch_size,
            limit_w=self.limit_w,
            start=settled.start,
            pinned=settled.phase is Phase.PINNED,
        )
        # Today's choice is known from the decision itself, misses and deadline included.
        others = [eta for eta in ETAS if eta != today.eta]
        choices = [choice_at(eta, self.log, self.decided, profiles=self.profiles) for eta in others]
        return sorted([today, *choices], key=lambda choice: choice.eta)

    @property
    def source(self) -> Source:
        """The badge of all figures: they are of one device and energy source."""
        if self.log.where is None:
            return Source()
        _, _, source = self.log.where
        return words.badge([source])

    @property
    def device(self) -> str:
        """The device, for example "2 × V100"; empty if no trial has named it."""
        if self.log.where is None:
            return ""
        model, count, _ = self.log.where
        return devices(model, count)


def job_today(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job of the newest trial, with the live settings applied. Raises JobSpecError."""
    return max(trials, key=lambda t: t.number).job.with_settings(live)


def _breaks(log: Dataset, trials: Sequence[Trial]) -> list[HistoryBreak]:
    """The runs at which the data changed, then those at which the job's version or target did."""
    marks = []
    for change in log.belief().changes:
        # The trial itself may have been pruned, or be of a run that does not teach.
        first = next((trial for trial in log.trials if trial.number >= change.since), None)
        if first is not None:
            runs = counted(len(change.shown_by), "run")
            text = (
                f"The data changed: {runs} needed {math.exp(change.jump):.2g} × the epochs "
                "predicted; older runs count less from here on."
            )
            marks.append(HistoryBreak(run_key(first), "data changed", text))
    for before, after in pairwise(sorted(trials, key=lambda trial: trial.number)):
        old = before.spec
        new = after.spec
        version = new.get("job_version", "1")
        # A new version starts an empty history, whatever else changed with it.
        if old.get("job_version", "1") != version:
            text = f"New job version {version}: everything is learned again."
            marks.append(HistoryBreak(run_key(after), "new version", text))
        elif _target(old) != _target(new):
            text = f"New target {new.get('target')}: epochs are learned again."
            marks.append(HistoryBreak(run_key(after), "new target", text))
    return marks


def _target(spec: Mapping[str, Any]) -> object:
    """The target of a job; as it is written if another version wrote it."""
    try:
        return Target.parse(spec.get("target"))
    except JobSpecError:
        return spec.get("target")
