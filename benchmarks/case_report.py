"""What ``benchmarks.scenarios --file`` says of scenarios that others bring: each policy against two baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.choosers import BASELINES, DEFAULT
from benchmarks.drifts import Drift
from benchmarks.replays import Replays
from benchmarks.report import Ratio, cell, geomean_of, mean_and_worst, mean_ci, mean_of, plus_minus, ratio_of, table
from benchmarks.scenario_report import FLOOR, OURS, PAPERS, Found, Variant, ratio_between, spent

POLICIES = {policy: Variant(policy) for policy in (OURS, PAPERS, *BASELINES)}
COST, REGRET = "total_vs_default", "regret_vs_paper"


def case_report(found: Found, cases: Mapping[str, Drift]) -> dict[str, Any]:
    """``report.json`` of replays under ``POLICIES``."""
    since = {name: min(drift.shifts, default=0) for name, drift in cases.items()}
    return {
        "policies": {policy: _over_all(found, since, policy) for policy in POLICIES},
        "cases": {
            name: {
                "recurrences": cases[name].recurrences,
                "regret_since": since[name],
                **{policy: _of_case(of, since[name], policy) for policy in POLICIES},
            }
            for name, of in found.items()
        },
    }


def _cost(found: Mapping[str, Replays], policy: str) -> Ratio:
    return ratio_of(found[policy].spent, found[DEFAULT].spent)


def _of_case(found: Mapping[str, Replays], since: int, policy: str) -> dict[str, Any]:
    replays = found[policy]
    counts = {name: getattr(replays, name) for name in ("runs_below_target", "runs_without_model", "attempts")}
    return {
        COST: _cost(found, policy).to_json(),
        REGRET: ratio_between(found, since=since, ours=policy).to_json(),
        "expected_regret": mean_ci(spent(replays, since)),
        **counts,
    }


def _over_all(found: Found, since: Mapping[str, int], policy: str) -> dict[str, Any]:
    costs = {name: _cost(of, policy) for name, of in found.items()}
    regrets = {name: ratio_between(of, since=since[name], ours=policy) for name, of in found.items()}
    return {COST: mean_and_worst(costs, mean_of), REGRET: mean_and_worst(regrets, geomean_of)}


def case_markdown(report: Mapping[str, Any]) -> list[str]:
    """``report.md``: all cases together, then each."""
    together = [
        [policy, *(text for figure in (COST, REGRET) for text in (cell(of[figure]["mean"]), _worst(of[figure])))]
        for policy, of in report["policies"].items()
    ]
    head = ["policy", "total cost, always the default = 1", "worst", "regret, the paper's policy = 1", "worst"]
    each = [[name, policy, *_cells(of[policy])] for name, of in report["cases"].items() for policy in POLICIES]
    return [
        "# Cases",
        "",
        f"{report['seeds']} seeds, common random numbers; simulated. 95 % intervals in brackets. Costs: expected costs",
        "of all runs; arithmetic mean over the cases. Regret: from a shift of the data on, a repeat charged where a",
        f"run ends below its target, at least {FLOOR:g} C*; geometric mean. Always the default: at the power limit",
        "that is best for it, nothing profiled.",
        "",
        *table(head, together),
        "",
        *table(["case", "policy", head[1], head[3], "regret [C*]", "below target", "attempts"], each),
    ]


def _cells(of: Mapping[str, Any]) -> list[str]:
    counts = [str(of["runs_below_target"]), str(of["attempts"])]
    return [cell(of[COST]), cell(of[REGRET]), plus_minus(of["expected_regret"]), *counts]


def _worst(of: Mapping[str, Any]) -> str:
    return f"{cell(of['worst'])}, {of['worst_case']}"
