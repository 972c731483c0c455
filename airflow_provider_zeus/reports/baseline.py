"""The cost of runs with the default batch size at full power, and their savings against it. Pure.

The baseline of a run is Epochs(default) on its slice (``slice_epochs.py``) x EpochCost(default) at
the highest power limit measured, for a slice of that size (Eq. 6). A run of the default below that
limit is re-costed to it by its profile, which may be off: one draw for the job.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, PlannedAttempt
from airflow_provider_zeus.optimizer.arms import run_variance
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.reports.dataset import Dataset, RunId, RunTrials, total
from airflow_provider_zeus.reports.limit_profiles import SAME_W, LimitProfiles, same_limit
from airflow_provider_zeus.reports.slice_epochs import DRAWS, SliceEpochs, estimate, slice_epochs

if TYPE_CHECKING:
    from airflow_provider_zeus.reports.slice_paths import Vector

NEWEST_RUNS = 16  # hardware and code change: older runs say little of the present EpochCost
# Pages look for these words: a saving with this doubt is not green, as it may be none.
OLD = "judged by an old run of"
FAILED = "no model was left, and what failed is compared with nothing"
OURS = "a figure of one of its attempts is not known"
ROUNDING = 1e-6  # sums in another order differ in their last digits
THEIRS = "the size of its slice or its energy is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Sums over runs in one unit: ``baseline - spent = saved`` and ``saved + exploration =
    settled``; below 0: lost.

    A run that left no model has a baseline of 0: the cost of all that it tried is lost.
    """

    unit: str
    spent: float | None
    baseline: Estimate
    saved: Estimate
    # Told apart: given up, failed and profiling are the price of learning, not of a bad choice.
    exploration: float | None
    settled: Estimate


def own_rng(log: Dataset) -> random.Random:
    """Seeds by DAG and job: all that tells a saving tells the same one, and those of two jobs are
    independent.
    """
    # An empty log has no name to seed by.
    if not log.lessons:
        return random.Random(0)
    newest = log.lessons[-1]
    return random.Random(f"{newest.origin.dag_id} {newest.job_id}")


def _why_unknown(log: Dataset, *, ran_here: bool, is_priced: bool) -> str | None:
    """Why the cost of the default is not known; None if it is.

    :param ran_here: whether the default left a model on this device.
    :param is_priced: whether its cost at full power is known of at least one such run.
    """
    b = log.job.default_batch_size
    # In the order in which a job overcomes them: the first one is what it waits for.
    if not log.has_reached(b):
        return f"no run of the default batch size {b} has reached the target"
    if not ran_here:
        return f"the default batch size {b} has not run on this device"
    if not is_priced:
        return (
            f"what the default batch size {b} draws at full power was neither measured nor profiled"
        )
    return None


class EpochCost(NamedTuple):
    """EpochCost [J; s if time alone counts] as two parts."""

    measured: float  # measured at full power, so without the error of a profile
    profiled: float  # re-costed by one profile, whose error they share


@dataclass(frozen=True, slots=True)
class Baseline:
    """The default batch size at full power: the epochs of each run, and the EpochCost."""

    batch_size: int
    # the epochs of other sizes tell the difficulty of a slice; None: the log has no trial
    epochs: SliceEpochs | None
    default_epochs: Vector | None
    ended: Collection[RunId]  # in these the default itself ran: nothing is estimated
    why_not: str | None  # a saving without a baseline would be made up
    rates: Mapping[RunId, Rates]
    # If the default itself ran, its pauses were paid.
    own_rates: Mapping[RunId, Rates]
    by_profile: Collection[RunId]  # these share the error of the profile
    # One profile re-costs all runs: its error is one factor of them all, with a mean of 1.
    off: Vector
    full_power_w: float | None
    belief: Belief
    device: DeviceInfo | None

    @classmethod
    def of(
        cls, log: Dataset, profiled: LimitProfiles, rng: random.Random | None = None
    ) -> Baseline:
        """Estimate the default from the log. Needs numpy.

        :param rng: seeds the draws; default: :func:`own_rng`.
        """
        import numpy as np

        b = log.job.default_batch_size
        full_w = profiled.highest_w(b)
        rates: dict[RunId, Rates] = {}
        own_rates: dict[RunId, Rates] = {}
        by_profile = set()
        off_sd = 0.0
        trials = log.kept(b)
        for trial in trials:
            run = trial.recurrence
            o = trial.observation
            # A run at a lower limit would make the default look cheaper than it is.
            full = at_full_power(o, profiled, b)
            if full is None:
                continue
            if recosted(o, full):
                by_profile.add(run)
                # one profile re-costs all of these runs, so they share one error
                off_sd = max(off_sd, profiled.ratio_sd(b, o.power_limit_w, full_w))
            usual = Rates.of(full)
            if usual is not None:
                rates[run] = usual
            # if the default itself ran, its pauses were paid: they stay in its cost
            paid = Rates.of(replace(full, paused_j=None, paused_s=None))
            if paid is not None:
                own_rates[run] = paid
        # Dictionaries keep their order: the last ones are the newest.
        newest = list(rates)[-NEWEST_RUNS:]
        rng = rng or own_rng(log)
        draws = np.random.default_rng(rng.getrandbits(64))
        epochs = slice_epochs(log, draws)
        default_epochs = None
        ended = frozenset[RunId]()
        if epochs is not None:
            default_epochs = epochs.of(b)
            ended = frozenset(epochs.ended(b))
        # A factor, since a profile errs by a share.
        off = np.exp(draws.normal(0.0, off_sd, DRAWS))
        return cls(
            batch_size=b,
            epochs=epochs,
            default_epochs=default_epochs,
            ended=ended,
            why_not=_why_unknown(log, ran_here=bool(trials), is_priced=bool(rates)),
            rates={run: rates[run] for run in newest},
            own_rates=own_rates,
            by_profile=by_profile,
            off=off / off.mean(),  # exp of a normal has a mean above 1: a dearer default
            full_power_w=full_w,
            belief=log.belief(),
            device=log.device,
        )

    def epoch_cost(
        self,
        samples_per_epoch: float | None,
        weights: Weights,
        rates: Mapping[RunId, Rates] | None = None,
    ) -> EpochCost | None:
        """EpochCost at full power for a slice of this size; None if not known.

        :param rates: of the runs that tell it; default: the newest of the default.
        """
        measured = []
        profiled = []
        if rates is None:
            rates = self.rates
        for run, of_run in rates.items():
            cost = of_run.epoch_cost(samples_per_epoch, weights)
            if cost is None:
                continue
            if run in self.by_profile:
                profiled.append(cost)
            else:
                measured.append(cost)
        # One mean over both kinds, in two parts: only one of them has the error of a profile.
        count = len(measured) + len(profiled)
        if not count:
            return None
        return EpochCost(math.fsum(measured) / count, math.fsum(profiled) / count)

    def epoch_costs(self, runs: Sequence[RunTrials], weights: Weights) -> list[EpochCost | None]:
        """EpochCost for the slice of each run; 0 for a run without a model.

        Computed once for each size of a slice.
        """
        of_size: dict[float | None, EpochCost | None] = {}
        costs: list[EpochCost | None] = []
        for run in runs:
            if not run.kept:
                costs.append(EpochCost(0.0, 0.0))
                continue
            own = None
            # if the default itself ran, its own cost is the baseline, and not the mean
            if run.id in self.own_rates:
                rates = {run.id: self.own_rates[run.id]}
                own = self.epoch_cost(run.samples_per_epoch, weights, rates)
            if own is not None:
                costs.append(own)
                continue
            size = run.samples_per_epoch
            # it loaded no data, so nothing counted its slice
            if size is None and run.not_needed:
                size = self.usual_size
            if size not in of_size:
                of_size[size] = self.epoch_cost(size, weights)
            costs.append(of_size[size])
        return costs

    @property
    def usual_size(self) -> float | None:
        """Samples of a slice, as the belief has it."""
        if self.belief.slice_size is None:
            return None
        _, samples = self.belief.slice_size
        return samples

    @property
    def doubt(self) -> str | None:
        """Why no run but the default's own is compared: one run of it tells little.

        None: it has run again.
        """
        # A default that was given up later costs at least what is known.
        if len(self.ended) != 1 or self.at_least:
            return None
        return f"what {self.batch_size} takes is known from one run of it"

    def doubt_of(self, runs: Sequence[RunTrials]) -> str | None:
        """The doubt, unless the default itself ended in all of these runs."""
        if all(run.id in self.ended for run in runs):
            return None
        return self.doubt

    def covers(self, runs: Sequence[RunTrials]) -> bool:
        """Whether the epochs of the default are known for all of these runs."""
        return self.epochs is not None and all(run.id in self.epochs.column for run in runs)

    @property
    def at_least(self) -> bool:
        """Whether the default was given up when it ran again, so that its known epochs are a lower
        bound.
        """
        if self.epochs is None or len(self.ended) != 1:
            return False
        return self.epochs.given_up(self.batch_size)

    @property
    def old_since(self) -> int | None:
        """Number of the first trial measured against an old default: it has not run since the data
        changed, or within the window. None: it is not old.
        """
        # A run from before either of them says little of the present default.
        since = max(self.belief.era, self.belief.window_start())
        if self.belief.newest_runs.get(self.batch_size, 0) >= since:
            return None
        return since

    def draws(self, runs: Sequence[RunTrials], weights: Weights) -> Vector | None:
        """Draws (draw, run) of the cost of the default; None if that of a run is not known."""
        import numpy as np

        costs = self.epoch_costs(runs, weights)
        if self.why_not or None in costs:
            return None
        if self.epochs is None or self.default_epochs is None:
            return None
        columns = [self.epochs.column[run.id] for run in runs]
        measured, profiled = np.array(costs, dtype=float).reshape(-1, 2).T
        epoch_costs = measured + self.off[:, None] * profiled
        draws: Vector = self.default_epochs[:, columns] * epoch_costs
        # The same default costs more or less from run to run.
        variance, _ = run_variance(self.belief, self.device, weights)
        of_mean = 1.0 / len(self.rates)
        if variance:
            # a run of the default has its own measured cost, without luck
            varies = np.array([run.id not in self.ended for run in runs])
            noise = self.epochs.cost_noise
            luck = noise[:, columns] + noise[:, -1:] * math.sqrt(of_mean)
            # EpochCost is the mean of its runs, not their median
            to_mean = variance * (1.0 + of_mean) / 2
            draws *= np.exp((math.sqrt(variance) * luck - to_mean) * varies)
        return draws

    def compare(
        self, runs: Sequence[RunTrials], weights: Weights, unit: str, draws: Vector | None = None
    ) -> Saved:
        """Sums of the runs' costs and of the default's; missing, with the reason, if not known.

        :param draws: :meth:`draws` of these runs and weights; default: they are drawn here.
        """
        spent = total(r.spent(weights) for r in runs)
        exploration = total(r.exploration(weights) for r in runs)
        baseline = self._baseline(runs, weights, spent, draws)
        if spent is None:
            saved = baseline
            # runs without a model have a baseline of 0, but their loss is not known
            if baseline.value is not None:
                saved = Estimate.missing(OURS)
        else:
            saved = less(baseline, spent)
        if exploration is not None:
            # what rounding leaves is neither a loss nor a saving
            settled = saved.plus(exploration).mapped(
                partial(rounded, least=ROUNDING * (spent or 0.0))
            )
        elif saved.value is not None:
            settled = Estimate.missing("what exploration cost is not known")
        else:
            settled = saved
        return Saved(
            unit=unit,
            spent=spent,
            baseline=baseline,
            saved=saved,
            exploration=exploration,
            settled=settled,
        )

    def _baseline(
        self, runs: Sequence[RunTrials], weights: Weights, spent: float | None, draws: Vector | None
    ) -> Estimate:
        if not runs:
            return Estimate.missing(self.why_not or "no run has ended yet")
        if not any(r.kept for r in runs):
            if not any(r.compared for r in runs):
                return Estimate.missing(FAILED)
            # all that was tried is lost, even if the default is not known
            return Estimate(0.0, 0.0, 0.0)
        if self.why_not:
            return Estimate.missing(self.why_not)
        if spent is None:
            return Estimate.missing(OURS)
        if draws is None:
            draws = self.draws(runs, weights)
        if draws is None:
            return Estimate.missing(THEIRS)
        return estimate(draws.sum(1))


def less(baseline: Estimate, spent: float) -> Estimate:
    """The saving; exactly 0 if the default itself ran and spent the same, up to rounding."""

    def less_spent(cost: float) -> float:
        if math.isclose(cost, spent, rel_tol=ROUNDING):
            return 0.0
        return cost - spent

    return baseline.mapped(less_spent)


def rounded(cost: float, least: float) -> float:
    """The cost, or 0 if it is at most ``least``, which rounding leaves."""
    # Sums of equal parts differ in their last digits.
    if abs(cost) <= least:
        return 0.0
    return cost


def at_full_power(o: Observation, profiled: LimitProfiles, b: int) -> Observation | None:
    """The trial at full power, by the profile of its batch size; None if that is not known.

    One on a device without a limit ran at full power anyway.
    """
    if o.power_limit_w is None:
        return o
    full_w = profiled.highest_w(b)
    if full_w is not None:
        return profiled.recosted(b, o, full_w)
    # Nobody knows whether that limit was the highest.
    if o.max_power_w is None:
        return None
    highest_w = o.max_power_w / o.devices
    if o.power_limit_w < highest_w - SAME_W:
        return None
    return o


def recosted(o: Observation, full: Observation) -> bool:
    """Whether the cost of a trial at full power is known by a profile alone.

    ``full``: by :func:`at_full_power`.
    """
    return o.power_limit_w is not None and not same_limit(full.power_limit_w, o.power_limit_w)


@dataclass(frozen=True, slots=True)
class BestFixed:
    """One batch size on one device, without the excess of profiling.

    :param limit_w: None: the limits that its runs had.
    :param epochs: its own, or expected, on the slice of each run.
    """

    batch_size: int
    limit_w: float | None
    # a run of another size says only what this one is expected to need
    epochs: Mapping[RunId, float]
    rates: tuple[Rates, ...]

    def epoch_cost(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """EpochCost [J; s if time alone counts] on a slice of this size; None if not known."""
        of_runs = [rates.epoch_cost(samples_per_epoch, weights) for rates in self.rates]
        costs = known_values(of_runs)
        if not costs:
            return None
        return math.fsum(costs) / len(costs)

    def run(self, run: RunId, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """Cost of one run [J; s if time alone counts] on its slice of this size; None if not
        known.
        """
        epoch_cost = self.epoch_cost(samples_per_epoch, weights)
        if epoch_cost is None or run not in self.epochs:
            return None
        return self.epochs[run] * epoch_cost


def fixed(
    planned: PlannedAttempt, log: Dataset, base: Baseline, weights: Weights, profiled: LimitProfiles
) -> BestFixed | None:
    """The batch size of an attempt; None if it has not run on this device, or never reached the
    job's target.
    """
    b = planned.batch_size
    runs = log.of_target()
    # A size that never reached the target has no cost to it.
    if base.epochs is None or not runs.has_reached(b):
        return None
    ran = [t.observation for t in runs.kept(b)]
    limit_w = profiled.best_w(b, hurried(weights, planned))
    # the size is judged at the limit that it would have now (Eq. 7)
    if limit_w is not None:
        recosted_runs = [profiled.recosted(b, o, limit_w) for o in ran]
        at_best = known_values(recosted_runs)
        if at_best:
            ran = at_best
        else:
            limit_w = None  # nothing re-costs them: they keep the limits that they had
    all_rates = [Rates.of(o) for o in ran]
    rates = tuple(known_values(all_rates))[-NEWEST_RUNS:]
    if not rates:
        return None
    epochs = dict(zip(base.epochs.column, base.epochs.of(b).mean(0).tolist(), strict=True))
    return BestFixed(b, limit_w, epochs, rates)
