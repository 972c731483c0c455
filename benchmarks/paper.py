"""The paper's evaluation on its own measurements: ``python -m benchmarks.paper --traces DIR --out DIR``.

Replays every workload of the folder on every GPU, 2 |B| |P| recurrences per seed, with common random numbers, and
writes ``report.json``, ``report.md`` and the paper's figures. Regret is in units of C*, the expected cost of the best
batch size (a batch size that fails pays for its failures). Every figure is simulated from measured epochs, times and
powers; nothing is trained here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.command import SELECTION, add, chosen_traces, command, needs, parser_of
from benchmarks.quality import sweeps
from benchmarks.replays import NAMES, UPSTREAM, Replays, Task, run_tasks
from benchmarks.report import Ratio, cell, geomean, geomean_of, mean_ci, plus_minus, ratio_of, table, write_report

EXAMPLE = "deepspeech2/v100"  # of the paper's figures that show one workload
DEFAULT_POLICIES = (*POLICIES, UPSTREAM, "grid_search", "default")
AT = {"regret_10": 9, "regret_20": 19, "regret_50": 49, "regret_end": -1}
RATIOS = {"regret_20": "after 20 recurrences", "regret_end": "at the end"}


def figures_of(found: Replays) -> dict[str, Any]:
    """What the report says of one policy on one pair: [mean, half of ci95] over seeds, and counts."""
    report: dict[str, Any] = {}
    for name, at in AT.items():
        report[name] = mean_ci([curve[min(at, len(curve) - 1)] for curve in found.regret])
        report[f"expected_{name}"] = mean_ci([curve[min(at, len(curve) - 1)] for curve in found.expected_regret])
    for name in ("eta_last5", "tta_last5", "cum_energy"):
        report[name] = mean_ci(getattr(found, name))
    for name in ("runs_without_model", "runs_below_target", "attempts"):
        report[name] = getattr(found, name)
    report["recurrences_per_s"] = round(found.recurrences / found.seconds) if found.seconds else None
    return report


def report_of(results: Mapping[Task, Replays], seeds: int) -> dict[str, Any]:
    """The whole ``report.json``."""
    pairs: dict[str, dict[str, Any]] = {}
    for task, found in results.items():
        pairs.setdefault(task.pair, {})[task.policy] = figures_of(found)
    report: dict[str, Any] = {"source": "simulated", "seeds": seeds, "pairs": pairs}
    policies = list(next(iter(pairs.values())))
    found_at = {name: {p: ratios_to_upstream(results, p, AT[name]) for p in policies} for name in RATIOS}
    report["ratios"] = {
        name: {
            p: {"geomean": geomean_of(of.values()).to_json(), "pairs": {pair: r.to_json() for pair, r in of.items()}}
            for p, of in by_policy.items()
        }
        for name, by_policy in found_at.items()
    }
    ratios = {p: {pair: r.value for pair, r in of.items()} for p, of in found_at["regret_end"].items()}
    report["geomean_vs_upstream"] = {policy: geomean(r.values()) for policy, r in ratios.items()}
    report["worst_vs_upstream"] = {policy: max(r.values()) for policy, r in ratios.items()}
    report["worst_pair_vs_upstream"] = {policy: max(r, key=r.__getitem__) for policy, r in ratios.items()}
    report["vs_upstream"] = ratios
    return report


def ratios_to_upstream(results: Mapping[Task, Replays], policy: str, at: int) -> dict[str, Ratio]:
    """Expected regret after so many recurrences as a multiple of upstream's, per pair."""
    curves = {(t.pair, t.policy): found.expected_regret for t, found in results.items()}

    def spent(pair: str, of: str) -> list[float]:
        return [curve[min(at, len(curve) - 1)] for curve in curves[pair, of]]

    return {pair: ratio_of(spent(pair, policy), spent(pair, UPSTREAM)) for pair, of in curves if of == policy}


def markdown_of(report: Mapping[str, Any]) -> str:
    """``report.md``."""
    policies = list(report["geomean_vs_upstream"])
    lines = [
        "# Replay of the paper's measurements",
        "",
        f"{report['seeds']} seeds, common random numbers; simulated.",
        "",
    ]
    lines += ["## Regret at the end as a multiple of upstream's", ""]
    lines += table(
        ["policy", "geometric mean", "worst", "worst pair", "without a model", "below target", "recurrences/s"],
        [
            [
                policy,
                f"{report['geomean_vs_upstream'][policy]:.3f}",
                f"{report['worst_vs_upstream'][policy]:.2f}",
                report["worst_pair_vs_upstream"][policy],
                *(str(sum(p[policy][n] for p in report["pairs"].values())) for n in _COUNTS),
                f"{_speed(report, policy):,}",
            ]
            for policy in policies
        ],
    )
    for title, name in RATIOS.items():
        ratios = report["ratios"][title]
        lines += ["", f"## Expected regret {name} as a multiple of upstream's [95 % interval]", ""]
        rows = [[pair, *(cell(ratios[p]["pairs"][pair], ".3f") for p in policies)] for pair in report["pairs"]]
        rows.append(["geometric mean", *(cell(ratios[p]["geomean"], ".3f") for p in policies)])
        lines += table(["pair", *policies], rows)
    for title, name in _TABLES.items():
        lines += ["", f"## {title}", ""]
        rows = [[pair, *(_cell(found[p][name]) for p in policies)] for pair, found in report["pairs"].items()]
        lines += table(["pair", *policies], rows)
    return "\n".join(lines) + "\n"


_COUNTS = ("runs_without_model", "runs_below_target")
_TABLES = {
    "Regret after 10 recurrences [C*]": "regret_10",
    "Regret after 20 recurrences [C*]": "regret_20",
    "Regret after 50 recurrences [C*]": "regret_50",
    "Regret at the end [C*]": "regret_end",
    "Expected regret at the end [C*]": "expected_regret_end",
    "Energy of the last five recurrences, Default = 1 (Figure 6a)": "eta_last5",
    "Time of the last five recurrences, Default = 1 (Figure 6b)": "tta_last5",
    "Energy of all recurrences, Default = 1": "cum_energy",
}


def _speed(report: Mapping[str, Any], policy: str) -> int:
    return round(min(p[policy]["recurrences_per_s"] or 0 for p in report["pairs"].values()))


def _cell(figure: Sequence[float]) -> str:
    return plus_minus(figure, ".3f" if figure[0] < 10 else ".2f")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = parser_of(__doc__, SELECTION, seeds=200, out=Path("paper-report"))
    parser.add_argument("--policies", nargs="+", default=list(DEFAULT_POLICIES), choices=NAMES, metavar="POLICY")
    args, start = add(parser, "--no-pictures").parse_args(arguments), time.monotonic()
    if not args.no_pictures:
        needs("matplotlib", ", or --no-pictures")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    policies = list(dict.fromkeys([*args.policies, UPSTREAM]))
    seeds = tuple(range(args.seeds))
    tasks = [Task(p.workload, p.gpu, policy, seeds) for p in pairs for policy in policies]
    swept = [] if args.no_pictures else sweeps.tasks_of(pairs, policies, seeds)
    found = run_tasks(args.traces, list(dict.fromkeys([*tasks, *swept])), args.jobs)
    results = {task: found[task] for task in tasks}
    report = report_of(results, args.seeds)
    if swept:
        report["sweeps"] = sweeps.report_of({task: found[task] for task in swept})
    write_report(args.out, report, markdown_of(report))
    if not args.no_pictures:
        draw(report, results, [Scenario(p) for p in pairs], policies, args.out)
    for policy in policies:
        ratio, worst = report["geomean_vs_upstream"][policy], report["worst_vs_upstream"][policy]
        pair = report["worst_pair_vs_upstream"][policy]
        print(f"{policy:20} {ratio:7.3f} x upstream's regret, at worst {worst:.2f} x on {pair}")
    print(f"{args.out / 'report.md'} after {time.monotonic() - start:.0f} s")
    return 0


def draw(
    report: Mapping[str, Any],
    results: Mapping[Task, Replays],
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    out: Path,
) -> None:
    """The paper's figures, one file each and per GPU."""
    from benchmarks.quality import figures  # it brings matplotlib

    for gpu in dict.fromkeys(s.pair.gpu for s in scenarios):
        figures.of_gpu(report, results, [s for s in scenarios if s.pair.gpu == gpu], policies, out, f"-{gpu}")
    figures.of_all(report, scenarios, policies, out)
    example = next((s for s in scenarios if s.pair.name == EXAMPLE), scenarios[0])
    figures.of_example(example, figures.searching(report, policies), out)
    figures.parts(report, out / "ablation.png")


if __name__ == "__main__":
    raise SystemExit(main())
