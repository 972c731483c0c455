"""Replays by the product's own loop where the log may be wrong, and where each change that is detected is counted.

What a run costs is wrong in its row of the log alone: the bounds of a run are checked at true costs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import learn
from airflow_provider_zeus.simulation import driver
from airflow_provider_zeus.simulation.log import Log
from benchmarks.drifts import Drift

Misread = Callable[[Trial, random.Random], float]  # factor on energy and time that the log holds of a trial


class Watched(NamedTuple):
    """One replay; costs in ``log`` are true ones."""

    log: Log
    changes: int  # detected


def right(trial: Trial, rng: random.Random) -> float:
    """What was measured is true."""
    return 1.0


def given_up_times(factor: float) -> Misread:
    """EpochCost of a run that was given up is off by a factor; complete runs are measured right."""
    return lambda trial, rng: factor if trial.state is State.GIVEN_UP else 1.0


def noisy(sd: float) -> Misread:
    """EpochCost of every run has a log-normal error of its own."""
    return lambda trial, rng: rng.lognormvariate(0.0, sd)


def watched(drift: Drift, policy: str, seed: int, misread: Misread = right) -> Watched:
    """Replay a job whose log holds energies and times times ``misread``. Which epochs a run needs stays true."""
    rng, begun = random.Random(f"misread/{seed}"), set[int]()

    def learn_and_watch(belief: Belief, trial: Trial) -> Belief:
        after = learn(belief, _as_logged(trial, misread(trial, rng)))
        begun.update(change.since for change in after.changes)
        return after

    job = drift.before.job(policy=policy, expected_runs=drift.expected_runs)
    with patch.object(driver, "learn", learn_and_watch):
        log = driver.replay(drift.before, job, drift.recurrences, seed, drift.shifts)
    return Watched(log, len(begun))


def _as_logged(trial: Trial, factor: float) -> Trial:
    seen = trial.observation
    if factor == 1.0 or seen is None:
        return trial
    names = ("energy_j", "time_s", "excess_j", "excess_s")
    known = {name: value * factor for name in names if (value := getattr(seen, name)) is not None}
    return replace(trial, observation=replace(seen, **known))
