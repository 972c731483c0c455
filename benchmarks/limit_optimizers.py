"""The power limit's profiler against upstream's ``GlobalPowerLimitOptimizer`` (the development dependency ``zeus``).

``python -m benchmarks.limit_optimizers --traces DIR``: both train on one GPU that replays the authors' measurements, at
17 to 1,100 steps an epoch; which limit each found, when, and what it spent on finding it. ``--all`` adds every batch
size of every workload and GPU of the folder whose epoch's size is known. Energy and time are simulated; what the
wrappers cost a step is real time, on a GPU that answers at once, in one run. Writes ``limit-optimizers.json`` and
``.md``.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.simulated.models import EPOCHS
from airflow_provider_zeus.training.run import ZeusRun
from benchmarks.command import chosen_traces, command, needs, option
from benchmarks.parts.limit_replay import OPTIMIZERS, Curve, plan, their_optimizer
from benchmarks.report import table, write_report
from benchmarks.simulation.traces import Traces

STEPS_PER_EPOCH = (17, 45, 60, 200, 1_100)
LEAST_STEPS, LEAST_S = 2_500, 480.0  # of a training: time enough for either to finish
COST_STEPS, COST_ROUNDS = 20_000, 9


def curves_of(traces: Traces) -> list[Curve]:
    """Every curve whose steps' length is known and that has more than one limit."""
    pairs = [p for p in traces.pairs() if p.workload in EPOCHS]
    return [Curve.of(p, b) for p in pairs for b, points in p.points.items() if len(points) > 1]


def compared(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row per length of an epoch and optimizer: figures of each curve, which :func:`summed` adds up."""
    rows = []
    for steps in STEPS_PER_EPOCH:
        for name, optimizer in OPTIMIZERS.items():
            found = []
            for curve in curves:
                least = max(LEAST_STEPS, math.ceil(LEAST_S / curve.step_s))
                with tempfile.TemporaryDirectory() as folder:
                    found.append(optimizer(curve, steps, math.ceil(least / steps) + 1, Path(folder)).report())
            rows.append({"steps_per_epoch": steps, "optimizer": name, "found": found})
            if len(curves) > 1:
                print(f"{steps} steps an epoch, {name}: {len(curves)} curves", file=sys.stderr, flush=True)
    return rows


def summed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of all curves of a row: how many were decided, mean and worst regret; medians of those that were decided."""
    found = row["found"]
    done = [f for f in found if f["done_steps"] is not None]
    regrets = [f["regret"] for f in found]

    def median(name: str) -> float | None:
        return statistics.median(f[name] for f in done) if done else None

    return {
        "decided": len(done),
        "failed": sum(bool(f["problem"]) for f in found),
        "regret_mean": statistics.fmean(regrets),
        "regret_worst": max(regrets),
        **{name: median(name) for name in ("limits", "done_steps", "done_epochs", "excess_j", "excess_s")},
        "excess_best_steps": median("excess_best_steps"),
    }


# ---------------------------------------------------------------------- what a step costs
class InstantGpu(SimulatedGpu):
    """Answers at once and is told nothing; the clock is the host's."""

    def now_s(self) -> float:
        return time.perf_counter()

    def energy_j(self) -> float:
        return time.perf_counter() * 100.0

    def on_step(self, samples: int) -> None:
        pass


def step_costs(steps: int, rounds: int) -> dict[str, float]:
    """Nanoseconds of one call of each wrapper, the loop around it left out: median of rounds, in turns.

    Ours counts samples and meters energy all the time; upstream's optimizer alone does not.
    """
    curve = Curve("toy", "toy", 8, (100.0, 200.0), (2e-3, 1e-3), (100.0, 200.0))
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, curve.opened(Path(name), InstantGpu) as gpu:
        folder, endless = Path(name), 10**9
        with (
            their_optimizer(gpu, warmup_steps=1, profile_steps=endless) as profiling,
            their_optimizer(gpu, wait_steps=0, warmup_steps=1, profile_steps=1) as decided,
        ):
            for _ in range(10):
                profiling.on_step_begin()
                decided.on_step_begin()
            gpu.set_limit_w(200.0)
            ours = {
                "ours, profiling": _running(gpu, folder, profile_steps=endless),
                "ours, decided": _running(gpu, folder, mode="measure"),
            }
            loops: dict[str, Callable[[], object]] = {
                "loop": lambda: None,  # the least that a call costs
                **{name: run.step for name, run in ours.items()},
                "upstream, profiling": profiling.on_step_begin,
                "upstream, decided": decided.on_step_begin,
            }
            for _ in range(rounds):
                for kind, call in loops.items():
                    began_ns = time.perf_counter_ns()
                    for _ in range(steps):
                        call()
                    times.setdefault(kind, []).append((time.perf_counter_ns() - began_ns) / steps)
            for run in ours.values():
                run.close()
    bare_ns = statistics.median(times.pop("loop"))
    found = {kind: statistics.median(ns) - bare_ns for kind, ns in times.items()}
    for kind in ("profiling", "decided"):
        found[f"ratio, {kind}"] = found[f"ours, {kind}"] / found[f"upstream, {kind}"]
    return found


def _running(gpu: SimulatedGpu, folder: Path, **spec: Any) -> ZeusRun:
    run = ZeusRun.from_plan(plan(8, 1, folder, **spec), device=gpu)
    next(iter(run.epochs()))
    return run


# ---------------------------------------------------------------------- in words
def markdown_of(report: Mapping[str, Any]) -> str:
    """``limit-optimizers.md``."""
    lines = [f"## One GPU: {report['one']['curve']}; simulated", ""]
    head = ["steps an epoch", "optimizer", "limit found [W]", "best [W]", "cost above the best", "limits measured"]
    head += ["decided after", "excess energy [J]", "excess time [s]", "excess in steps at the best limit"]
    lines += table(head, [_one_row(row, row["found"][0]) for row in report["one"]["rows"]])
    if "all" in report:
        count = report["all"]["curves"]
        lines += ["", f"## All {count} curves; simulated; medians of what was decided", ""]
        head = ["steps an epoch", "optimizer", "decided", "failed", "cost above the best: mean", "worst"]
        head += ["limits measured", "decided after", "excess energy [J]", "excess in steps at the best limit"]
        lines += table(head, [_all_row(row, summed(row), count) for row in report["all"]["rows"]])
    lines += ["", "## What the wrapper costs a step", ""]
    lines += table(
        ["wrapper", "ns", "as a multiple of upstream's"],
        [
            [name, f"{ns:.0f}", f"{report['step_cost_ns'][f'ratio, {name[6:]}']:.1f}" if name[:4] == "ours" else ""]
            for name, ns in report["step_cost_ns"].items()
            if not name.startswith("ratio")
        ],
    )
    return "\n".join(lines) + "\n"


def _one_row(row: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Where nothing was decided, the excess is that of the whole training, and stands in brackets."""
    done = found["done_steps"] is not None
    after = found["problem"] or f"not in {found['steps']:,} steps"
    if done:
        after = f"{found['done_steps']:,} steps, {found['done_epochs']:.1f} epochs"
    excess = [f"{found[name]:,.0f}" for name in ("excess_j", "excess_s", "excess_best_steps")]
    return [
        f"{row['steps_per_epoch']:,}",
        row["optimizer"],
        f"{found['limit_w']:g}",
        f"{found['best_w']:g}",
        f"{found['regret']:.2%}",
        str(found["limits"]),
        after,
        *(excess if done else (f"({figure})" for figure in excess)),
    ]


def _all_row(row: Mapping[str, Any], found: Mapping[str, Any], curves: int) -> list[str]:
    def n(name: str, form: str = ",.0f") -> str:
        return "-" if found[name] is None else format(found[name], form)

    after = f"{n('done_steps')} steps, {n('done_epochs', ',.1f')} epochs" if found["decided"] else "-"
    return [
        f"{row['steps_per_epoch']:,}",
        row["optimizer"],
        f"{found['decided']} of {curves}",
        str(found["failed"]),
        f"{found['regret_mean']:.2%}",
        f"{found['regret_worst']:.1%}",
        n("limits"),
        after,
        n("excess_j"),
        n("excess_best_steps"),
    ]


@command(
    "--traces --out",
    option("--workload", default="shufflenet"),
    option("--gpu", default="v100"),
    option("--batch-size", type=int, default=1024),
    option("--all", action="store_true", help="every curve of the folder too: some minutes"),
    out=Path("limit-optimizers"),
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    logging.getLogger("airflow_provider_zeus").setLevel(logging.ERROR)  # a line per attempt
    needs("zeus")
    traces = chosen_traces(args)
    pair = traces.pair(args.workload, args.gpu)
    if pair.workload not in EPOCHS:
        known = ", ".join(EPOCHS)
        raise JobSpecError.of("workload", pair.workload, "the size of its epoch is not known", f"Use one of {known}")
    one = Curve.of(pair.starting_at(args.batch_size), args.batch_size)
    curves = curves_of(traces) if args.all else []
    report: dict[str, Any] = {"source": "simulated", "one": {"curve": one.name, "rows": compared([one])}}
    if curves:
        report["all"] = {"curves": len(curves), "rows": compared(curves)}
    report["step_cost_ns"] = step_costs(COST_STEPS, COST_ROUNDS)
    text = markdown_of(report)
    write_report(args.out, report, text, "limit-optimizers")
    print(text)
