"""One table of the batch sizes for both policies: the status, the belief and the observed costs of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import PlannedAttempt, ProfileSample, State
from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief
from airflow_provider_zeus.optimizer.posterior import Posterior, posteriors
from airflow_provider_zeus.optimizer.starts import is_cold
from airflow_provider_zeus.reports.dataset import Dataset, RunId
from airflow_provider_zeus.reports.next_run import NextDecision


class BatchSizeStatus(StrEnum):
    """What the log says of a batch size."""

    INCUMBENT = "incumbent"  # reached the target, and runs where nothing is tried
    CONVERGED = "converged"  # reached the target within the window
    INFEASIBLE = "infeasible"  # ran out of memory here
    FAILING = "failing"  # tried, and missed the target within the window, or raised an error lately
    IN_REACH = "in reach"  # no run of it counts; next to one that converged
    UNTAUGHT = "untaught"  # ran, but only in runs that do not teach
    EARLIER = "earlier"  # ran, but to another target, or before the window
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefRow:
    """One batch size. Costs are in joules of Eq. 2, or in seconds where nothing measures energy."""

    batch_size: int
    listed: bool  # whether the job's present list has it
    standing: BatchSizeStatus
    runs: int  # converged, within the window, on any device
    stopped: int  # given up or exhausted, within the window, on any device
    believed: Posterior
    observed: tuple[float, ...]  # cost of each converged cold run on this device, profiling included, oldest first
    typical: tuple[float, ...]  # the same as it would have been on a typical slice of the data
    observed_mean: Estimate  # without an interval: ``observed`` shows the spread


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefTable:
    """Batch sizes in ascending order."""

    lines: tuple[BeliefRow, ...]
    settled: PlannedAttempt  # what runs where nothing is tried


def belief_table(
    log: Dataset,
    *,
    profiles: Sequence[ProfileSample] = (),
    hardness: Mapping[RunId, float] | None = None,
    decided: NextDecision | None = None,
) -> BeliefTable:
    """Tabulate every batch size of the log on the log's device.

    :param profiles: samples of that device; they give an EpochCost where no run measured one.
    :param hardness: of each run's slice (``SliceEpochs.hardness``); default: all slices are typical.
    :param decided: of this log; default: without live settings.
    """
    job, belief, device = log.job, log.belief(), log.device
    weights = Weights.of(job, device)
    figures = posteriors(
        belief,
        epoch_costs(belief, device, profiles, weights),
        epoch_costs_elsewhere(belief, device, weights),
        loads(belief, device),
    )
    decided = decided or NextDecision.of(log, profiles=profiles)
    statuses = _statuses(log, belief, decided.settled.batch_size, list(figures))
    observed: dict[int, list[float]] = {b: [] for b in figures}
    typical: dict[int, list[float]] = {b: [] for b in figures}
    for trial in log.of_target().here():
        cost = observed_cost(trial.observation, weights)
        if trial.state is State.CONVERGED and trial.batch_size in observed and cost is not None and is_cold(trial):
            observed[trial.batch_size].append(cost)
            typical[trial.batch_size].append(cost / (hardness or {}).get(trial.recurrence, 1.0))
    lines = tuple(
        BeliefRow(
            batch_size=b,
            listed=b in job.batch_sizes,
            standing=statuses[b],
            runs=sum(1 for _, size, _ in belief.converged if size == b),
            stopped=sum(1 for n, size, _ in belief.stopped if size == b and n >= belief.window_start()),
            believed=figures[b],
            observed=tuple(observed[b]),
            typical=tuple(typical[b]),
            observed_mean=Estimate(math.fsum(observed[b]) / len(observed[b]), reason="a mean of what was observed")
            if observed[b]
            else Estimate.missing("no run on this device reached the target with a known cost"),
        )
        for b in figures
    )
    return BeliefTable(lines=lines, settled=decided.settled)


def _statuses(log: Dataset, belief: Belief, settled: int, sizes: Sequence[int]) -> dict[int, BatchSizeStatus]:
    """``settled``: the size that runs where nothing is tried."""
    job, device, converged = log.job, log.device, belief.reached
    model = UNKNOWN if device is None else device.model
    ran, ended = ([t for t in of.trials if t.state.conclusive] for of in (log, log.of_target()))
    failing = belief.struck | {b for n, b, _ in belief.stopped if n >= belief.window_start()}
    untaught = {t.batch_size for t in ended} - {t.batch_size for t in ended if t.origin.run_type in job.learn_from}
    earlier = {t.batch_size for t in ran}
    infeasible = belief.infeasible(model)
    wall = {b for b in infeasible if job.policy == "zeus" and belief.out_of_memory(b, model)}  # Algorithm 3 ends there
    walked = sorted(set(job.batch_sizes) - belief.barred(model, job.batch_sizes) | wall)  # others are passed over
    near = in_reach(walked, converged & set(walked), job.policy) if converged else {settled}

    def status(b: int) -> BatchSizeStatus:
        if b in infeasible:
            return BatchSizeStatus.INFEASIBLE
        if b in belief.struck and b != settled:
            return BatchSizeStatus.FAILING
        if b in converged:
            return BatchSizeStatus.INCUMBENT if b == settled else BatchSizeStatus.CONVERGED
        if b in failing:
            return BatchSizeStatus.FAILING
        if b in untaught:
            return BatchSizeStatus.UNTAUGHT
        if b in near:
            return BatchSizeStatus.IN_REACH
        return BatchSizeStatus.EARLIER if b in earlier else BatchSizeStatus.UNTRIED

    return {b: status(b) for b in sizes}


def in_reach(sizes: Sequence[int], known: Collection[int], policy: str) -> set[int]:
    """Those of the batch sizes (ascending) that a policy may try next, given the ones ``known`` to converge."""
    if policy == "zeus":  # Algorithm 3 walks over neighbours
        places = [i for i, b in enumerate(sizes) if b in known]
        return {sizes[j] for i in places for j in (i - 1, i, i + 1) if 0 <= j < len(sizes)}
    from airflow_provider_zeus.optimizer.knowledge_gradient import acquisition

    near = acquisition.in_reach(tuple(sizes), frozenset(sizes), frozenset(known))
    return {b for b, is_near in zip(sizes, near, strict=True) if is_near}
