"""Writes ``docs/evidence/reproduction.md``: ``python -m benchmarks.reproduction --traces DIR``.

Each figure and table of the paper with the published value and ours, for the public algorithm
(``benchmarks.parts.literal`` with every switch off), the paper's policy as this project settles it
(``"zeus"``) and the default policy. Seeds 0 to N - 1; sweeps with the first ten of them. Pictures
go to ``images/<page>/`` beside the page, the figures of every pair into a CSV file of its name.
Prints the headlines. Everything is simulated from measured epochs, times and powers;
nothing is trained here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.command import SELECTION, command, needs, option, positive, took
from benchmarks.quality import figures, tradeoff
from benchmarks.quality.reproduction_figures import SHOWN, Results, results_of
from benchmarks.quality.reproduction_page import headlines, page_of
from benchmarks.quality.reproduction_tables import pairs_csv


def draw(found: Results, folder: Path) -> None:
    """The pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    figures.regret(found.replays, SHOWN, found.gpu, folder / "regret.png")
    eta = found.report["sweeps"]["eta"]
    policy, *_ = eta
    tradeoff.pareto(found.on(found.gpu), eta[policy], policy, folder / "pareto.png")


@command(
    SELECTION,
    option(
        "--submissions", type=positive, default=3_000, help="of each draw of overlapping groups"
    ),
    seeds=40,
    out=Path("docs/evidence/reproduction.md"),
)
def main(args: argparse.Namespace) -> None:
    """Write the page and its pictures; 2 where it cannot be made."""
    needs("matplotlib")
    found = results_of(args)
    pictures = Path("images") / args.out.stem
    draw(found, args.out.parent / pictures)
    args.out.write_text(page_of(found, pictures.as_posix()), encoding="utf-8")
    args.out.with_suffix(".csv").write_text("\n".join([*pairs_csv(found), ""]), encoding="utf-8")
    print("\n".join(headlines(found)))
    print(f"{args.out} after {took(args)}")
