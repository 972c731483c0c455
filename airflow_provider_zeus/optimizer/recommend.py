"""From a belief to the attempts of a decision, under the policy ``"knowledge_gradient"``. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.epoch_cost import predicted
from airflow_provider_zeus.optimizer.exploration import start_at
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.knowledge_gradient import (
    RELIABILITY_RUNS,
    Choice,
    Outlook,
    best,
    candidates,
    dearest_epoch,
)
from airflow_provider_zeus.optimizer.trial import Attempt, DeviceInfo, Phase, ProfileSample

Attempts = tuple[Attempt, ...]


def recommend(
    job: ZeusJob,
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    held: str | None,
) -> tuple[Attempts, Attempts]:
    """(attempts, peeks) of the next recurrence.

    :param held: why nothing new may be tried now; None where it may.
    """
    scene = _Scene.of(job, belief, device, profiles)
    if not scene.converged:
        return (scene.first(held),), () if held else scene.peeks(None)
    outlook = scene.outlook()
    if outlook is None:
        b = scene.usual()
        return (scene.incumbent(b, "No EpochCost is known on any device"),), ()
    index = outlook.incumbent()
    b = scene.all_sizes[index]
    if held is None and belief.newest[1]:
        held = "The run before died"  # a retry ends with a model, whatever killed that run
    if held is None and not scene.costs:  # another device's joules rank batch sizes, but bound no run
        return (scene.incumbent(b, "Nothing was measured on this device yet"),), scene.peeks(b)
    if held:
        return (scene.incumbent(b, held),), ()
    choice = best(outlook, index, np.array(scene.within))
    if choice.index == index:
        return (scene.incumbent(b, "Knowledge gradient: no other batch size is worth a try now"),), scene.peeks(b)
    tried = scene.all_sizes[choice.index]
    return (scene.tried(outlook, choice, tried, b), scene.after(tried, b)), scene.peeks(tried)


@dataclass(frozen=True, slots=True)
class _Scene:
    """What one decision looks at."""

    job: ZeusJob
    belief: Belief
    weights: Weights
    all_sizes: tuple[int, ...]  # of the surrogate, ascending: those of the job, and those that only earlier runs had
    feasible: frozenset[int]
    converged: frozenset[int]  # feasible sizes that reached the target once
    within: Sequence[bool]  # per size of all_sizes: in reach of one that converged
    costs: Mapping[int, float]  # EpochCost [J] measured on this device
    elsewhere: Mapping[int, float]  # and on another one

    @classmethod
    def of(cls, job: ZeusJob, belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> _Scene:
        weights, model = Weights.of(job, device), UNKNOWN if device is None else device.model
        feasible = frozenset(job.batch_sizes) - belief.infeasible(model)
        converged = frozenset(b for _, b, _ in belief.converged) & feasible
        sizes, costs = belief.surrogate.sizes, epoch_costs(belief, device, profiles, weights)
        elsewhere = epoch_costs_elsewhere(belief, device, weights)
        return cls(job, belief, weights, sizes, feasible, converged, candidates(sizes, converged), costs, elsewhere)

    def outlook(self) -> Outlook | None:
        """None where nothing is known of EpochCost."""
        missing = [b for b, near in zip(self.all_sizes, self.within, strict=True) if near and b not in self.costs]
        if not missing and self.costs:  # what lies out of reach decides nothing
            dearest = max(self.costs.values())
            known = np.log([self.costs.get(b, dearest) for b in self.all_sizes])
            costs = known, np.zeros(len(known))
        elif (found := predicted(self.all_sizes, self.costs, self.elsewhere)) is not None:
            costs = found
        else:
            return None
        return Outlook(
            surrogate=self.belief.surrogate,
            log_epoch_cost=costs[0],
            epoch_cost_variance=costs[1],
            feasible=np.array([b in self.feasible for b in self.all_sizes]),
            converged=np.array([b in self.converged for b in self.all_sizes]),
            reliability=self._reliability(),
            max_epochs=float(self.job.max_epochs or 1),
            age=self.belief.age(),
        )

    def _reliability(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Share of a batch size's newest complete runs that reached the target, with one free success."""
        most, era = float(self.job.max_epochs or 1), self.belief.era
        missed = [(n, b, False) for n, b, epochs in self.belief.stopped if n >= era and epochs >= most]
        shares = dict.fromkeys(self.all_sizes, 1.0)
        for size in {b for _, b, _ in missed}:
            runs = [(n, b, True) for n, b, _ in self.belief.converged if n >= era] + missed
            newest = [reached for _, b, reached in sorted(runs) if b == size][-RELIABILITY_RUNS:]
            shares[size] = (1 + sum(newest)) / (1 + len(newest))
        return np.array([shares[b] for b in self.all_sizes])

    # ------------------------------------------------------------------ attempts
    def usual(self) -> int:
        """The default; where it does not fit, the nearest that does."""
        sizes = sorted(self.job.batch_sizes)
        return start_at(self.job.default_batch_size, sizes, [b for b in sizes if b not in self.feasible])

    def first(self, held: str | None) -> Attempt:
        """Nothing has converged yet: the default, then whatever is nearest to it, each to its end."""
        usual = self.usual()
        if held:
            return Attempt(batch_size=usual, phase=Phase.INCUMBENT, why=f"{held}; this run takes {usual}.")
        ended = [b for _, b, _ in self.belief.stopped]
        b = min(
            self.feasible or {usual},
            key=lambda b: (ended.count(b), b != usual, abs(math.log2(b / usual)), b),
        )
        if b == usual and not ended:
            why = f"{b}, {self._name(b)}, comes first."
        else:
            why = f"No batch size has reached the target yet; {b} is the nearest to {usual} tried least."
        return Attempt(batch_size=b, phase=Phase.EXPLORE, why=why)

    def incumbent(self, b: int, reason: str) -> Attempt:
        """The incumbent instead of anything new."""
        why = f"{reason}; {b}, the cheapest known to reach the target, runs."
        return Attempt(batch_size=b, phase=Phase.INCUMBENT, why=why)

    def after(self, given_up: int, b: int) -> Attempt:
        """The attempt that keeps a model when the exploratory one is given up."""
        why = f"{given_up} was given up; {b}, the cheapest known to reach the target, runs to the end."
        return Attempt(batch_size=b, phase=Phase.INCUMBENT, why=why)

    def tried(self, outlook: Outlook, choice: Choice, b: int, incumbent: int) -> Attempt:
        """The exploratory attempt with its bounds."""
        text, cost = self.weights.text, np.exp(outlook.log_cost)
        known, limit = self.costs.get(b), choice.give_up_at
        epochs = None
        if known is not None:
            epochs = float(max(1, math.floor(limit / known)))
            limit = (epochs + 0.5) * known  # the bound in epochs decides, unless EpochCost is not what it was
        runs = sum(1 for n, size, _ in self.belief.converged if size == b and n >= self.belief.era)
        seen = f"from {runs} run{'s' if runs > 1 else ''}" if runs else "by its neighbours"
        index = self.all_sizes.index(incumbent)
        return Attempt(
            batch_size=b,
            phase=Phase.EXPLORE if not runs else Phase.SAMPLE,
            why=f"Knowledge gradient: {b} is believed to cost {text(float(cost[choice.index]))} ({seen}), {incumbent} "
            f"{text(float(cost[index]))}; what it may save in the next {outlook.horizon():g} runs is worth the try; it "
            f"is given up above {text(choice.give_up_at)}.",
            bound_cost=limit,
            bound_epochs=epochs,
            max_epoch_cost=dearest_epoch(outlook, index, choice.index) if known is None else choice.give_up_at,
            bound_samples_per_epoch=self.belief.slice_size[1] if self.belief.slice_size else None,
        )

    def peeks(self, tried: int | None) -> Attempts:
        """Batch sizes that come into reach once ``tried`` has converged, and whose EpochCost nobody knows."""
        if not self.job.peek:
            return ()
        b = self.usual() if tried is None else tried
        within = self.within if b in self.converged else candidates(self.all_sizes, {*self.converged, b})
        near = [s for s, reached in zip(self.all_sizes, within, strict=True) if reached and s not in self.costs]
        return tuple(
            Attempt(batch_size=s, phase=Phase.PEEK, why=f"{s} is within reach of {b}: a look at its EpochCost.")
            for s in near
            if s != b and s in self.feasible
        )

    def _name(self, b: int) -> str:
        return "the default" if b == self.job.default_batch_size else "the nearest to the default that fits"
