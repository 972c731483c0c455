"""``docs/evidence/choosing.md``: the choosers, what its command writes,
and the page in the tree.
"""

from __future__ import annotations

import math
import os
import re
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from benchmarks import choosing
from benchmarks.parts.literal import Settled, literal
from benchmarks.plots import name_of
from benchmarks.quality.choosers import (
    FIXED_CAP,
    HINDSIGHT,
    PACKAGE,
    Package,
    cap_of,
    fixed_cap,
    hindsight,
    package,
)
from benchmarks.quality.slice_tables import series_of
from benchmarks.replays import NeverStopped, OneLimitPerRun, Replays, without
from benchmarks.report import change, ratio_of
from benchmarks.series import play, replayed
from benchmarks.simulation.traces import Traces
from tests.unit.benchmarks.simulation.tiny import tiny, write

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "choosing.md"
pytest.importorskip(
    "zeus._legacy.policy", reason="upstream is not installed: pip install zeus==0.16.0"
)


def test_the_cap_is_the_limit_nearest_to_60_percent(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    assert cap_of(scenario).limit_w == 100, "120 W is wanted, 100 and 200 were measured"
    log = fixed_cap(scenario, 3, 0)
    assert set(log.batch_size) == {32}
    assert log.energy_j == [3240.0] * 3


def test_hindsight_has_no_regret(tmp_path: Path) -> None:
    assert hindsight(tiny(tmp_path), 5, 0).expected_regret() == [0.0] * 5


def test_zeus_0_16_pays_as_the_literal_algorithm_does_without_free_looks(tmp_path: Path) -> None:
    """Until chance decides: 32, then 16, each profiled."""
    scenario = tiny(tmp_path)
    theirs = package(scenario, 2, 0)
    ours = literal(scenario, 2, 0, settled=Settled(charging=True))
    assert theirs.batch_size == ours.batch_size == [32, 16]
    assert theirs.cost == pytest.approx(ours.cost)


def test_zeus_0_16_stops_a_run_at_twice_the_cheapest_recurrence() -> None:
    bounds: list[float] = []

    def train(batch_size: int, bound_cost: float) -> tuple[bool, float]:
        bounds.append(bound_cost)
        return True, 10.0 * batch_size

    chooser = Package([16, 32, 64], 32, 10, seed=0)
    for _ in range(3):
        chooser.recurrence(train)
    assert bounds == [math.inf, 640.0, 320.0]


def test_where_zeus_0_16_has_dropped_every_size_the_default_trains(tmp_path: Path) -> None:
    tried: list[int] = []

    def never(batch_size: int, bound_cost: float) -> tuple[bool, float]:
        tried.append(batch_size)
        return False, 1.0

    chooser = Package([16, 32, 64], 32, 10, seed=0)
    for _ in range(4):
        chooser.recurrence(never)
    assert chooser.broken
    assert tried[-1] == 32
    assert len(tried) <= 4 * 20


# ---------------------------------------------------------------------- parts of the default policy
def planned(batch_size: int, bound_cost: float | None = None) -> PlannedAttempt:
    return PlannedAttempt(
        batch_size=batch_size, phase=Phase.EXPLORE, why="A test.", bound_cost=bound_cost
    )


def test_without_early_stopping_no_bound_counts(tmp_path: Path) -> None:
    run = NeverStopped(tiny(tmp_path), 0).attempt(planned(16, bound_cost=1.0))
    assert run.reached
    assert run.epochs == 2


def test_without_profiling_each_limit_takes_a_run(tmp_path: Path) -> None:
    env = OneLimitPerRun(tiny(tmp_path), 0)
    runs = [env.attempt(planned(32)) for _ in range(3)]
    assert [r.limit_w for r in runs] == [200, 100, 200]
    assert [r.cost for r in runs] == [4680, 5220, 4680], "3 epochs of 1560 J or 1740 J"
    assert [r.excess.cost for r in runs] == [0, 540, 0], "beyond the best limit: paid, not learnt"
    assert {r.epoch_cost for r in runs} == {1560}


def test_the_default_policy_without_a_part(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    log = without("ours_no_jit_profiling", scenario, 6, 0)
    first = [r.limit_w for runs in log.runs for r in runs if r.batch_size == 32][:2]
    assert first == [200, 100][: len(first)]
    assert len(without("ours_no_early_stopping", scenario, 6, 0)) == 6


# ---------------------------------------------------------------------- real series
def test_zeus_0_16_on_a_series_pays_for_what_it_stops() -> None:
    series = series_of(None, {})["weather"]
    default = series.batch_sizes[2]
    log = replayed(series, (PACKAGE, default, 0))
    assert len(log) == len(series.weeks)
    assert max(log.attempts) <= 20
    runs = [r for of in log.runs for r in of]
    stopped = [r for r in runs if not r.reached and r.epochs < series.max_epochs]
    assert stopped, "slices differ in difficulty"
    assert all(r.cost > 0 for r in stopped)
    assert play(series, (PACKAGE, default, 0)).cost == pytest.approx(sum(r.cost for r in runs))


# ---------------------------------------------------------------------- the page
def replays(costs: list[float], kept: int = 3) -> Replays:
    """Regrets of so many recurrences that cost so much each, one figure per seed."""
    curves = [[c * (t + 1) - (t + 1) for t in range(kept)] for c in costs]
    return Replays(expected_regret=curves, energy=curves, time=curves)


def test_costs_of_the_first_runs_by_hand() -> None:
    found = replays([1.5, 2.0])
    assert choosing.costs(found, 2) == [3.0, 4.0]
    assert choosing.costs(found, 10) == [4.5, 6.0], "a job of three runs"


def test_what_telling_the_number_of_runs_costs_is_said_too() -> None:
    """As in the page: of its table's figures."""

    def of(mean: float, worst: float) -> dict[str, dict[str, list[float]]]:
        return {"vs_default": {"mean": [mean] * 3, "worst": [worst] * 3}}

    said = choosing.expecting_said(
        {
            "ten recurrences alone": of(0.8, 1.08),
            "ten recurrences, and the job expects ten": of(0.93, 1.02),
        }
    )
    assert "from +8.0 to +2.0 % on the worst pair" in said
    assert "from -20.0 to -7.0 in the mean" in said


def test_the_page_says_of_expected_runs_what_its_table_does() -> None:
    text = PAGE.read_text()
    rows = [
        re.split(r" *\| *", line)
        for line in text.splitlines()
        if line.startswith("| ten recurrences")
    ]
    said = next(line for line in text.splitlines() if "`expected_runs=10`" in line)
    assert len(rows) == 2
    assert all(row[2] in said and row[3].strip("*").partition("**")[0] in said for row in rows)


def test_what_is_surely_dearer_is_among_the_losses() -> None:
    of = {name: replays([1.0, 1.0]) for name in choosing.NAMES}
    assert choosing.losses({"a/b": of}) == ["None."]
    of[choosing.OURS] = replays([1.2, 1.2])
    lines = choosing.losses({"a/b": of})
    assert len(lines) == 4, "against each other way, but not against hindsight"
    assert all(line.startswith("- 10 runs and 50 runs and all runs, than ") for line in lines)
    assert all(line.endswith("a/b +20.0") for line in lines)


def test_a_way_that_tries_nothing_has_one_figure_for_both_horizons() -> None:
    of = {name: replays([1.0, 1.0], kept=20) for name in choosing.NAMES}
    of[choosing.OURS] = replays([1.2, 1.2], kept=20)
    assert choosing.by_pair({"neumf/a40": of})[2] == (
        "| NeuMF, A40 | +0.0 | +0.0 | +0.0 | **+20.0** | +0.0 |"
    )


@pytest.mark.nightly
def test_the_command_writes_a_page_of_its_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "docs" / "page.md"
    arguments = [
        "--traces",
        str(write(tmp_path)),
        "--seeds",
        "2",
        "--regime-seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        str(out),
    ]
    assert choosing.main(arguments) == 0
    page = out.read_text()
    printed = capsys.readouterr().out
    assert "${" not in page
    assert all(line in page for line in printed.splitlines() if line.startswith("| "))
    assert "BERT (QA), TOY" in page
    assert "seeds 0 to 1" in page


def test_the_page_in_the_tree_holds_what_no_seed_decides() -> None:
    if "ZEUS_TRACES" not in os.environ:
        pytest.skip("the paper's traces are not here: set ZEUS_TRACES to their folder")
    pairs = Traces(Path(os.environ["ZEUS_TRACES"])).pairs()
    held = choosing.hold(
        Path(os.environ["ZEUS_TRACES"]), pairs, 1, 1, (FIXED_CAP, HINDSIGHT, choosing.DEFAULT)
    )
    cost = partial(choosing.costs, runs=None)
    text = PAGE.read_text()
    for pair, of in held.items():
        capped, best = (
            change(ratio_of(cost(of[c]), cost(of[choosing.DEFAULT])).to_json())
            for c in (FIXED_CAP, HINDSIGHT)
        )
        workload, _, gpu = pair.partition("/")
        rows = [
            r for r in text.splitlines() if r.startswith(f"| {name_of(workload)}, {gpu.upper()} |")
        ]
        assert [re.split(r"[ *|]+", row)[-2] for row in rows] == [best], pair
        assert f" {capped}" in rows[0].replace("*", ""), pair
