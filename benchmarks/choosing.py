"""``docs/choosing.md``: ``python -m benchmarks.choosing --traces DIR --series DIR --max-epochs bike=60 flights=40``.

For who chooses between this package and what else there is: the same workloads under zeus 0.16 as it is, a fixed cap of
60 %, always the default at full power, the best configuration in hindsight, and this package's two policies, all in
one replay with one accounting (``choosers``). Then real retraining series (``benchmarks.series``) and the regimes of
``benchmarks.regimes``, in which the default policy gains least. Seeds 0 to N - 1; prints the first table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Pair
from benchmarks import regimes
from benchmarks.command import SELECTION, chosen_traces, command, named, needs, parser_of, positive
from benchmarks.quality.choosers import HILL_CLIMBING, PACKAGE
from benchmarks.quality.choosing_page import NAMES, OURS, Measured, overview, page_of
from benchmarks.quality.regime_figures import report_of as regimes_report
from benchmarks.replays import Replays, Task, run_tasks
from benchmarks.series import measure

SEEDS, REGIME_SEEDS = 40, 4


def hold(
    folder: Path, pairs: Sequence[Pair], seeds: int, jobs: int | None = None, choosers: Iterable[str] = NAMES
) -> dict[str, dict[str, Replays]]:
    """Every chooser on every pair."""
    tasks = [Task(p.workload, p.gpu, chooser, tuple(range(seeds))) for p in pairs for chooser in choosers]
    held: dict[str, dict[str, Replays]] = {p.name: {} for p in pairs}
    for task, found in run_tasks(folder, tasks, jobs).items():
        held[task.pair][task.policy] = found
    return held


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; 2 where it cannot be made."""
    parser = parser_of(__doc__, f"{SELECTION} --series", seeds=SEEDS, out=Path("docs/choosing.md"))
    parser.add_argument(
        "--max-epochs", type=named, nargs="+", default=[], metavar="NAME=N", help="of a series' trainings"
    )
    parser.add_argument("--regime-seeds", type=positive, default=REGIME_SEEDS)
    args = parser.parse_args(arguments)
    needs("zeus")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    tables = regimes.series_of(args.series, dict(args.max_epochs))
    scenarios = [Scenario(p) for p in pairs]
    held = hold(args.traces, pairs, args.seeds, args.jobs)
    ways = [OURS, "zeus", PACKAGE, HILL_CLIMBING]
    series = {name: measure(each, ways, args.seeds, args.jobs) for name, each in tables.items()}
    played = regimes.run_all(scenarios, args.regime_seeds, args.jobs)
    of_regimes = regimes_report(played, {name: by[OURS] for name, by in series.items()})
    epochs = " ".join(f"{name}={n}" for name, n in args.max_epochs)
    said = "python -m benchmarks.choosing --traces DIR" + (" --series DIR" if args.series else "")
    said += (f" --max-epochs {epochs}" if epochs else "") + " --out docs/choosing.md"
    found = Measured(held, scenarios, series, of_regimes, args.seeds, args.regime_seeds, said)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page_of(found), encoding="utf-8")
    print("\n".join(overview(held)))
    print(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
