"""``docs/reproduction.md``: ``python -m benchmarks.reproduction --traces DIR --out docs/reproduction.md``.

Each figure and table of the paper with the published value and ours, for the public algorithm (``benchmarks.literal``
with every switch off), the paper's policy as this project settles it (``"zeus"``) and the default policy. Replays of
``benchmarks.paper``, seeds 0 to N - 1; sweeps with the first ten of them. Pictures go to ``images/<page>/`` beside the
page. Prints the headlines. Everything is simulated from measured epochs, times and powers; nothing is trained here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.simulation.environment import Run
from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks import sweeps
from benchmarks.command import SELECTION, chosen_traces, command, needs, parser_of, positive
from benchmarks.paper import EXAMPLE, report_of
from benchmarks.replays import UPSTREAM, Replays, Task, run_tasks
from benchmarks.reproduction_figures import clusters
from benchmarks.weather_measure import example_job
from benchmarks.weather_replay import replay as replay_weeks
from benchmarks.weather_table import TABLE, read, weeks_of

SEEDS = 40
SHOWN = (*POLICIES, UPSTREAM, "grid_search")
MAIN_GPU = "v100"  # of the paper's evaluation, where nothing else is said
SUBMISSIONS = 4_000  # of each draw of overlapping groups


class Results(NamedTuple):
    """All that the page and its pictures are made of."""

    report: Mapping[str, Any]  # of benchmarks.paper, with its sweeps
    replays: Mapping[Task, Replays]
    scenarios: Sequence[Scenario]
    clusters: Mapping[str, Any]
    slices: Mapping[str, Sequence[Sequence[Run]]]  # by policy: the runs of each week of the weather example, seed 0
    gpu: str  # of the figures that show one
    seeds: int
    submissions: int  # of each draw of overlapping groups

    def on(self, gpu: str) -> list[Scenario]:
        """Of one GPU."""
        return [s for s in self.scenarios if s.pair.gpu == gpu]

    def replays_of(self, pair: str, policy: str) -> Replays:
        """Of one policy on one pair."""
        return next(r for t, r in self.replays.items() if (t.pair, t.policy) == (pair, policy))

    def scenario(self, pair: str) -> Scenario | None:
        """By name, None where it was not measured."""
        return next((s for s in self.scenarios if s.pair.name == pair), None)

    @property
    def example(self) -> Scenario:
        """The workload of the figures that show one."""
        return self.scenario(EXAMPLE) or self.scenarios[0]


def results_of(args: argparse.Namespace) -> Results:
    """Replay everything. Raises JobSpecError where the traces cannot be read."""
    traces = chosen_traces(args)
    pairs = traces.pairs(args.gpus, args.workloads)
    seeds = tuple(range(args.seeds))
    policies = [*SHOWN, "default"]
    tasks = [Task(p.workload, p.gpu, policy, seeds) for p in pairs for policy in policies]
    swept = sweeps.tasks_of(pairs, policies, seeds)
    found = run_tasks(args.traces, list(dict.fromkeys([*tasks, *swept])), args.jobs)
    replays = {task: found[task] for task in tasks}
    report = report_of(replays, args.seeds)
    report["sweeps"] = sweeps.report_of({task: found[task] for task in swept})
    gpu = MAIN_GPU if any(p.gpu == MAIN_GPU for p in pairs) else pairs[0].gpu
    weeks, job = weeks_of(read(TABLE)), example_job()
    slices = {p: replay_weeks(weeks, replace(job, policy=p, job_id="weather"), 0).runs for p in POLICIES}
    groups = clusters(traces, gpu, args.submissions)
    scenarios = [Scenario(p) for p in pairs]
    return Results(report, replays, scenarios, groups, slices, gpu, args.seeds, args.submissions)


def draw(found: Results, folder: Path) -> None:
    """The pictures."""
    from benchmarks import figures, landscapes, potential, tradeoff  # they bring matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    report, here, shown = found.report, found.on(found.gpu), [POLICIES[0], UPSTREAM, "grid_search"]
    eta = report["sweeps"]["eta"]
    potential.potential(found.scenarios, folder / "potential.png")
    tradeoff.bounds(found.example, folder / "bounds.png")
    tradeoff.envelope(found.example, folder / "envelope.png")
    tradeoff.pareto(here, eta[POLICIES[0]], POLICIES[0], folder / "pareto.png")
    landscapes.choices(found.example, [*POLICIES, UPSTREAM], folder / "choices.png")
    landscapes.search_paths(here, shown, folder / "search.png")
    landscapes.over_batch_size(here, folder / "batch-size.png")
    landscapes.over_limit(here, folder / "power-limit.png")
    for gpu in dict.fromkeys(s.pair.gpu for s in found.scenarios):
        figures.savings(report, SHOWN, gpu, folder / f"savings-{gpu}.png")
    figures.regret(found.replays, SHOWN, found.gpu, folder / "regret.png")
    figures.clusters(found.clusters, found.gpu, folder / "clusters.png")
    sizes = example_job().batch_sizes
    figures.slices(found.slices, [int(b) for b in sizes], folder / "slices.png")
    figures.betas(report, folder / "beta.png")
    figures.parts(report, folder / "parts.png")
    figures.gpus(report, SHOWN, folder / "gpus.png")
    figures.etas(report, list(eta), found.gpu, folder / "eta.png")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its pictures; 2 where it cannot be made."""
    args, start = _parser().parse_args(arguments), time.process_time()
    needs("matplotlib")
    found = results_of(args)
    from benchmarks.reproduction_page import headlines, page_of

    pictures = Path("images") / args.out.stem
    draw(found, args.out.parent / pictures)
    args.out.write_text(page_of(found, pictures.as_posix()), encoding="utf-8")
    print("\n".join(headlines(found)))
    print(f"{args.out}; {time.process_time() - start:.0f} s of this process, more of those that it started")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, SELECTION, seeds=SEEDS, out=Path("docs/reproduction.md"))
    parser.add_argument("--submissions", type=positive, default=SUBMISSIONS, help="of each draw of overlapping groups")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
