"""What runs would have cost with the default batch size at full power, and what they saved against it. Pure.

The baseline of a run is Epochs(default) on its slice (``slice_epochs.py``) x EpochCost(default) at the highest power
limit measured, for a slice of that size (Eq. 6). A run of the default below that limit is re-costed to it by its
profile, which may be off: one draw for the job.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, PlannedAttempt, State
from airflow_provider_zeus.optimizer.arms import run_variance
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.reports.dataset import Dataset, RunId, RunTrials, total
from airflow_provider_zeus.reports.limit_profiles import RATIO_SD, SAME_W, LimitProfiles, same_limit
from airflow_provider_zeus.reports.slice_epochs import DRAWS, SliceEpochs, estimate, slice_epochs

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

NEWEST_RUNS = 16  # of a batch size: their mean says what an epoch of it takes
OLD = "judged by an old run of"  # the doubt of a saving, wherever it is shown; it is not green there
OURS = "a figure of one of its attempts is not known"
ROUNDING = 1e-6  # relative difference up to which two costs are the same
THEIRS = "the size of its slice or its energy is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Sums over runs in one unit: ``baseline - spent = saved`` and ``saved + exploration = settled``; below 0: lost.

    A run that left no model has a baseline of 0: all of it is lost.
    """

    unit: str  # "J" or "s"
    spent: float | None
    baseline: Estimate
    saved: Estimate
    exploration: float | None  # part of ``spent`` that left no model: given up, failed, excess of profiling
    settled: Estimate

    def times(self, factor: float) -> Saved:
        """The same in another unit; ``factor`` is at least 0."""
        return replace(
            self,
            spent=None if self.spent is None else self.spent * factor,
            baseline=self.baseline.times(factor),
            saved=self.saved.times(factor),
            exploration=None if self.exploration is None else self.exploration * factor,
            settled=self.settled.times(factor),
        )


def own_rng(log: Dataset) -> random.Random:
    """Seeds by DAG and job: all that tells a saving tells the same one, and those of two jobs are independent."""
    newest = log.lessons[-1] if log.lessons else None
    return random.Random(f"{newest.origin.dag_id} {newest.job_id}" if newest else 0)


class EpochCost(NamedTuple):
    """EpochCost [J; s where time alone counts] as two parts."""

    measured: float  # by runs at full power
    profiled: float  # by runs that their profile re-costed


@dataclass(frozen=True, slots=True)
class Baseline:
    """The default batch size at full power: the epochs of each run, and what one epoch draws."""

    batch_size: int
    epochs: SliceEpochs | None  # of all batch sizes; None: the log has no trial
    default_epochs: Vector | None  # (draw, run)
    ended: Collection[RunId]  # runs in which the default itself trained to an end
    why_not: str | None  # why nothing can be compared
    rates: Mapping[
        RunId, Rates
    ]  # of the newest runs of the default; where it has not run here, those before it named sizes
    own_rates: Mapping[RunId, Rates]  # of the default's own run, with its pauses, where it trained to an end
    by_profile: Collection[RunId]  # of these, the runs that the profile re-costed to full power
    off: Vector  # draws of how many times what the profile says the default draws at full power; their mean is 1
    full_power_w: float | None  # None: the device has no limit
    belief: Belief
    device: DeviceInfo | None

    @classmethod
    def of(cls, log: Dataset, profiled: LimitProfiles, rng: random.Random | None = None) -> Baseline:
        """Estimate the default from the log. Needs numpy.

        :param rng: seeds the draws; default: :func:`own_rng`.
        """
        import numpy as np

        rng = rng or own_rng(log)

        b = log.job.default_batch_size
        full_w = profiled.highest_w(b)
        seen = [t for t in log.here() if t.batch_size == b and t.state.kept_model]
        full = [(t.recurrence, at_full_power(t.observation, profiled, b, full_w)) for t in seen]
        own = {run: r for run, o in full if o is not None and (r := Rates.of(o)) is not None}
        changed = zip(seen, full, strict=True)
        by_profile = frozenset(run for t, (run, o) in changed if o is not None and recosted(t.observation, o))
        rates = dict(list(own.items())[-NEWEST_RUNS:])
        paid = {
            run: r for run, o in full if o is not None and (r := Rates.of(replace(o, paused_j=None, paused_s=None)))
        }
        why_not = None
        if not any(t.batch_size == b and t.state is State.CONVERGED for t in log.trials):
            why_not = f"no run of the default batch size {b} has reached the target"
        elif not seen and not rates:
            why_not = f"the default batch size {b} has not run on this device"
        elif not rates:
            why_not = f"what the default batch size {b} draws at full power was neither measured nor profiled"
        draws = np.random.default_rng(rng.getrandbits(64))
        epochs = slice_epochs(log, draws)
        found, ended = (None, {}) if epochs is None else (epochs.of(b), epochs.ended(b))
        off = np.exp(draws.normal(0.0, RATIO_SD, DRAWS))
        return cls(
            batch_size=b,
            epochs=epochs,
            default_epochs=found,
            ended=frozenset(ended),
            why_not=why_not,
            rates=rates,
            own_rates=paid,
            by_profile=by_profile,
            off=off / off.mean(),
            full_power_w=full_w,
            belief=log.belief(),
            device=log.device,
        )

    def epoch_cost(
        self, samples_per_epoch: float | None, weights: Weights, rates: Mapping[RunId, Rates] | None = None
    ) -> EpochCost | None:
        """EpochCost at full power for a slice of this size; None where not known.

        :param rates: of the runs that tell it; default: the newest of the default.
        """
        found = (self.rates if rates is None else rates).items()
        costs = {run: c for run, r in found if (c := r.epoch_cost(samples_per_epoch, weights)) is not None}
        if not costs:
            return None
        profiled = math.fsum(c for run, c in costs.items() if run in self.by_profile)
        measured = math.fsum(c for run, c in costs.items() if run not in self.by_profile)
        return EpochCost(measured / len(costs), profiled / len(costs))

    def epoch_costs(self, runs: Sequence[RunTrials], weights: Weights) -> list[EpochCost | None]:
        """EpochCost for the slice of each run; 0 for a run without a model. Computed once for each size of a slice."""
        usual = self.belief.slice_size[1] if self.belief.slice_size else None
        sizes = {r.id: r.samples_per_epoch or (usual if r.not_needed else None) for r in runs if r.kept}
        of_size = {size: self.epoch_cost(size, weights) for size in {*sizes.values()}}

        def cost(run: RunTrials) -> EpochCost | None:
            own = {run.id: self.own_rates[run.id]} if run.id in self.own_rates else {}
            return self.epoch_cost(run.samples_per_epoch, weights, own) or of_size[sizes[run.id]]

        return [cost(run) if run.kept else EpochCost(0.0, 0.0) for run in runs]

    @property
    def old_since(self) -> int | None:
        """Number of the first trial measured against an old default: it has not run since the data changed, or within
        the window. None: it is not old.
        """
        since = max(self.belief.era, self.belief.window_start())
        return since if self.belief.newest_runs.get(self.batch_size, 0) < since else None

    def draws(self, runs: Sequence[RunTrials], weights: Weights) -> Vector | None:
        """Draws (draw, run) of what the default would have cost; None where that of a run is not known."""
        import numpy as np

        costs = self.epoch_costs(runs, weights)
        if self.why_not or self.epochs is None or self.default_epochs is None or None in costs:
            return None
        columns = [self.epochs.column[run.id] for run in runs]
        measured, profiled = np.array(costs, dtype=float).reshape(-1, 2).T
        found: Vector = self.default_epochs[:, columns] * (measured + self.off[:, None] * profiled)
        variance, of_mean = run_variance(self.belief, self.device, weights)[0], 1.0 / len(self.rates)
        if variance:
            varies = np.array([run.id not in self.ended for run in runs])
            luck = self.epochs.luck[:, columns] + self.epochs.luck[:, -1:] * math.sqrt(of_mean)
            # EpochCost is the mean of its runs, not their median
            found *= np.exp((math.sqrt(variance) * luck - variance * (1.0 + of_mean) / 2) * varies)
        return found

    def compare(self, runs: Sequence[RunTrials], weights: Weights, unit: str, draws: Vector | None = None) -> Saved:
        """Sum what the runs spent and what the default would have spent; missing with the reason where not known.

        :param draws: what :meth:`draws` gives for these runs and weights, where that is known already.
        """
        spent = total(r.spent(weights) for r in runs)
        exploration = total(r.exploration(weights) for r in runs)
        baseline = self._baseline(runs, weights, spent, draws)
        lost_unknown = spent is None and baseline.value is not None  # a run without a model: what it lost is not known
        saved = Estimate.missing(OURS) if lost_unknown else less(baseline, spent or 0.0)
        least = ROUNDING * (spent or 0.0)
        settled = saved.plus(exploration or 0.0).mapped(lambda cost: 0.0 if abs(cost) <= least else cost)
        if exploration is None and saved.value is not None:
            settled = Estimate.missing("what exploration cost is not known")
        return Saved(unit=unit, spent=spent, baseline=baseline, saved=saved, exploration=exploration, settled=settled)

    def _baseline(
        self, runs: Sequence[RunTrials], weights: Weights, spent: float | None, draws: Vector | None
    ) -> Estimate:
        if runs and not any(r.kept for r in runs):  # all of it is lost, even where the default is not known
            return Estimate(0.0, 0.0, 0.0)
        if self.why_not:
            return Estimate.missing(self.why_not)
        if not runs:
            return Estimate.missing("no run has ended yet")
        if spent is not None and draws is None:
            draws = self.draws(runs, weights)
        if spent is None or draws is None:
            return Estimate.missing(OURS if spent is None else THEIRS)
        return estimate(draws.sum(1))


def less(baseline: Estimate, spent: float) -> Estimate:
    """What was saved; 0, not what rounding leaves, where the default itself ran and spent the same."""
    return baseline.mapped(lambda cost: 0.0 if math.isclose(cost, spent, rel_tol=ROUNDING) else cost - spent)


def at_full_power(o: Observation, profiled: LimitProfiles, b: int, full_w: float | None) -> Observation | None:
    """The trial at full power, by the profile of its batch size; None where that is not known.

    One on a device without a limit ran at full power anyway.

    :param full_w: the highest limit of the profile [W]; None: there is none.
    """
    if o.power_limit_w is None:
        return o
    if full_w is not None:
        return profiled.recosted(b, o, full_w)
    highest_w = None if o.max_power_w is None else o.max_power_w / (o.device_count or 1)
    return o if highest_w is not None and o.power_limit_w >= highest_w - SAME_W else None


def recosted(o: Observation, full: Observation) -> bool:
    """Whether what a trial drew at full power is known by a profile alone. ``full``: by :func:`at_full_power`."""
    return o.power_limit_w is not None and not same_limit(full.power_limit_w, o.power_limit_w)


@dataclass(frozen=True, slots=True)
class BestFixed:
    """One batch size on one device, without what profiling cost."""

    batch_size: int
    limit_w: float | None  # None: the limits that its runs had
    epochs: Mapping[RunId, float]  # expected, or its own, on the slice of each run
    rates: tuple[Rates, ...]

    def epoch_cost(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """EpochCost [J; s where time alone counts] on a slice of this size; None where not known."""
        costs = [c for r in self.rates if (c := r.epoch_cost(samples_per_epoch, weights)) is not None]
        return math.fsum(costs) / len(costs) if costs else None

    def run(self, run: RunId, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """Cost of one run [J; s where time alone counts] on its slice of this size; None where not known."""
        epoch_cost = self.epoch_cost(samples_per_epoch, weights)
        return None if epoch_cost is None or run not in self.epochs else self.epochs[run] * epoch_cost


def fixed(
    planned: PlannedAttempt, log: Dataset, base: Baseline, weights: Weights, profiled: LimitProfiles
) -> BestFixed | None:
    """The batch size of an attempt; None where it has not run on this device, or never reached the job's target."""
    b, runs = planned.batch_size, log.of_target()
    reached = any(t.batch_size == b and t.state is State.CONVERGED for t in runs.trials)
    if base.epochs is None or not reached:
        return None
    best_w = profiled.best_w(b, hurried(weights, planned))
    seen = [t.observation for t in runs.here() if t.batch_size == b and t.state.kept_model]
    at_best = [] if best_w is None else [m for o in seen if (m := profiled.recosted(b, o, best_w)) is not None]
    rates = tuple([r for o in at_best or seen if (r := Rates.of(o)) is not None][-NEWEST_RUNS:])
    if not rates:
        return None
    epochs = dict(zip(base.epochs.column, base.epochs.of(b).mean(0).tolist(), strict=True))
    return BestFixed(b, best_w if at_best else None, epochs, rates)
