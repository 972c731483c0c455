"""Does the default policy hold where no constant was chosen? ``python -m benchmarks.scenarios --traces DIR --out DIR``.

Replays scenarios made of measured workloads (``scenario_sets``: one change each) and jobs whose data change
(``drifts``), or with ``--file CASES.json`` those that others bring (``scenario_cases`` says how they are written),
under the default policy, the paper's ``"zeus"``, hill climbing by doubling and halving, and always the default, with
common random numbers; writes ``report.json`` and ``report.md``. Half of the scenarios without drift are held out, by a
hash of their name: ``--part development`` while constants are chosen, ``--part held-out`` once, at the end. Everything
is simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import SELECTION, chosen_traces, command, on_all_cores, option, took
from benchmarks.quality.choosers import BASELINES, DEFAULT
from benchmarks.quality.drifts import Drift, drifts
from benchmarks.quality.scenario_cases import RECURRENCES, read_cases
from benchmarks.quality.scenario_sets import PARTS, part_of, static_scenarios
from benchmarks.replays import FLOOR, OURS, PAPERS, Found, Replays, chunks, ratio_between, spent
from benchmarks.report import (
    Ratio,
    cell,
    geomean_of,
    mean_and_worst,
    mean_ci,
    mean_of,
    plus_minus,
    ratio_of,
    table,
    write_report,
)
from benchmarks.simulation.driver import replay

POLICIES = (OURS, PAPERS, *BASELINES)
COST, REGRET = "total_vs_default", "regret_vs_paper"


def play(part: tuple[Drift, str, Sequence[int]]) -> Replays:
    """Replays of one job under one policy, all its seeds."""
    drift, policy, seeds = part
    found, scenario = Replays(), drift.before
    for seed in seeds:
        when = drift.recurrences, seed, drift.shifts
        if baseline := BASELINES.get(policy):
            log = baseline(scenario, *when)
        else:
            log = replay(scenario, scenario.job(policy=policy), *when)
        found.add(scenario, log)
    return found


def run_all(
    cases: Mapping[str, Drift], policies: Sequence[str], seeds: Sequence[int], jobs: int | None = None
) -> dict[str, dict[str, Replays]]:
    """Every case under every policy."""
    of = [(name, policy, some) for policy in policies for name in cases for some in chunks(tuple(seeds))]
    parts = [(cases[name], policy, some) for name, policy, some in of]
    found: dict[str, dict[str, Replays]] = {name: {p: Replays() for p in policies} for name in cases}
    for (name, policy, _), replays in zip(of, on_all_cores(play, parts, jobs), strict=True):
        found[name][policy].join(replays)
    return found


def case_report(found: Found, cases: Mapping[str, Drift]) -> dict[str, Any]:
    """``report.json`` of replays under ``POLICIES``."""
    since = {name: min(drift.shifts, default=0) for name, drift in cases.items()}
    together = {}
    for policy in POLICIES:
        costs = {name: _cost(of, policy) for name, of in found.items()}
        regrets = {name: ratio_between(of, since=since[name], ours=policy) for name, of in found.items()}
        together[policy] = {COST: mean_and_worst(costs, mean_of), REGRET: mean_and_worst(regrets, geomean_of)}
    return {
        "policies": together,
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


def case_markdown(report: Mapping[str, Any]) -> list[str]:
    """``report.md``: all cases together, then each."""
    together = [
        [
            policy,
            *(t for f in (of[COST], of[REGRET]) for t in (cell(f["mean"]), f"{cell(f['worst'])}, {f['worst_case']}")),
        ]
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


def own_sets(args: argparse.Namespace) -> dict[str, Drift]:
    """The scenarios of ``scenario_sets``, then those of ``drifts``."""
    pairs, found = chosen_traces(args).pairs(args.gpus, args.workloads), {}
    if args.only != "drift":
        static = {name: s for name, s in static_scenarios(pairs).items() if args.part in (part_of(name), "both")}
        found = {name: Drift(scenario, RECURRENCES) for name, scenario in static.items()}
    return found if args.only == "static" else {**found, **drifts(pairs)}


@command(
    SELECTION,
    option("--file", type=Path, help="replay the cases of this JSON file alone (benchmarks.quality.scenario_cases)"),
    option("--part", choices=[*PARTS, "both"], default="both", help="of the scenarios without drift"),
    option("--only", choices=("static", "drift"), help="scenarios without drift, or those with"),
    seeds=50,
    out=Path("scenarios-report"),
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    cases = read_cases(args.file, chosen_traces(args)) if args.file else own_sets(args)
    found = run_all(cases, POLICIES, range(args.seeds), args.jobs)
    report = {"source": "simulated", "seeds": args.seeds, **case_report(found, cases)}
    lines = case_markdown(report)
    write_report(args.out, report, "\n".join(lines) + "\n")
    print("\n".join(lines[lines.index("") :]))
    print(f"{args.out / 'report.md'} after {took(args)}")
