"""Sensitivity and ablation (section 6.7): eta, beta, and a policy without one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.replays import ABLATIONS, OURS, OURS_WITHOUT, UPSTREAM, Replays, Task
from benchmarks.report import Ratio, geomean_of, ratio_of
from benchmarks.simulation.traces import Pair

ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
BETAS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
SEEDS = 10  # at most: a sweep needs no more
PARTS = {UPSTREAM: tuple(ABLATIONS), OURS: tuple(OURS_WITHOUT)}
ALL = "all"  # GPUs


def tasks_of(pairs: Sequence[Pair], seeds: Sequence[int], gpu: str) -> list[Task]:
    """Replays of all three; beta, parts, and eta under the default policy on one GPU alone,
    eta else on every GPU.
    """
    few = tuple(seeds[:SEEDS])
    found = []
    narrow = [p for p in pairs if p.gpu == gpu]
    for policy in (*POLICIES, UPSTREAM):
        wide = narrow if policy == OURS else pairs
        found += [Task(p.workload, p.gpu, policy, few, eta=eta) for p in wide for eta in ETAS]
        found += [Task(p.workload, p.gpu, policy, few, beta=beta) for p in narrow for beta in BETAS]
        found += [
            Task(p.workload, p.gpu, part, few) for p in narrow for part in PARTS.get(policy, ())
        ]
    return list(dict.fromkeys(found))


def report_of(results: Mapping[Task, Replays]) -> dict[str, Any]:
    """By policy. All are ratios as [ratio, low, high] by GPU (``all``: together) and by pair.

    ``eta``: [energy, time] of the last five recurrences, Default = 1. ``beta``: energy of all
    recurrences, beta 2 = 1. ``parts``: time, as in Figure 13,
    and expected cost of all recurrences, whole algorithm = 1.
    """
    by = {(t.policy, t.pair, t.eta, t.beta): found for t, found in results.items()}
    every = list(dict.fromkeys(t.pair for t in results))
    report: dict[str, Any] = {"eta": {}, "beta": {}, "parts": {}}
    for policy in dict.fromkeys(t.policy for t in results if t.policy in (*POLICIES, UPSTREAM)):
        wide, narrow = (
            [p for p in every if (policy, p, *at) in by] for at in ((ETAS[0], 2.0), (0.5, BETAS[0]))
        )
        for kind, found in _of_policy(by, policy, wide, narrow).items():
            report[kind][policy] = found
    return report


def _of_policy(
    by: Mapping[tuple[str, str, float, float], Replays],
    policy: str,
    wide: Sequence[str],
    narrow: Sequence[str],
) -> dict[str, Any]:
    def at(pair: str, part: str = policy, eta: float = 0.5, beta: float = 2.0) -> Replays:
        return by[part, pair, eta, beta]

    found: dict[str, Any] = {
        "eta": {
            "energy": _over(
                wide, ETAS, lambda pair, eta: against_default(at(pair, eta=eta).eta_last5)
            ),
            "time": _over(
                wide, ETAS, lambda pair, eta: against_default(at(pair, eta=eta).tta_last5)
            ),
        },
        "beta": _over(
            narrow, BETAS, lambda p, beta: ratio_of(at(p, beta=beta).cum_energy, at(p).cum_energy)
        ),
    }
    if parts := PARTS.get(policy):
        found["parts"] = {
            "time": _over(
                narrow, parts, lambda pair, part: ratio_of(_time(at(pair, part)), _time(at(pair)))
            ),
            "cost": _over(
                narrow, parts, lambda pair, part: ratio_of(_cost(at(pair, part)), _cost(at(pair)))
            ),
        }
    return found


def against_default(values: Sequence[float]) -> Ratio:
    """Multiples of the default run's mean, which is known."""
    return ratio_of(values, [1.0] * len(values))


def _over(
    pairs: Sequence[str], values: Iterable[Any], of: Callable[[str, Any], Ratio]
) -> dict[str, Any]:
    """{value: {pair, GPU or ``all``: [ratio, low, high]}}; geometric means over pairs."""
    gpus = list(dict.fromkeys(pair.partition("/")[2] for pair in pairs))
    table = {}
    for value in values:
        ratios = {pair: of(pair, value) for pair in pairs}
        means = {
            g: geomean_of(r for pair, r in ratios.items() if pair.endswith(f"/{g}")) for g in gpus
        }
        means[ALL] = geomean_of(ratios.values())
        table[value] = {name: r.to_json() for name, r in {**ratios, **means}.items()}
    return table


def _cost(found: Replays) -> list[float]:
    """Expected cost of all recurrences [C*], one figure per seed."""
    return [curve[-1] + len(curve) for curve in found.expected_regret]


def _time(found: Replays) -> list[float]:
    """Time of all recurrences, Default = 1, one figure per seed."""
    return [curve[-1] for curve in found.time]
