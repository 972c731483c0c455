"""What is asked of the default policy, on all cases together, in one table:
``python -m benchmarks.targets``.

    python -m benchmarks.targets --traces DIR --series DIR --max-epochs bike=60 flights=40 --mlperf
    DIR --held DIR

Prints, for each figure that is asked for, what was found, what is asked and whether it is met; then
every figure of all cases (``case_set``), group by group; of each, a lower one is better. Regrets
are expected ones; the public code's, the repaired paper's policy's and hill climbing's are replayed
beside ours with common random numbers. ``--held`` names traces of further GPUs, on which nothing
may be tuned; ``--mlperf`` MLPerf's convergence points. Rows of a folder that is not named are left
out. ``--only`` takes some groups alone, ``--every N`` every N-th drift and the regimes of every
N-th pair. ``--before FILE`` holds the figures against a report of an earlier state (``--report``,
same options). ``--without`` takes rules and constants away from the same cases (``rules_off``), and
from every N-th kind of made jobs. Everything is simulated, all jobs have the default audit; the
last line says which seeds were drawn, ``--first-seed`` where they begin.

*Overdraft*: the most that a job ever was behind always the default, in runs of the default, on any
of the sample paths; 2 % of what always the default would have cost is subtracted,
and slices that no size reaches are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from airflow_provider_zeus.model.trial import Decision
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.command import chosen_traces, command, option, took
from benchmarks.quality import drifts, regimes, rules_off, troubles
from benchmarks.quality.asked import SPEED, Figure, Figures, cost_of, markdown, since, worst
from benchmarks.quality.case_set import (
    AFTER,
    RECURRING,
    Cases,
    shifting,
    told,
    two_sizes_alone,
)
from benchmarks.quality.choosers import HILL_CLIMBING
from benchmarks.quality.drifts import LOST, SHIFT
from benchmarks.quality.made_jobs import AUDIT, MOVED, MOVED_DEFAULTS, STUCK
from benchmarks.quality.slice_tables import KINDS
from benchmarks.replays import (
    FLOOR,
    OURS,
    PAPERS,
    UPSTREAM,
    Replays,
    Task,
    below_after,
    ratio_between,
    ratios_to_upstream,
    run_tasks,
)
from benchmarks.report import Ratio, geomean_of, ratio_of, write_json
from benchmarks.series import measure
from benchmarks.simulation.driver import replay
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

LOCKED = 20  # newest recurrences, all below target, by which a job counts as locked
TEN = 10  # recurrences


def mean(found: Iterable[float]) -> Figure:
    """Their arithmetic mean."""
    return Figure(statistics.fmean(found))


def mean_percent(ratios: Iterable[float]) -> Figure:
    """Mean change [%] that these ratios of costs are."""
    return Figure(100 * (statistics.fmean(ratios) - 1))


def of_series(cases: Cases, jobs: int | None = None) -> Figures:
    """Total cost [%] against always the default; points behind hill climbing,
    and lost by ``expected_runs``.
    """
    tables = cases.tables()
    found = {
        name: measure(each, [OURS, HILL_CLIMBING], cases.drawn, jobs)
        for name, each in tables.items()
    }
    knowing = {
        name: measure(told(each), [OURS], cases.drawn, jobs) for name, each in tables.items()
    }

    def cost(by: Mapping[str, Any], kind: str, policy: str = OURS) -> float:
        return 100 * (float(by[policy][kind]["total_vs_default"]) - 1)

    figures: Figures = {}
    for kind in KINDS:
        each = {name: cost(by, kind) for name, by in found.items()}
        figures |= {f"{kind}: mean": mean(each.values()), f"{kind}: worst": worst(each)}
        figures |= {f"{kind}: {name}": Figure(value) for name, value in each.items()}
        lost = {name: cost(knowing[name], kind) - value for name, value in each.items()}
        figures |= {
            f"expected_runs, {kind}: mean": mean(lost.values()),
            f"expected_runs, {kind}: worst": worst(lost),
        }
    for kind in KINDS:
        figures[cost_of(kind)] = geomean_percent(
            by[OURS][kind]["total_vs_default"] for by in found.values()
        )
    figures[cost_of("expected runs")] = geomean_percent(
        of["total_vs_default"] for by in knowing.values() for of in by[OURS].values()
    )
    behind = {
        name: cost(by, "large") - cost(by, "large", HILL_CLIMBING) for name, by in found.items()
    }
    figures["large: behind hill climbing"] = worst(behind)
    figures["overdraft: series"] = _overdraft({**found, **_named("told", knowing)})
    return figures


def _named(prefix: str, found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix} {name}": each for name, each in found.items()}


def _overdraft(found: Mapping[str, Any]) -> Figure:
    """The highest in figures of ``benchmarks.series``, by table."""
    return worst(
        {
            f"{name} {kind}": float(of["overdraft"])
            for name, by in found.items()
            for kind, of in by[OURS].items()
        }
    )


def of_mlperf(cases: Cases, jobs: int | None = None) -> Figures:
    """Cells dearer than hill climbing by more than 1 %,
    and total cost [%] against the best fixed size.
    """
    behind: dict[str, float] = {}
    near = []
    measured: dict[str, Any] = {}
    for name, each in cases.mlperf_tables().items():
        found = measured[name] = measure(each, [OURS, HILL_CLIMBING], cases.drawn, jobs)
        for kind, ours in found[OURS].items():
            theirs = found[HILL_CLIMBING][kind]
            behind[f"{name} {kind}"] = 100 * (ours["vs_best_fixed"] / theirs["vs_best_fixed"] - 1)
        near.append(100 * (found[OURS]["near_optimal"]["vs_best_fixed"] - 1))
    if not behind:
        return {}
    cells = Figure(sum(b > 1 for b in behind.values()), f"of {len(behind)}")
    return {
        "mlperf: cells behind": cells,
        cost_of("mlperf"): geomean_percent(
            of["total_vs_default"] for by in measured.values() for of in by[OURS].values()
        ),
        "mlperf: most behind": worst(behind),
        "mlperf: near_optimal": mean(near),
        "overdraft: mlperf": _overdraft(measured),
    }


def of_pairs(cases: Cases, jobs: int | None = None) -> Figures:
    """Regret at the end as a multiple of the public code's; with the default audit,
    of that without one.
    """
    figures = _of_pairs("pairs", cases.traces, cases, jobs)
    if cases.held is not None:
        figures |= _of_pairs("held", cases.held, cases, jobs)
    return figures


def _of_pairs(name: str, folder: Path, cases: Cases, jobs: int | None) -> Figures:
    seeds = tuple(cases.drawn)
    gpus = Traces(folder).gpus
    new = [gpu for gpu in gpus if name == "pairs" or gpu not in Traces(cases.traces).gpus]
    pairs = Traces(folder).pairs(new)
    ours = [Task(p.workload, p.gpu, OURS, seeds, audit=AUDIT) for p in pairs]
    plain = [Task(p.workload, p.gpu, OURS, seeds) for p in pairs]
    public = [Task(p.workload, p.gpu, UPSTREAM, seeds) for p in pairs]
    found = run_tasks(folder, [*ours, *plain, *public], jobs)
    audited = {task.pair: found[task] for task in ours}
    ratios = ratios_to_upstream({task: found[task] for task in (*ours, *public)})
    audits = [
        ratio_of(_ends(found[of]), _ends(found[without]), FLOOR)
        for of, without in zip(ours, plain, strict=True)
    ]
    figures = _ratios(name, ratios)
    figures[f"{name}: audit"] = Figure(geomean_of(audits).value)
    for after, said in ((TEN, "after ten"), (0, "all")):
        costs = {
            pair: 100 * (statistics.fmean(curve[after - 1] for curve in of.vs_default) - 1)
            for pair, of in audited.items()
        }
        figures[f"{name}, {said}: mean"] = mean(costs.values())
        figures[f"{name}, {said}: worst"] = worst(costs)
    most = {pair: max(of.overdraft) for pair, of in audited.items()}
    figures[cost_of(name)] = geomean_percent(_totals(audited.values()))
    return {**figures, f"overdraft: {name}": worst(most)}


def _totals(found: Iterable[Replays]) -> list[float]:
    """Cost of each job over that of always the default, mean of its seeds."""
    return [statistics.fmean(curve[-1] for curve in of.vs_default) for of in found]


def _ends(found: Replays) -> list[float]:
    return [curve[-1] for curve in found.expected_regret]


def _ratios(name: str, found: Mapping[str, Ratio]) -> Figures:
    whole = Figure(geomean_of(found.values()).value)
    return {
        f"{name}: mean": whole,
        f"{name}: worst": worst({case: ratio.value for case, ratio in found.items()}),
    }


def of_drifts(cases: Cases, jobs: int | None = None) -> Figures:
    """Regret from the shift on as a multiple of the repaired paper's policy's."""
    found = drifts.run_all(shifting(cases), (OURS, PAPERS), cases.drawn, jobs)
    most = {name: max(of[OURS].overdraft) for name, of in found.items()}
    ratios = {name: ratio_between(of, since=SHIFT) for name, of in found.items()}
    costs = geomean_percent(_totals(of[OURS] for of in found.values()))
    return {
        **_ratios("drifts", ratios),
        cost_of("drifts"): costs,
        "overdraft: drifts": worst(most),
    }


def of_regimes(cases: Cases, jobs: int | None = None) -> Figures:
    """Runs below target after a shift; jobs that are locked below it;
    changes that are seen where there are none.
    """
    some = [Scenario(pair) for pair in cases.pairs()[:: cases.every]]
    played = regimes.run_all(some, cases.drawn, jobs, audit=AUDIT, policies=(OURS,))
    most = {
        f"{name}, {pair}": max(of[OURS].replays.overdraft)
        for name, by_pair in played.items()
        for pair, of in by_pair.items()
    }
    every = [of[OURS].replays for by_pair in played.values() for of in by_pair.values()]
    figures: Figures = {
        cost_of("regimes"): geomean_percent(_totals(every)),
        "overdraft: regimes": worst(most),
    }
    lost = {name: played[name] for name in LOST if name in played}
    below = {
        f"{name}, {pair}": below_after(of[OURS].replays, SHIFT)["below"][0]
        for name, by_pair in lost.items()
        for pair, of in by_pair.items()
    }
    figures |= {"below: mean": mean(below.values()), "below: worst": worst(below)}
    alarms = [statistics.fmean(of[OURS].changes) for of in played["nothing changes"].values()]
    figures["false alarms"] = mean(alarms)
    locked = sum(_locked(of[OURS].replays) for by_pair in lost.values() for of in by_pair.values())
    if (alone := two_sizes_alone(cases)) is not None:
        (of,) = drifts.run_all({"": alone}, [OURS], cases.drawn, jobs).values()
        figures["two sizes alone: below"] = Figure(
            below_after(of[OURS], SHIFT)["below"][0], f"of {AFTER}"
        )
        locked += _locked(of[OURS])
    return {**figures, "locked": Figure(float(locked))}


def _locked(found: Replays) -> int:
    """Jobs whose newest recurrences all ended below target, though some size reaches it."""
    ends = [len(sizes) for sizes in found.batch_sizes]
    return sum(
        {*range(end - LOCKED, end)} <= {*below}
        for end, below in zip(ends, found.below_target, strict=True)
    )


def of_made(cases: Cases, jobs: int | None = None) -> Figures:
    """Jobs of the generator: cost [%], recurrences below target, jobs that end stuck,
    and overdraft.
    """
    found = troubles.run_all(cases.drawn, jobs)
    figures: Figures = {}
    for cell, played in found.items():
        figures[f"{cell.name}: against the default"] = mean_percent(p.vs_default for p in played)
        figures[f"{cell.name}: against the best"] = mean_percent(p.vs_best for p in played)
        figures[f"{cell.name}: below target"] = mean(p.below_target for p in played)
        stuck = sum(p.stuck for p in played)
        figures[f"{cell.name}: stuck"] = Figure(float(stuck), f"of {len(played)}")
        figures[f"{cell.name}: overdraft"] = Figure(max(p.overdraft for p in played))
    for kind in MOVED_DEFAULTS:
        each = [p for at in MOVED for p in found[troubles.Cell(at, kind)]]
        figures[f"moved, {kind}: against the best"] = mean_percent(p.vs_best for p in each)
    stuck_in = [p for cell, of in found.items() if cell.trouble in STUCK for p in of]
    stuck = sum(p.stuck for p in stuck_in)
    figures["missed or hopeless: stuck"] = Figure(float(stuck), f"of {len(stuck_in)}")
    most = {cell.name: max(p.overdraft for p in played) for cell, played in found.items()}
    return figures | {"overdraft: made": worst(most)}


def of_speed(cases: Cases, jobs: int | None = None) -> Figures:
    """CPU time of a decision [ms], of the measured pairs, in this process alone."""
    spent_s = 0.0
    decisions = 0

    def timed(situation: Situation) -> Decision:
        nonlocal spent_s, decisions
        began_s = process_time()
        decision = choose(situation)
        spent_s += process_time() - began_s
        decisions += 1
        return decision

    for pair in cases.pairs():
        scenario = Scenario(pair)
        job = scenario.job(audit=AUDIT)
        replay(scenario, job, pair.recurrences, cases.first_seed, choose=timed)
    return {SPEED: Figure(1000 * spent_s / decisions, f"of {decisions}")}


def geomean_percent(ratios: Iterable[float]) -> Figure:
    """Geometric mean of ratios of costs, as a change [%]."""
    return Figure(100 * (statistics.geometric_mean(ratios) - 1))


GROUPS: Mapping[str, Callable[[Cases, int | None], Figures]] = {
    "made": of_made,
    "series": of_series,
    "mlperf": of_mlperf,
    "pairs": of_pairs,
    "drifts": of_drifts,
    "regimes": of_regimes,
    "speed": of_speed,
}


def figures_of(
    cases: Cases, jobs: int | None = None, groups: Sequence[str] = tuple(GROUPS)
) -> Figures:
    """The figures of these groups."""
    return {name: figure for group in groups for name, figure in GROUPS[group](cases, jobs).items()}


@command(
    "--traces --every --series --max-epochs --seeds --report --jobs",
    option("--mlperf", type=Path, metavar="DIR"),
    option("--held", type=Path, metavar="DIR"),
    option("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), metavar="GROUP"),
    option("--first-seed", type=int, default=0, metavar="N"),
    option(
        "--without",
        action="store_true",
        help="instead: what each rule and constant is worth on these cases",
    ),
    option("--before", type=Path, metavar="FILE", help="a report of an earlier state"),
    seeds=8,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    cases = Cases(
        chosen_traces(args).folder, args.series, tuple(args.max_epochs), args.mlperf, args.held
    )
    cases = cases._replace(
        seeds=args.seeds,
        every=args.every,
        first_seed=args.first_seed,
    )
    if args.without:
        groups = [group for group in args.only if group in RECURRING]
        print("\n".join(rules_off.worth(cases, groups, args.jobs)))
        print(f"change of the total cost [%]; {args.seeds} seeds; {took(args)}")
        return
    stored = {} if args.before is None else json.loads(args.before.read_text(encoding="utf-8"))
    before = {name: Figure(*figure) for name, figure in stored.items()}
    found = figures_of(cases, args.jobs, args.only)
    print("\n".join(markdown({**found, **since(found, before)}, before)))
    print(
        f"{args.seeds} seeds from {args.first_seed} on; drifts and pairs of regimes by steps of"
        f" {args.every}; audit {AUDIT:g}; {took(args)}"
    )
    write_json(args.report, {name: list(figure) for name, figure in found.items()})
