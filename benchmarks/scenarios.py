"""Does the default policy hold where no constant was chosen? ``python -m benchmarks.scenarios --traces DIR --out DIR``.

Replays scenarios made of measured workloads (``scenario_sets``: one change each) and jobs whose data change
(``drifts``) under ``"knowledge_gradient"`` and under the paper's policy ``"zeus"``, with common random numbers, and
writes ``report.json``, ``report.md`` and two pictures. Half of the scenarios are held out, by a hash of their name:
``--part development`` while constants are chosen, ``--part held-out`` once, at the end. Everything is simulated.

``--file CASES.json`` replays scenarios that others bring instead (``scenario_cases`` says how they are written), under
these two policies, hill climbing by doubling and halving, and always the default; it writes the first two files.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_zeus.simulation.driver import replay
from benchmarks.command import SELECTION, add, chosen_traces, command, needs, on_all_cores, parser_of
from benchmarks.quality import scenario_cases
from benchmarks.quality.choosers import BASELINES
from benchmarks.quality.drift_report import SWEEP, drift_markdown, drift_report, drift_verdicts
from benchmarks.quality.drifts import Drift, drifts
from benchmarks.quality.scenario_cases import RECURRENCES, read_cases
from benchmarks.quality.scenario_report import (
    OURS,
    PAPERS,
    Found,
    Variant,
    Verdict,
    static_markdown,
    static_report,
    static_verdicts,
)
from benchmarks.quality.scenario_sets import PARTS, part_of, static_scenarios
from benchmarks.replays import Replays, chunks
from benchmarks.report import table, write_report

SEEDS = 50
STATIC = {OURS: Variant(OURS), PAPERS: Variant(PAPERS)}
# Forgetting costs the paper's policy more than it gains: of windows of 30, 40, 50, 60, 80 and 500 converged runs (which
# no job here fills) the last is best over all drifts; ours is held against the default, 250, which none fills either.
# 60 is shown too: what was not run for a window is tried again, a re-sweep.
DRIFTING = {**STATIC, **{f"{policy}_window_{SWEEP}": Variant(policy, SWEEP) for policy in (OURS, PAPERS)}}
ONLY = ("static", "drift")


@dataclass(frozen=True)
class Task:
    """Replays of one policy on one scenario."""

    name: str
    variant: str
    drift: Drift
    policy: str
    window: int | None
    seeds: tuple[int, ...]


def play(task: Task) -> Replays:
    """All its seeds."""
    found, scenario = Replays(), task.drift.before
    fields = {} if task.window is None else {"window": max(task.window, 2 * len(scenario.pair.batch_sizes))}
    start = time.process_time()
    for seed in task.seeds:
        baseline, drift = BASELINES.get(task.policy), task.drift
        if baseline:
            log = baseline(scenario, drift.recurrences, seed, drift.shifts)
        else:
            job = scenario.job(policy=task.policy, **fields)
            log = replay(scenario, job, drift.recurrences, seed, drift.shifts)
        found.add(scenario, log)
    found.seconds = time.process_time() - start
    return found


def run_all(
    cases: Mapping[str, Drift], variants: Mapping[str, Variant], seeds: Sequence[int], jobs: int | None = None
) -> dict[str, dict[str, Replays]]:
    """Every case under every variant."""
    parts = [
        Task(name, variant, drift, *variants[variant], some)
        for variant in variants
        for name, drift in cases.items()
        for some in chunks(tuple(seeds))
    ]
    found: dict[str, dict[str, Replays]] = {name: {v: Replays() for v in variants} for name in cases}
    for part, replays in zip(parts, on_all_cores(play, parts, jobs), strict=True):
        found[part.name][part.variant].join(replays)
    return found


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = parser_of(__doc__, SELECTION, seeds=SEEDS, out=Path("scenarios-report"))
    brings = "replay the cases of this JSON file alone (benchmarks.quality.scenario_cases)"
    parser.add_argument("--file", type=Path, help=brings)
    parser.add_argument("--part", choices=[*PARTS, "both"], default="both", help="of the scenarios without drift")
    parser.add_argument("--only", choices=ONLY, help="scenarios without drift, or those with")
    args, start = add(parser, "--no-pictures").parse_args(arguments), time.monotonic()
    (brought if args.file else own_sets)(args)
    print(f"{args.out / 'report.md'} after {time.monotonic() - start:.0f} s")
    return 0


def brought(args: argparse.Namespace) -> None:
    """Replay the cases of a file."""
    cases = read_cases(args.file, chosen_traces(args))
    found = run_all(cases, scenario_cases.POLICIES, range(args.seeds), args.jobs)
    report = {"source": "simulated", "seeds": args.seeds, **scenario_cases.case_report(found, cases)}
    lines = scenario_cases.case_markdown(report)
    write_report(args.out, report, "\n".join(lines) + "\n")
    print("\n".join(lines[lines.index("") :]))


def own_sets(args: argparse.Namespace) -> None:
    """Replay the scenarios of ``scenario_sets`` and of ``drifts``."""
    static: Found = {}
    drifting: Found = {}
    if not args.no_pictures:
        needs("matplotlib", ", or --no-pictures")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    drift_cases = drifts(pairs) if args.only != "static" else {}
    if args.only != "drift":
        chosen = {n: s for n, s in static_scenarios(pairs).items() if args.part in (part_of(n), "both")}
        cases = {name: Drift(scenario, RECURRENCES) for name, scenario in chosen.items()}
        static = run_all(cases, STATIC, range(args.seeds), args.jobs)
    if drift_cases:
        drifting = run_all(drift_cases, DRIFTING, range(args.seeds), args.jobs)
    report: dict[str, Any] = {"source": "simulated", "seeds": args.seeds}
    verdicts: list[Verdict] = []
    if static:
        report["static"] = static_report(static, RECURRENCES)
        verdicts += static_verdicts(report["static"])
    if drifting:
        report["drift"] = drift_report(drifting, drift_cases, DRIFTING)
        verdicts += drift_verdicts(report["drift"])
    report["verdicts"] = [v._asdict() for v in verdicts]
    write_report(args.out, report, markdown_of(report, verdicts))
    if not args.no_pictures:
        from benchmarks.quality import scenario_figures  # it brings matplotlib

        if static:
            scenario_figures.ratios(report["static"], args.out / "scenarios.png")
        if drifting:
            scenario_figures.shifts(drifting, drift_cases, args.out / "drift.png")
    for verdict in verdicts:
        print(f"{'held  ' if verdict.held else 'MISSED'} {verdict.asked}: {verdict.found}")


def markdown_of(report: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """``report.md``."""
    lines = [
        "# Where no constant was chosen",
        "",
        f"{report['seeds']} seeds, common random numbers; simulated from measured epochs, times and powers. Figures in "
        "brackets are 95 % intervals; something is missed only where the better end of its interval misses it.",
        "",
        *table(["asked", "found", ""], [[v.asked, v.found, "held" if v.held else "**missed**"] for v in verdicts]),
        "",
    ]
    chapters = [static_markdown(report["static"])] if "static" in report else []
    chapters += [drift_markdown(report["drift"])] if "drift" in report else []
    return "\n".join([*lines, *(line for chapter in chapters for line in [*chapter, ""])])


if __name__ == "__main__":
    raise SystemExit(main())
