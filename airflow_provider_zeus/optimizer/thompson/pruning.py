"""Pruning exploration (Algorithm 3) and the return of pruned arms, as functions of the exploration so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from airflow_provider_zeus.model.trial import Where
from airflow_provider_zeus.optimizer.belief import Belief

ROUNDS = 2  # so that a cost variance is observed (Algorithm 3, line 2)


def start_at(default: int, sizes: Sequence[int], infeasible: Collection[int]) -> int:
    """The default; where it is infeasible the largest feasible size below it, else the smallest feasible one."""
    fits = [b for b in sizes if b not in infeasible] or [default]
    return max((b for b in fits if b <= default), default=fits[0])


def next_exploration(
    sizes: Sequence[int],
    default: int,
    explored: Mapping[tuple[int, int], tuple[int, bool]],
    too_large: Collection[int],
    cheapest: Callable[[Collection[int]], int],
) -> tuple[int, int] | None:
    """(round, batch size) to explore next; None when both rounds are over.

    :param sizes: the batch sizes to walk over, ascending.
    :param explored: (round, batch size) -> (trial number, whether it converged).
    :param too_large: sizes that ran out of memory: the walk ends there.
    :param cheapest: gives the cheapest of several converged batch sizes: round 2 starts there.

    Round 2 walks over the sizes that converged in round 1. A failure there ends the walk, but the sizes behind it stay
    arms: one unlucky run does not remove its neighbours (docs/policy.md, trap 3).
    """
    pool, start = list(sizes), default
    for number in range(1, ROUNDS + 1):
        seen = {b: ok for (r, b), (_, ok) in explored.items() if r == number}
        if number > 1:
            pool = [b for b in sizes if explored.get((number - 1, b), (0, False))[1]]
            if not pool:
                return None
            started = min((n, b) for (r, b), (n, _) in explored.items() if r == number)[1] if seen else None
            start = started if started in pool else cheapest(pool)
        found = _walk(pool, start, seen | dict.fromkeys(too_large, False))
        if found is not None:
            return number, found
    return None


def _walk(pool: Sequence[int], start: int, seen: Mapping[int, bool]) -> int | None:
    """The start, then smaller until failure, then larger until failure (Algorithm 3, lines 3 to 5)."""
    if start not in seen:
        return start
    for direction in ([b for b in reversed(pool) if b < start], [b for b in pool if b > start]):
        for b in direction:
            if b not in seen:
                return b
            if not seen[b]:
                break
    return None


def next_return(
    belief: Belief, where: Where | None, sizes: Sequence[int], settled: Collection[int], incumbent: int
) -> int | None:
    """A batch size that is due for one bounded try, the nearest to the incumbent first; None where none is due.

    A batch size is due if it is not ``settled`` (an arm, or infeasible) and joined the list after exploration was over,
    was tried or pruned a whole window ago, or converged but did not run on this device (``where``) within the window.
    One that ran here and has no cost is not due: its figures are missing, not its runs.
    """
    pruned_at = max((n for n, _ in belief.explored.values()), default=0)
    tries = [(n, b) for (_, b), (n, _) in belief.explored.items()] + [(n, b) for n, b, _ in belief.stopped]
    last_try = {b: n for n, b in sorted(tries)}
    window_start = belief.window_start()
    converged = belief.reached

    def due(b: int) -> bool:
        if b in converged:
            return where is not None and belief.seen.get((b, where), -1) < window_start
        if b in last_try:
            return last_try[b] < window_start
        joined_late = belief.listed.get(b, pruned_at + 1) > pruned_at
        return joined_late or pruned_at < window_start

    waiting = [b for b in sizes if b not in settled and due(b)]
    return min(waiting, key=lambda b: (abs(sizes.index(b) - sizes.index(incumbent)), b), default=None)
