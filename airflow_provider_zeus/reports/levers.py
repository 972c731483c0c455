"""Savings of runs by lever: batch size, limit, start, runs that trained nothing. Pure; needs numpy.

The baseline of a run is the default batch size at full power. Between it and the run's own cost
lies the same run at full power: with its own batch sizes, at the highest limit of their profiles.
From the baseline to that is the saving of the batch size, from that to the own cost the saving of
the limit. Both come from the same draws, so they add up. Profiling is charged to the limit,
attempts that were given up to the batch size. A run that was not needed saved its whole baseline.
If trainings started from an earlier model, a part of the batch size's saving is the start's:
against the epochs that the model of the slices expects of a cold start at the same size; tries of a
start are charged to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.reports.baseline import (
    OURS,
    ROUNDING,
    THEIRS,
    Baseline,
    at_full_power,
    recosted,
    rounded,
)
from airflow_provider_zeus.reports.dataset import RunTrials, total
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.slice_epochs import DRAWS, estimates

if TYPE_CHECKING:
    import numpy as np

    from airflow_provider_zeus.reports.slice_paths import Vector

BATCH_SIZE = "Batch size"
LIMIT = "Power limit"
SKIPPING = "Runs not needed"
START = "Earlier model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """The saving of one lever, in the unit of the weights; below 0: lost."""

    name: str
    saved: Estimate


def levers(
    runs: Sequence[RunTrials],
    base: Baseline,
    profiled: LimitProfiles,
    weights: Weights,
    rng: np.random.Generator,
) -> list[Lever]:
    """The saving of each lever over the runs; missing with its reason if not known.

    :param profiled: of the device, all limits.
    :param rng: draws how far the profiles may be off.
    """
    import numpy as np

    spent = total(run.spent(weights) for run in runs)
    full = _at_full_power(runs, base, profiled, weights, rng)
    draws = base.draws(runs, weights)
    # A run that was skipped saved all of its default, by no batch size.
    idle = np.array([run.not_needed for run in runs], dtype=bool)
    if not runs or spent is None or full is None or draws is None:
        why = _why_not(base, runs, spent=spent, full=full)
        names = [BATCH_SIZE, LIMIT]
        if idle.any():
            names.append(SKIPPING)
        return [Lever(name=name, saved=Estimate.missing(why)) for name in names]
    saved_by = {
        BATCH_SIZE: draws[:, ~idle].sum(1) - full,
        LIMIT: full - spent,
    }
    if idle.any():
        saved_by[SKIPPING] = draws[:, idle].sum(1)
    started = _by_start(runs, base, profiled, weights)
    if started is not None:
        saved_by[BATCH_SIZE] -= started
        saved_by[START] = started
    least = ROUNDING * spent
    # Rows of the same draws, so that the levers add up.
    saved = estimates(np.stack([*saved_by.values()], 1))
    return [
        Lever(name=name, saved=one.mapped(partial(rounded, least=least)))
        for name, one in zip(saved_by, saved, strict=True)
    ]


def _why_not(
    base: Baseline, runs: Sequence[RunTrials], *, spent: float | None, full: Vector | None
) -> str:
    """Why the levers of these runs are not known."""
    if spent is None:
        return OURS
    if full is None:
        return "what an attempt would have drawn at full power was not profiled"
    if base.why_not:
        return base.why_not
    if not runs:
        return "no run yet"
    return THEIRS


def _by_start(
    runs: Sequence[RunTrials], base: Baseline, profiled: LimitProfiles, weights: Weights
) -> Vector | None:
    """Draws of the saving of starts from earlier models, at full power; None if all started
    cold.
    """
    import numpy as np

    trials = [t for run in runs for t in run.compared]
    started = [t for t in trials if t.observation.start not in (None, Start.COLD)]
    if not started or base.epochs is None:
        return None
    saved: Vector = np.zeros(DRAWS)
    for trial in started:
        b = trial.batch_size
        epochs = trial.observation.epochs
        full = _full_power_of(trial, profiled, weights)
        # A size that is new in the list has no estimate of a cold start.
        if full is None or not epochs or b not in base.epochs.sizes:
            continue
        if trial.state.kept_model:
            cold = base.epochs.of(b)[:, base.epochs.column[trial.recurrence]]
            # Cost grows with the epochs (Eq. 6): cold it would have been cold / epochs as much.
            saved += full.cost * (cold / epochs - 1.0)
        else:
            saved -= full.cost  # such a try paid for nothing
    return saved


class _FullPower(NamedTuple):
    """An attempt at full power."""

    cost: float
    limit_w: float | None
    by_profile: bool


def _full_power_of(trial: Trial, profiled: LimitProfiles, weights: Weights) -> _FullPower | None:
    """An attempt at full power; None if its cost there was not profiled."""
    full = at_full_power(trial.observation, profiled, trial.batch_size)
    if full is None:
        return None
    cost = observed_cost(full, weights)
    if cost is None:
        return None
    return _FullPower(cost, full.power_limit_w, recosted(trial.observation, full))


def _at_full_power(
    runs: Sequence[RunTrials],
    base: Baseline,
    profiled: LimitProfiles,
    weights: Weights,
    rng: np.random.Generator,
) -> Vector | None:
    """Draws of the cost of all attempts at full power; None if one was not profiled.

    How far a profile is off is one draw for each batch size: it is the same in all of its runs.
    That of the default is the baseline's. The cost of an attempt at full power, or without a limit,
    is exact.
    """
    import numpy as np

    exact = 0.0
    drawn = defaultdict[int, float](float)
    off_sds = defaultdict[int, float](float)
    for trial in chain.from_iterable(run.compared for run in runs):
        b = trial.batch_size
        full = _full_power_of(trial, profiled, weights)
        if full is None:
            return None
        if full.by_profile:
            drawn[b] += full.cost
            sd = profiled.ratio_sd(b, trial.observation.power_limit_w, full.limit_w)
            off_sds[b] = max(off_sds[b], sd)
        else:
            exact += full.cost
    # The default's own error is that of the baseline: drawn twice it would not cancel.
    default = drawn.pop(base.batch_size, 0.0)
    # profiles of two sizes are off independently
    off = np.exp(rng.normal(0.0, [off_sds[b] for b in drawn], (DRAWS, len(drawn))))
    costs: Vector = off @ np.array(list(drawn.values())) + base.off * default + exact
    return costs
