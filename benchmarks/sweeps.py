"""Sensitivity and ablation (section 6.7): eta, beta, and the paper's algorithm without one of its parts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.simulation.traces import Pair
from benchmarks.replays import ABLATIONS, UPSTREAM, Replays, Task, geomean

ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
BETAS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
SEEDS = 20  # at most: a sweep needs no more


def tasks_of(pairs: Sequence[Pair], policies: Sequence[str], seeds: Sequence[int]) -> list[Task]:
    """Replays of all three; eta is swept with the first of the product's policies that is asked for."""
    few = tuple(seeds[:SEEDS])
    ours = swept_by_eta(policies)
    found = [Task(p.workload, p.gpu, ours, few, eta=eta) for p in pairs for eta in ETAS]
    found += [Task(p.workload, p.gpu, UPSTREAM, few, beta=beta) for p in pairs for beta in BETAS]
    found += [Task(p.workload, p.gpu, part, few) for p in pairs for part in ABLATIONS]
    return list(dict.fromkeys(found))


def swept_by_eta(policies: Sequence[str]) -> str:
    """The policy of the eta sweep."""
    return next((p for p in policies if p in POLICIES), UPSTREAM)


def report_of(results: Mapping[Task, Replays]) -> dict[str, Any]:
    """Per pair: energy and time over eta, energy over beta, expected cost without each part; and geometric means."""
    eta: dict[str, dict[float, list[float]]] = {}
    energy: dict[str, dict[float, float]] = {}
    cost: dict[str, dict[str, float]] = {}
    for task, found in results.items():
        if task.policy in ABLATIONS or (task.policy == UPSTREAM and task.beta == 2.0):
            cost.setdefault(task.pair, {})[task.policy] = _cost(found)
        if task.policy == UPSTREAM:
            energy.setdefault(task.pair, {})[task.beta] = statistics.fmean(found.cum_energy)
        elif task.policy not in ABLATIONS:
            both = [statistics.fmean(found.eta_last5), statistics.fmean(found.tta_last5)]
            eta.setdefault(task.pair, {})[task.eta] = both
    beta = {pair: {b: e / of[2.0] for b, e in of.items()} for pair, of in energy.items()}
    parts = {pair: {p: c / of[UPSTREAM] for p, c in of.items() if p != UPSTREAM} for pair, of in cost.items()}
    return {
        "eta": eta,
        "beta": beta,
        "beta_geomean": {b: geomean(of[b] for of in beta.values()) for b in BETAS},
        "parts": parts,
        "parts_geomean": {p: geomean(of[p] for of in parts.values()) for p in ABLATIONS},
    }


def _cost(found: Replays) -> float:
    """Expected cost of all recurrences [C*]."""
    return statistics.fmean(curve[-1] + len(curve) for curve in found.expected_regret)
