"""One table of the batch sizes for both policies: the status, the belief and the observed costs of
each. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
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
    """The status of a batch size in the log.

    Converged sizes reached the target within the window. Untaught ones ran only in runs that do not
    teach, earlier ones to another target or before the window.
    """

    INCUMBENT = "incumbent"
    CONVERGED = "converged"
    INFEASIBLE = "infeasible"  # on this device alone: a larger one may hold it
    FAILING = "failing"  # old failures are forgotten: the data or the code may have changed
    IN_REACH = "in reach"  # of the untried ones only these may come next
    UNTAUGHT = "untaught"
    EARLIER = "earlier"
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefRow:
    """One batch size. Costs are in joules of Eq. 2, or in seconds if nothing measures energy.

    ``observed``: of runs that converged on this device, profiling included, oldest first.
    """

    batch_size: int
    listed: bool  # a size that was taken out of the list still has runs
    standing: BatchSizeStatus
    runs: int  # of all devices, as epochs do not depend on them (Eq. 6)
    stopped: int  # apart from runs: such a run shows a lower bound of the epochs alone
    believed: Posterior
    observed: tuple[float, ...]  # without warm starts, which take fewer epochs
    typical: tuple[float, ...]  # runs on slices of different difficulty do not compare
    observed_mean: Estimate  # without an interval: ``observed`` shows the spread


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefTable:
    """Batch sizes in ascending order."""

    lines: tuple[BeliefRow, ...]
    settled: PlannedAttempt


def belief_table(
    log: Dataset,
    *,
    profiles: Sequence[ProfileSample] = (),
    hardness: Mapping[RunId, float] | None = None,
    decided: NextDecision | None = None,
) -> BeliefTable:
    """Tabulate every batch size of the log on the log's device.

    :param profiles: samples of that device; they give an EpochCost if no run measured one.
    :param hardness: of each run's slice (``SliceEpochs.hardness``); default: all slices are
        typical.
    :param decided: of this log; default: without live settings.
    """
    job = log.job
    belief = log.belief()
    device = log.device
    weights = Weights.of(job, device)
    figures = posteriors(
        belief,
        epoch_costs(belief, device, profiles, weights),
        epoch_costs_elsewhere(belief, device, weights),
        loads=loads(belief, device),
    )
    hardness = hardness or {}
    decided = decided or NextDecision.of(log, profiles=profiles)
    statuses = _statuses(log, belief, decided.settled.batch_size, sizes=list(figures))
    observed: dict[int, list[float]] = {b: [] for b in figures}
    typical: dict[int, list[float]] = {b: [] for b in figures}
    reached = [t for t in log.of_target().here() if t.state is State.CONVERGED]
    for trial in filter(is_cold, reached):
        cost = observed_cost(trial.observation, weights)
        if cost is not None and trial.batch_size in observed:
            observed[trial.batch_size].append(cost)
            # a size that ran on easy slices alone must not look cheap
            typical[trial.batch_size].append(cost / hardness.get(trial.recurrence, 1.0))
    runs = Counter(size for _, size, _ in belief.converged)
    since = belief.window_start()
    stopped = Counter(size for number, size, _ in belief.stopped if number >= since)
    lines = tuple(
        BeliefRow(
            batch_size=b,
            listed=b in job.batch_sizes,
            standing=statuses[b],
            runs=runs[b],
            stopped=stopped[b],
            believed=figures[b],
            observed=tuple(observed[b]),
            typical=tuple(typical[b]),
            observed_mean=_mean_of(observed[b]),
        )
        for b in figures
    )
    return BeliefTable(lines=lines, settled=decided.settled)


def _mean_of(costs: Sequence[float]) -> Estimate:
    if not costs:
        return Estimate.missing("no run on this device reached the target with a known cost")
    mean = math.fsum(costs) / len(costs)
    return Estimate(mean, reason="a mean of what was observed")


def _statuses(
    log: Dataset, belief: Belief, settled: int, sizes: Sequence[int]
) -> dict[int, BatchSizeStatus]:
    """``settled``: the size that runs if nothing is tried."""
    job = log.job
    device = log.device
    converged = belief.reached
    model = UNKNOWN
    if device is not None:
        model = device.model
    since = belief.window_start()
    failing = belief.struck | {size for number, size, _ in belief.stopped if number >= since}
    ended = [t for t in log.of_target().trials if t.state.conclusive]
    taught = {t.batch_size for t in ended if t.origin.run_type in job.learn_from}
    untaught = {t.batch_size for t in ended} - taught
    earlier = {t.batch_size for t in log.trials if t.state.conclusive}
    infeasible = belief.infeasible(model)
    # Barred sizes are passed over, so the next one beyond them is a neighbour, too.
    walked = set(job.batch_sizes) - belief.barred(model, job.batch_sizes)
    if job.policy == "zeus":
        # Algorithm 3 ends at a size that does not fit into memory; other sizes are passed over
        walked |= infeasible
    near = {settled}
    if converged:
        near = in_reach(sorted(walked), converged & walked, job.policy)
    statuses = dict.fromkeys(sizes, BatchSizeStatus.UNTRIED)
    for status, of_status in (  # a later one replaces the ones before it: it says more
        (BatchSizeStatus.EARLIER, earlier),
        (BatchSizeStatus.IN_REACH, near),
        (BatchSizeStatus.UNTAUGHT, untaught),
        (BatchSizeStatus.FAILING, failing),
        (BatchSizeStatus.CONVERGED, converged),
        (BatchSizeStatus.INCUMBENT, converged & {settled}),
        (BatchSizeStatus.FAILING, belief.struck - {settled}),
        (BatchSizeStatus.INFEASIBLE, infeasible),
    ):
        statuses |= dict.fromkeys(of_status.intersection(sizes), status)
    return statuses


def in_reach(sizes: Sequence[int], known: Collection[int], policy: str) -> set[int]:
    """Those of the batch sizes (ascending) that a policy may try next, given the ones ``known`` to
    converge.
    """
    if policy == "zeus":  # the other policy is not bound to neighbours, as Algorithm 3 is
        near = set()
        for i, b in enumerate(sizes):
            if b in known:
                near |= {*sizes[max(i - 1, 0) : i + 2]}
        return near
    from airflow_provider_zeus.optimizer.knowledge_gradient import acquisition

    reached = acquisition.in_reach(tuple(sizes), frozenset(sizes), frozenset(known))
    return {b for b, is_near in zip(sizes, reached, strict=True) if is_near}
