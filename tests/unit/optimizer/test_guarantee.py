"""What README guarantees: while its data stay as they are, no job is far behind always training its default.

Whole jobs are replayed, whose truth is known (``benchmarks.quality.made_jobs``); both costs are of the same slices.
``python -m benchmarks.targets`` prints the same figure of all cases, also of jobs whose data change, as *overdraft*.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality.made_jobs import FAILS, MISSES, NEAR
from benchmarks.quality.troubles import Cell, cells, play
from benchmarks.simulation.environment import BEHIND, GRANTED

README = Path(__file__).parents[3] / "README.md"
STEADY = [cell for cell in cells() if cell.trouble in ("nothing", FAILS)] + [Cell(MISSES, 64)]
QUICK = (200, 201)
MANY = range(202, 212)


def test_the_readme_has_the_same_figures() -> None:
    said = f"{BEHIND:g} runs of the default and {100 * GRANTED:g} %"
    assert said in " ".join(README.read_text().split())


@pytest.mark.parametrize("cell", STEADY, ids=lambda cell: cell.name)
def test_a_job_is_never_far_behind_always_the_default(cell: Cell) -> None:
    for seed in QUICK:
        assert play((cell, seed)).overdraft <= BEHIND


def test_what_a_job_has_lost_does_not_put_off_its_second_look_at_the_default() -> None:
    """No size reaches the first two slices, and the one that runs from then on costs more than the default."""
    lost = Cell("slices 1 and 2 missed", NEAR)
    assert play((lost, 500)).overdraft <= 1


@pytest.mark.nightly
@pytest.mark.parametrize("cell", STEADY, ids=lambda cell: cell.name)
def test_many_more_jobs_are_never_far_behind(cell: Cell) -> None:
    assert max(play((cell, seed)).overdraft for seed in MANY) <= BEHIND
