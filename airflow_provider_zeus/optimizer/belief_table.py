"""One table of what is known of each batch size, for both policies: state, belief, and what was observed. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief
from airflow_provider_zeus.optimizer.believed import Believed, believed
from airflow_provider_zeus.optimizer.cost import Weights, observed_cost
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.evidence import ENDED, Evidence, evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.trial import ProfileSample, State, Trial, Where


class Standing(StrEnum):
    """How a batch size stands."""

    INCUMBENT = "incumbent"  # believed cheapest of those that reached the target
    CONVERGED = "converged"  # reached the target within the window
    INFEASIBLE = "infeasible"  # ran out of memory here, or keeps dying
    FAILING = "failing"  # tried, and did not reach the target within the window, or raised an error lately
    IN_REACH = "in reach"  # never tried; next to one that converged
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One batch size. Costs are in ``Table.unit``."""

    batch_size: int
    listed: bool  # whether it is in the job's present list
    standing: Standing
    runs: int  # converged, within the window, on any device
    stopped: int  # given up or exhausted, within the window, on any device
    believed: Believed
    observed: tuple[float, ...]  # cost of each converged run on this device, profiling included, oldest first
    observed_mean: Estimate  # with no interval: the runs themselves show how they spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Lines by batch size, ascending."""

    lines: tuple[Line, ...]
    where: Where | None
    unit: str  # "J" of Eq. 2, or "s" where nothing measures energy
    left_out: dict[str, int]


def belief_table(
    trials: Iterable[Trial] | Evidence,
    job: ZeusJob,
    *,
    profiles: Sequence[ProfileSample] = (),
    where: Where | None = None,
) -> Table:
    """What the log says of every batch size on one device (``where``; default: the newest).

    :param profiles: samples of that device; they give an EpochCost where no run told one.
    """
    log = evidence(trials, job, where)
    belief, device = log.belief(), log.device
    weights = Weights.of(job, device)
    figures = believed(
        belief,
        epoch_costs(belief, device, profiles, weights),
        epoch_costs_elsewhere(belief, device, weights),
        loads(belief, device),
    )
    standings = _standings(log, belief, profiles, list(figures))
    observed: dict[int, list[float]] = {b: [] for b in figures}
    for trial in log.of_target().here():
        cost = observed_cost(trial.observation, weights)
        if trial.state is State.CONVERGED and trial.batch_size in observed and cost is not None:
            observed[trial.batch_size].append(cost)
    lines = tuple(
        Line(
            batch_size=b,
            listed=b in job.batch_sizes,
            standing=standings[b],
            runs=sum(1 for _, size, _ in belief.converged if size == b),
            stopped=sum(1 for n, size, _ in belief.stopped if size == b and n >= belief.window_start()),
            believed=figures[b],
            observed=tuple(observed[b]),
            observed_mean=_mean(observed[b]),
        )
        for b in figures
    )
    return Table(lines=lines, where=log.where, unit="s" if weights.time_alone else "J", left_out=log.left_out)


def _mean(costs: Sequence[float]) -> Estimate:
    if not costs:
        return Estimate.missing("no run on this device reached the target and told its cost")
    return Estimate(math.fsum(costs) / len(costs), reason="a mean of what was observed")


def _standings(
    log: Evidence, belief: Belief, profiles: Sequence[ProfileSample], sizes: Sequence[int]
) -> dict[int, Standing]:
    job, device = log.job, log.device
    model = UNKNOWN if device is None else device.model
    converged = belief.reached
    tried = {t.batch_size for t in log.trials if t.state in ENDED}
    held = {"pause_exploration": True}
    incumbent = choose(job, belief, profiles=profiles, device=device, settings=held).attempts[-1].batch_size
    infeasible = belief.infeasible(model)
    wall = {b for b in infeasible if job.policy == "zeus" and belief.out_of_memory(b, model)}  # Algorithm 3 ends there
    walked = sorted(set(job.batch_sizes) - belief.barred(model, job.batch_sizes) | wall)  # others are passed over
    near = in_reach(walked, converged & set(walked), job.policy) if converged else {incumbent}

    def standing(b: int) -> Standing:
        if b in infeasible:
            return Standing.INFEASIBLE
        if b in converged:
            return Standing.INCUMBENT if b == incumbent else Standing.CONVERGED
        if b in tried or b in belief.struck:
            return Standing.FAILING
        return Standing.IN_REACH if b in near else Standing.UNTRIED

    return {b: standing(b) for b in sizes}


def in_reach(sizes: Sequence[int], known: Collection[int], policy: str) -> set[int]:
    """Of the batch sizes (ascending) those that a policy may try next, given what is ``known`` to converge."""
    if policy == "zeus":  # Algorithm 3 walks over neighbours
        places = [i for i, b in enumerate(sizes) if b in known]
        return {sizes[j] for i in places for j in (i - 1, i, i + 1) if 0 <= j < len(sizes)}
    from airflow_provider_zeus.optimizer.reach import candidates

    return {b for b, near in zip(sizes, candidates(tuple(sizes), frozenset(known)), strict=True) if near}
