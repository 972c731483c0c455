"""Where the policy loses: ``python -m benchmarks.regimes --traces DIR [--series DIR] [--report OUT.json]``.

    python -m benchmarks.regimes --traces DIR --every 4 --seeds 4       # a quarter of the pairs, in under a minute

Prints one table: real retraining series, each from a small, a near-optimal and a large default, then every regime of
``regime_set`` on every measured pair. Figures are the total cost of the default policy's runs, against always training
the default batch size and against the paper's policy: arithmetic mean over the pairs and the worst pair, with 95 %
intervals over the seeds. Bold: surely dearer. The regimes' costs are expected costs, so those of their default hang on
no seed; a series' are those of its measured trainings (``benchmarks.series``). A run below target is not charged for
being done again, but counted.

What else is said of a regime: recurrences below target from a shift of the data on, and how many of them after the
target was reached again; changes of the data that were seen where there were none, per 100 recurrences; the share of
jobs in which a silent improvement is found, after how many recurrences, and what looking for it cost, in runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.command import chosen_traces, command, parser_of
from benchmarks.cores import on_all_cores
from benchmarks.quality.regime_figures import POLICIES, Part, Played, play, report_of
from benchmarks.quality.regime_set import REGIMES, Regime
from benchmarks.quality.scenario_report import OURS
from benchmarks.quality.slice_tables import Series, read_series, tables_in, weather
from benchmarks.report import bold, table, write_json
from benchmarks.series import measure

SEEDS = 20
Found = dict[str, dict[str, dict[str, Played]]]  # by regime, pair and policy


def run_all(
    scenarios: Sequence[Scenario], seeds: int, jobs: int | None = None, regimes: Sequence[Regime] = REGIMES
) -> Found:
    """These regimes on every pair that they can befall, under both policies."""
    parts = [
        Part(regime.name, scenario, policy, seeds)
        for regime in regimes
        for scenario in scenarios
        for policy in POLICIES
        if regime.job(scenario, 0) is not None
    ]
    found: Found = {}
    for part, played in zip(parts, on_all_cores(play, parts, jobs), strict=True):
        found.setdefault(part.regime, {}).setdefault(part.scenario.pair.name, {})[part.policy] = played
    return found


def series_of(folder: Path | None, max_epochs: Mapping[str, int]) -> dict[str, Series]:
    """The weather example's series, and those of a folder. Raises JobSpecError where one cannot be read."""
    paths = {path.stem: path for path in tables_in(folder)} if folder else {}
    for name, most in max_epochs.items():
        if name not in paths:
            remedy = f"Name one of {', '.join(paths)}" if paths else "Give --series"
            raise JobSpecError.of("--max-epochs", f"{name}={most}", "is of no series here", remedy)
    return {"weather": weather(), **{name: read_series(path, max_epochs.get(name)) for name, path in paths.items()}}


def markdown(report: Mapping[str, Any]) -> list[str]:
    """The report as a table."""
    head = ["regime", "pairs", "against always the default", "worst pair", "against the paper's policy", "worst pair"]
    rows = [
        _of_series(f"{name} from", kind, f) for name, kinds in report["series"].items() for kind, f in kinds.items()
    ]
    rows += [
        [name, str(of["pairs"]), *_cells(of["vs_default"]), *_cells(of["vs_paper"]), _special(of)]
        for name, of in report["regimes"].items()
    ]
    counts = f"Runs without a model: {report['runs_without_model']}; attempts of a recurrence: {report['attempts']}."
    return [*table([*head, "besides"], rows), "", counts]


def _of_series(name: str, kind: str, f: Mapping[str, Any]) -> list[str]:
    default, below = f"{f['batch_size']} ({kind.replace('_', '-')})", f"{f['runs_below_target']:.1f} below target"
    return [f"{name} {default}", "", bold(f["vs_default"]), "", bold(f["vs_paper"]), "", below]


def _cells(of: Mapping[str, Any]) -> list[str]:
    return [bold(of["mean"]), f"{bold(of['worst'])}, {of['worst_case']}"]


def _special(of: Mapping[str, Any]) -> str:
    if "below_target" in of:
        f = of["below_target"]
        return f"{f['mean']:.1f} below target, {f['again']:.1f} again; worst {f['worst']:.1f}, {f['worst_case']}"
    if "false_alarms" in of:
        f = of["false_alarms"]
        return f"{f['mean']:.2f} false alarms per 100; worst {f['worst']:.2f}, {f['worst_case']}"
    if "found" in of:
        f = of["found"]
        when = "never" if f["median_recurrence"] is None else f"median {f['median_recurrence']:g} recurrences"
        return f"found in {f['share']:.0%} of jobs, {when}; looking cost {f['runs']:.1f} runs"
    return ""


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = parser_of(__doc__, "--traces --every --series --max-epochs --seeds --report --jobs", seeds=SEEDS)
    args, start = parser.parse_args(arguments), time.monotonic()
    pairs = chosen_traces(args).pairs()[:: args.every]
    series = series_of(args.series, dict(args.max_epochs))
    measured = {name: measure(each, [OURS], args.seeds, args.jobs)[OURS] for name, each in series.items()}
    report = report_of(run_all([Scenario(pair) for pair in pairs], args.seeds, args.jobs), measured)
    report = {"source": "simulated", "seeds": args.seeds, **report}
    print("\n".join(markdown(report)))
    print(f"{len(pairs)} pairs, {args.seeds} seeds, common random numbers; {time.monotonic() - start:.0f} s")
    write_json(args.report, report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
