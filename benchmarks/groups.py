"""Overlapping submissions (section 6.3, Figure 9):
``python -m benchmarks.groups --traces DIR [--trace FILE]``.

Replays groups of recurring submissions, each group one job, and writes ``report.json`` and
``report.md``: cumulative energy and time against Default per workload. ``--trace`` reads a group
trace, as the paper's authors published it; without one the groups are drawn in the shape of
Alibaba's (``--shape``). ``grid_search`` begins at the smallest batch size, which a group of few
submissions hardly leaves (the paper names no order). ``knowledge_gradient`` looks for changes anew
whenever runs end in another order than they began, and is the slowest: give it fewer ``--jobs``.
Everything is simulated from measured epochs, times and powers.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import chosen_traces, command, on_all_cores, option, positive, took
from benchmarks.quality.group_shape import (
    OFTEN,
    SHAPE,
    Group,
    Shape,
    draw_groups,
    read_groups,
    read_shape,
)
from benchmarks.quality.overlap import Default, GridSearch, Ledger, Player, Zeus, play
from benchmarks.report import table_of, write_report
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

FIGURE_9 = ("zeus", "grid_search", "default")
NAMES = tuple(dict.fromkeys([*FIGURE_9, *POLICIES]))
ALL = "all"  # workloads together
CHUNK = 2_000  # submissions per task, or one group


def player_of(policy: str, scenario: Scenario, seed: int) -> Player:
    """The policy of that name."""
    if policy == "default":
        return Default(scenario, seed)
    if policy == "grid_search":
        return GridSearch(scenario, seed)
    return Zeus(scenario, scenario.job(policy=policy), seed)


def scenarios_of(traces: Traces, gpu: str) -> dict[str, Scenario]:
    """By dataset, the workload that trains on it: the paper's where there are several."""
    found: dict[str, Scenario] = {}
    for pair in traces.pairs([gpu]):
        found.setdefault(traces.workloads[pair.workload].training.dataset, Scenario(pair))
    return found


def drawn(
    scenarios: Mapping[str, Scenario], jobs: int, seed: int, shape: Shape | None = None
) -> list[Group]:
    """The groups of a seed; the shortest runs train what is trained the fastest."""
    return list(
        draw_groups(
            jobs, sorted(scenarios, key=lambda d: scenarios[d].default_run.time_s), seed, shape
        )
    )


def run_groups(
    groups: Sequence[Group],
    scenarios: Mapping[str, Scenario],
    policies: Sequence[str],
    seed: int = 0,
    processes: int | None = None,
) -> dict[str, dict[str, Ledger]]:
    """Ledgers by workload and policy. Raises JobSpecError for an unknown dataset.

    Every policy meets the same luck: it hangs on the seed and the name of a group. However the work
    is shared among processes, ledgers are added in one order, so that one seed gives one report.
    """
    for group in groups:
        if group.dataset not in scenarios:
            remedy = f"These traces train on {', '.join(scenarios)}"
            raise JobSpecError.of(
                "dataset", group.dataset, f"of group {group.name!r} is not in the traces", remedy
            )
    parts = [(policy, chunk) for policy in policies for chunk in _chunks(groups)]
    names = {s.pair.workload: {policy: Ledger() for policy in policies} for s in scenarios.values()}
    played = on_all_cores(partial(_play, scenarios, seed), parts, processes)
    for (policy, _), found in zip(parts, played, strict=True):
        for workload, ledger in found.items():
            names[workload][policy].join(ledger)
    return {name: ledgers for name, ledgers in names.items() if ledgers[policies[0]].submissions}


def _chunks(groups: Sequence[Group]) -> list[list[Group]]:
    """The largest groups first, so that no process is left alone with one at the end."""
    chunks: list[list[Group]] = []
    room = 0
    for group in sorted(groups, key=lambda group: -len(group.submissions)):
        if room <= 0:
            chunks.append([])
            room = CHUNK
        chunks[-1].append(group)
        room -= len(group.submissions)
    return chunks


def _play(
    scenarios: Mapping[str, Scenario], seed: int, work: tuple[str, Sequence[Group]]
) -> dict[str, Ledger]:
    policy, groups = work
    found: dict[str, Ledger] = {}
    for group in groups:
        scenario = scenarios[group.dataset]
        luck = zlib.crc32(f"{seed}/{group.name}".encode())
        ledger = play(player_of(policy, scenario, luck), scenario, group.submissions)
        ledger.batch_sizes.clear()  # of no use to the report, and long
        found.setdefault(scenario.pair.workload, Ledger()).join(ledger)
    return found


def report_of(found: Mapping[str, Mapping[str, Ledger]]) -> dict[str, Any]:
    """The whole ``report.json``; ``energy`` and ``time`` are cumulative, Default = 1."""
    whole: dict[str, Ledger] = {policy: Ledger() for row in found.values() for policy in row}
    for row in found.values():
        for policy, ledger in row.items():
            whole[policy].join(ledger)
    rows = found if len(found) == 1 else {**found, ALL: whole}
    workloads = {
        name: {policy: _figures(ledger) for policy, ledger in row.items()}
        for name, row in rows.items()
    }
    submissions = sum(next(iter(row.values())).submissions for row in found.values())
    return {"source": "simulated", "submissions": submissions, "workloads": workloads}


def _figures(ledger: Ledger) -> dict[str, Any]:
    figures = asdict(ledger)
    del figures["batch_sizes"]
    energy = ledger.energy_j / ledger.default_energy_j
    time_ = ledger.time_s / ledger.default_time_s
    return {
        "energy": energy,
        "time": time_,
        "cost": ledger.cost_j / ledger.default_cost_j,
        **figures,
    }


COLUMNS = {
    "workload": "{workload}",
    "policy": "{policy}",
    "submissions": "{submissions:,}",
    "energy": "{energy:.3f}",
    "time": "{time:.3f}",
    "attempts each": "{each:.3f}",
    "concurrent": "{concurrent:,}",
    "on the incumbent": "{concurrent_incumbent:,}",
    "below target": "{runs_below_target}",
    "without a model": "{runs_without_model}",
}


def markdown_of(report: Mapping[str, Any]) -> str:
    """``report.md``."""
    said = (
        f"{report['submissions']:,} submissions; simulated. Energy and time are sums over all of"
        " them, Default = 1."
    )
    if any("grid_search" in row for row in report["workloads"].values()):
        said += " Grid search begins at the smallest batch size, which small groups hardly leave."
    if any(f["runs_below_target"] for row in report["workloads"].values() for f in row.values()):
        said += " A run below target is not charged for being done again, but counted."
    lines = ["# Overlapping submissions", "", said]
    rows = [
        {"workload": workload, "policy": policy, **f, "each": f["attempts"] / f["submissions"]}
        for workload, row in report["workloads"].items()
        for policy, f in row.items()
    ]
    lines += ["", *table_of(COLUMNS, rows)]
    return "\n".join(lines) + "\n"


@command(
    "--traces --out",
    option("--gpu", help="default: the last one in the folder"),
    option(
        "--trace",
        type=Path,
        metavar="FILE",
        help="a group trace, as alibaba_groups.csv.xz; default: drawn",
    ),
    option(
        "--shape", type=Path, default=SHAPE, metavar="FILE", help="of the groups that are drawn"
    ),
    option(
        "--jobs",
        type=positive,
        default=1_200_000,
        help="runs to draw, which the trace calls jobs (default: 1.2 million)",
    ),
    option(
        "--seed",
        type=int,
        default=0,
        help="of the groups that are drawn, and of the luck of every run",
    ),
    option("--policies", nargs="+", default=list(FIGURE_9), choices=NAMES, metavar="POLICY"),
    option("--processes", type=positive, help="default: one per core"),
    out=Path("groups-report"),
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    traces = chosen_traces(args)
    scenarios = scenarios_of(traces, args.gpu or traces.gpus[-1])
    shape = read_shape(args.shape)
    groups = (
        read_groups(args.trace) if args.trace else drawn(scenarios, args.jobs, args.seed, shape)
    )
    policies = list(dict.fromkeys(args.policies))
    report = report_of(run_groups(groups, scenarios, policies, args.seed, args.processes))
    report["in_groups_of_5"] = (
        sum(n for g in groups if (n := len(g.submissions)) >= OFTEN) / report["submissions"]
    )
    write_report(args.out, report, markdown_of(report))
    print(markdown_of(report), end="")
    print(f"{len(groups):,} groups; {args.out / 'report.md'} after {took(args)}")
