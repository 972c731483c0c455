"""``docs/reproduction.md``: ``python -m benchmarks.reproduction --traces DIR --out docs/reproduction.md``.

Each figure and table of the paper with the published value and ours, for the public algorithm
(``benchmarks.parts.literal`` with every switch off), the paper's policy as this project settles it (``"zeus"``) and the
default policy. Seeds 0 to N - 1; sweeps with the first ten of them. Pictures go to
``images/<page>/`` beside the page. Prints the headlines. Everything is simulated from measured epochs, times and
powers; nothing is trained here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import SELECTION, command, needs, option, positive, took
from benchmarks.quality import figures, landscapes, tradeoff
from benchmarks.quality.reproduction_figures import SHOWN, Results, results_of
from benchmarks.quality.reproduction_page import headlines, page_of
from benchmarks.quality.reproduction_tables import gpus_of
from benchmarks.replays import UPSTREAM
from benchmarks.weather import example_job


def draw(found: Results, folder: Path) -> None:
    """The pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    report, scenarios, here, eta = found.report, found.scenarios, found.on(found.gpu), found.report["sweeps"]["eta"]
    first, *_ = eta
    for gpu in gpus_of(found):
        figures.savings(report, SHOWN, gpu, folder / f"savings-{gpu}.png")
        figures.etas(report, list(eta), gpu, folder / f"eta-{gpu}.png")
    tradeoff.potential(scenarios, folder / "potential.png")
    landscapes.over_batch_size(scenarios, folder / "batch-size.png")
    figures.gpus(report, SHOWN, folder / "gpus.png")
    figures.betas(report, folder / "beta.png")
    tradeoff.bounds(found.example, folder / "bounds.png")
    tradeoff.envelope(found.example, folder / "envelope.png")
    landscapes.choices(found.example, [*POLICIES, UPSTREAM], folder / "choices.png")
    figures.regret(found.replays, SHOWN, found.gpu, folder / "regret.png")
    searching = [p for p in SHOWN if p in (first, UPSTREAM, "grid_search")]
    landscapes.search_paths(here, searching, folder / "search.png")
    tradeoff.pareto(here, eta[first], first, folder / "pareto.png")
    landscapes.over_limit(here, folder / "power-limit.png")
    figures.clusters(found.clusters, found.gpu, folder / "clusters.png")
    figures.slices(found.slices, [int(b) for b in example_job().batch_sizes], folder / "slices.png")
    figures.parts(report, folder / "parts.png")


@command(
    SELECTION,
    option("--submissions", type=positive, default=3_000, help="of each draw of overlapping groups"),
    seeds=40,
    out=Path("docs/reproduction.md"),
)
def main(args: argparse.Namespace) -> None:
    """Write the page and its pictures; 2 where it cannot be made."""
    needs("matplotlib")
    found = results_of(args)
    pictures = Path("images") / args.out.stem
    draw(found, args.out.parent / pictures)
    args.out.write_text(page_of(found, pictures.as_posix()), encoding="utf-8")
    print("\n".join(headlines(found)))
    print(f"{args.out} after {took(args)}")
