"""``docs/reproduction.md``: ``python -m benchmarks.reproduction --traces DIR --out docs/reproduction.md``.

Each figure and table of the paper with the published value and ours, for the public algorithm
(``benchmarks.parts.literal`` with every switch off), the paper's policy as this project settles it (``"zeus"``) and the
default policy. Seeds 0 to N - 1; sweeps with the first ten of them. Pictures go to
``images/<page>/`` beside the page. Prints the headlines. Everything is simulated from measured epochs, times and
powers; nothing is trained here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import SELECTION, command, needs, parser_of, positive
from benchmarks.quality.reproduction_figures import SHOWN, Results, results_of
from benchmarks.quality.reproduction_page import headlines, page_of
from benchmarks.replays import UPSTREAM
from benchmarks.weather import example_job

SEEDS = 40
SUBMISSIONS = 3_000  # of each draw of overlapping groups


def draw(found: Results, folder: Path) -> None:
    """The pictures."""
    from benchmarks.quality import figures  # it brings matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    figures.of_all(found.report, found.scenarios, SHOWN, folder)
    figures.of_example(found.example, [*POLICIES, UPSTREAM], folder)
    figures.of_gpu(found.report, found.replays, found.on(found.gpu), SHOWN, folder)
    figures.clusters(found.clusters, found.gpu, folder / "clusters.png")
    figures.slices(found.slices, [int(b) for b in example_job().batch_sizes], folder / "slices.png")
    figures.parts(found.report, folder / "parts.png")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its pictures; 2 where it cannot be made."""
    args, start = _parser().parse_args(arguments), time.process_time()
    needs("matplotlib")
    found = results_of(args)
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
