"""What runs saved, split by what saved it: batch size, limit, start, runs that trained nothing. Pure; needs numpy.

The baseline of a run is the default batch size at full power. Between it and what the run spent lies the same run at
full power: with its own batch sizes, at the highest limit of their profiles. From the baseline to that is the saving of
the batch size, from that to what was spent the saving of the limit. Both come from the same draws, so they add up.
Profiling is charged to the limit, attempts that were given up to the batch size. A run that was not needed saved its
whole baseline. Where trainings started from an earlier model, a part of the batch size's saving is the start's: against
the epochs that the model of the slices expects of a cold start at the same size; tries of a start are charged to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.reports.baseline import OURS, ROUNDING, THEIRS, Baseline, at_full_power, recosted
from airflow_provider_zeus.reports.dataset import RunTrials
from airflow_provider_zeus.reports.limit_profiles import RATIO_SD, LimitProfiles
from airflow_provider_zeus.reports.slice_epochs import DRAWS, estimates

if TYPE_CHECKING:
    import numpy as np

    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

BATCH_SIZE, LIMIT, SKIPPING, START = "Batch size", "Power limit", "Runs not needed", "Earlier model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What one lever saved, in the unit of the weights; below 0: lost."""

    name: str
    saved: Estimate


def levers(
    runs: Sequence[RunTrials], base: Baseline, profiled: LimitProfiles, weights: Weights, rng: np.random.Generator
) -> list[Lever]:
    """The saving of each lever over the runs; missing with its reason where not known.

    :param profiled: of the device, all limits.
    :param rng: draws how far the profiles may be off.
    """
    import numpy as np

    spent = [run.spent(weights) for run in runs]
    full = _at_full_power(runs, base, profiled, weights, rng)
    draws = base.draws(runs, weights)
    idle = np.array([run.not_needed for run in runs], dtype=bool)
    names = (BATCH_SIZE, LIMIT, SKIPPING) if idle.any() else (BATCH_SIZE, LIMIT)
    not_profiled = "what an attempt would have drawn at full power was not profiled"
    why = OURS if None in spent else not_profiled if full is None else base.why_not or (None if runs else "no run yet")
    if why is None and draws is None:
        why = THEIRS
    if why is not None or full is None or draws is None:
        return [Lever(name=name, saved=Estimate.missing(why or THEIRS)) for name in names]
    all_spent = sum(cost or 0.0 for cost in spent)
    started = _by_start(runs, base, profiled, weights)
    by_size = draws[:, ~idle].sum(1) - full
    saved_by = [by_size if started is None else by_size - started, full - all_spent, draws[:, idle].sum(1)]
    saved_by = saved_by[: len(names)]
    if started is not None:
        names, saved_by = (*names, START), [*saved_by, started]
    found = estimates(np.stack(saved_by, 1))
    least = ROUNDING * all_spent
    return [
        Lever(name=name, saved=saved.mapped(lambda v: v if abs(v) > least else 0.0))
        for name, saved in zip(names, found, strict=True)
    ]


def _by_start(runs: Sequence[RunTrials], base: Baseline, profiled: LimitProfiles, weights: Weights) -> Vector | None:
    """Draws of what starts from earlier models saved at full power; None where all started cold."""
    import numpy as np

    trials = [(run.id, t) for run in runs for t in run.trials if t.observation.start not in (None, Start.COLD)]
    if not trials or base.epochs is None:
        return None
    saved: Vector = np.zeros(DRAWS)
    for run, trial in trials:
        b, o = trial.batch_size, trial.observation
        found = at_full_power(o, profiled, b, profiled.highest_w(b))
        cost = None if found is None else observed_cost(found, weights)
        if cost is None or not o.epochs or b not in base.epochs.sizes:
            continue
        cold = base.epochs.of(b)[:, base.epochs.column[run]] / o.epochs if trial.state.kept_model else 0.0
        saved += cost * (cold - 1.0)
    return saved


def _at_full_power(
    runs: Sequence[RunTrials], base: Baseline, profiled: LimitProfiles, weights: Weights, rng: np.random.Generator
) -> Vector | None:
    """Draws of what all attempts would have cost at full power; None where one was not profiled.

    How far a profile is off is one draw for each batch size: it is the same in all of its runs. That of the default is
    the baseline's. What ran at full power, or without a limit, is exact.
    """
    import numpy as np

    exact, drawn = 0.0, defaultdict[int, float](float)
    for trial in (trial for run in runs for trial in run.trials if trial.state is not State.NOT_NEEDED):
        b, o = trial.batch_size, trial.observation
        found = at_full_power(o, profiled, b, profiled.highest_w(b))
        cost = None if found is None else observed_cost(found, weights)
        if found is None or cost is None:
            return None
        if recosted(o, found):
            drawn[b] += cost
        else:
            exact += cost
    default = drawn.pop(base.batch_size, 0.0)
    off = np.exp(rng.normal(0.0, RATIO_SD, (DRAWS, len(drawn))))
    total: Vector = off @ np.array(list(drawn.values())) + base.off * default + exact
    return total
