"""``docs/evidence/reproduction.md``: what its command writes,
and that the page in the tree is what it writes.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_zeus.power.limits import control
from benchmarks import reproduction
from benchmarks.parts.profiler_overhead import Extra, papers_way
from benchmarks.quality import claims, reproduction_tables
from benchmarks.quality import reproduction_figures as figures
from benchmarks.quality import reproduction_said as sentences
from benchmarks.quality.claims import Claim, Measured
from benchmarks.quality.reproduction_page import page_of
from benchmarks.quality.tradeoff import potentials
from benchmarks.replays import UPSTREAM, Replays, Task, run_tasks
from benchmarks.report import plus_minus
from benchmarks.simulation.driver import grid_search
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces
from tests.unit.benchmarks.simulation.tiny import tiny, write
from tests.unit.training.conftest import Guardian

DOCS = Path(__file__).parents[3] / "docs" / "evidence"
PAGE = DOCS / "reproduction.md"
PAIRS = DOCS / "reproduction.csv"


def run(folder: Path, *more: str) -> list[str]:
    out = folder / "docs" / "page.md"
    return [
        "--traces",
        str(write(folder)),
        "--seeds",
        "2",
        "--submissions",
        "30",
        "--jobs",
        "1",
        "--out",
        str(out),
        *more,
    ]


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    """Others would take longer to start than these replays."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "cpu_count", lambda: 1)
        patched.setattr(control, "GuardianClient", Guardian)
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> reproduction.Results:
    asked = {
        "traces": write(tmp_path_factory.mktemp("traces")),
        "gpus": [],
        "workloads": [],
        "seeds": 2,
        "jobs": 1,
    }
    return reproduction.results_of(Namespace(**asked, submissions=30))


@pytest.fixture(scope="module")
def page(found: reproduction.Results) -> str:
    return page_of(found, "images/page")


def test_every_place_of_the_text_is_filled(found: reproduction.Results, page: str) -> None:
    assert "${" not in page
    assert "seeds 0 to 1" in page
    assert re.search(r"^Section 6\.2 on TOY", page, re.M)
    tables = [line for line in page.splitlines() if line.startswith("| ")]
    assert not [line for line in tables if "nan" in line or "inf" in line.split()]
    assert page_of(found, "images/page") == page, "the same results give the same page"


def test_a_figure_of_the_page_is_that_of_the_report(found: reproduction.Results, page: str) -> None:
    mean, half = found.report["pairs"]["bert_qa/toy"]["knowledge_gradient"]["eta_last5"]
    row = next(
        line for line in reproduction_tables.savings(found) if line.startswith("| BERT (QA) |")
    )
    assert row.split(" | ")[-2].startswith(f"{mean:.3f}±{half:.3f}, ")
    assert row in page


def test_the_csv_file_has_every_pair_and_way(found: reproduction.Results) -> None:
    head, *lines = reproduction_tables.pairs_csv(found)
    assert {line.count(",") for line in lines} == {head.count(",")}
    rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    assert [row["way"] for row in rows if row["batch_size"]] == [
        "best batch size",
        "best power limit",
        "best of both",
    ]
    assert {row["way"] for row in rows if row["pair"] == "all/toy"} >= {
        "public algorithm at eta 0.5"
    }
    mean, half = found.report["pairs"]["bert_qa/toy"][UPSTREAM]["expected_regret_end"]
    public = next(row for row in rows if row["way"] == "public algorithm")
    assert [public["regret"], public["regret_half"]] == [f"{mean:.3f}", f"{half:.3f}"]


@pytest.mark.nightly
def test_the_command_writes_page_and_pictures_and_prints_the_headlines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduction.main(run(tmp_path)) == 0
    page = (tmp_path / "docs" / "page.md").read_text()
    printed = [
        line
        for line in capsys.readouterr().out.splitlines()
        if re.match(r"\| (?:least|most) ", line)
    ]
    assert len(printed) == 4
    assert all(line in page for line in printed)
    shown = re.findall(r"\]\((images/page/[\w-]+\.png)\)", page)
    files = {
        p.relative_to(tmp_path / "docs").as_posix()
        for p in (tmp_path / "docs" / "images").rglob("*.png")
    }
    assert set(shown) == files, (
        "every picture is on the page, and every picture of the page is there"
    )
    assert all((tmp_path / "docs" / name).stat().st_size > 3_000 for name in files)


# ---------------------------------------------------------------------- claims
def claim(published: float | str, *ends: float, **more: object) -> Claim:
    return Claim("energy", published, {UPSTREAM: Measured(*ends)}, why="a reason.", **more)  # type: ignore[arg-type]


def test_a_published_value_differs_where_the_interval_does_not_hold_it_as_rounded() -> None:
    assert claim(-15.3, -16, -17, -15.3).differs() == []
    assert claim(-15.3, -16, -17, -15.34).differs() == [], "15.3 may be 15.34"
    assert claim(-15.3, -16, -17, -15.36).differs() == [UPSTREAM]
    assert claim(72, 72.4, 72.4, 72.4, digits=0).differs() == []
    assert claim("a picture", -16, -17, -15).differs() == []


def test_what_differs_is_bold_and_gets_its_sentence() -> None:
    same = claim(-15.3, -15.5, -16, -15)
    apart = claim(-15.3, -20, -21, -19)
    assert claims.lines_of([same])[-1] == "| energy | −15.3 % | −15.5 % [−16.0, −15.0] |"
    lines = claims.lines_of([same, apart])
    assert "**−20.0 % [−21.0, −19.0]**" in lines[3]
    assert lines[-1] == "- *energy*: a reason."


def test_numbers_of_the_page_by_hand() -> None:
    assert claims.number(-15.31, "%", 1) == "−15.3 %"
    assert claims.number(0.04, "%", 1) == "0.0 %"
    assert claims.number(1665.4, "x", 0) == "1,665 x"
    assert reproduction_tables.ratio([1.0, 1.0, 1.0]) == "1.000"
    assert reproduction_tables.ratio([673.2, 631.0, 725.0]) == "673 [631, 725]"


# ---------------------------------------------------------------------- figures by hand
def test_what_there_is_to_save_by_hand(tmp_path: Path) -> None:
    """The default, 32 at 200 W, takes 3 x 8 s x 190 W = 4560 J;
    both runs of a size need the same epochs.
    """
    found = potentials(tiny(tmp_path))
    assert list(found["batch size"]) == pytest.approx([*[4000 / 4560] * 3, 16, 200])
    assert list(found["power limit"]) == pytest.approx([*[3240 / 4560] * 3, 32, 100])
    assert found["both"][:1] == found["power limit"][:1]


def test_grid_search_over_some_sizes_alone(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    assert {r.batch_size for runs in grid_search(scenario, 4, 0, [16, 32]).runs for r in runs} == {
        16,
        32,
    }
    assert [runs[0].batch_size for runs in grid_search(scenario, 4, 0, [32, 16]).runs] == [
        32,
        32,
        16,
        16,
    ]
    orders = figures.grid_orders(scenario, [2.0, 2.0], 2)
    assert list(orders) == list(figures.SEARCHED)
    sure = [grid_search(scenario, 12, seed, [16, 32]).expected_regret()[-1] for seed in range(2)]
    assert orders[figures.SEARCHED[1]][0] == pytest.approx(sum(sure) / 4)


def test_figures_of_a_scenario_by_hand(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    assert figures.runs_per_size(scenario) == (2, 2)
    assert figures.spread_of_epochs(scenario) == 0
    assert list(figures.first_size(scenario)) == pytest.approx([16, 1, 1])
    time, beyond = figures.default_at(scenario, 200.0)
    assert time == 0
    assert beyond == pytest.approx(0), (
        "1560 J at 200 W is the best of 32: 12 s at 100 W cost 1740 J"
    )
    assert figures.unimodal(scenario)
    assert figures.energies(scenario) == pytest.approx({16: 4000, 32: 4560, 64: 6840})
    assert figures.convex(scenario), "560 J, then 2280 J for each doubling"


def test_a_curve_that_falls_then_rises_need_not_be_convex(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = tiny(tmp_path)
    monkeypatch.setattr(figures, "energies", lambda _: {8: 9.0, 16: 1.0, 32: 5.0, 64: 6.0})
    assert figures.unimodal(scenario)
    assert not figures.convex(scenario)
    monkeypatch.setattr(figures, "energies", lambda _: {8: 4.0, 12: 2.9, 32: 1.0})
    assert figures.convex(scenario), "over log2: 1.88 J, then 1.34 J less for each doubling"


def test_where_a_mean_regret_is_flat() -> None:
    assert figures.plateau([[0.0, 1.0, 1.0, 1.0]]) == 2
    assert figures.plateau([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]) == 3
    assert figures.plateau([[0.0, 9.9, 5.0, 10.0]]) == 4, "it stays there"


# ---------------------------------------------------------------------- sentences that follow the
# figures
def test_whose_regret_is_lower_from_the_first_recurrence_on(found: reproduction.Results) -> None:
    zeus = Replays(expected_regret=[[2.0, 3.0, 3.0]])
    grid = Replays(expected_regret=[[1.0, 4.0, 9.0]])
    task = partial(Task, "bert_qa", "toy", seeds=(0,))
    replays = {task(UPSTREAM): zeus, task("grid_search"): grid}
    said = sentences.early(found._replace(replays=replays))
    assert "first run on 0 of 1 pairs, after ten on 1;" in said
    assert said.endswith("earlier on 1. On TOY, the paper's GPU: 0, 1 and 1 of 1.")


def test_gpus_of_the_paper_that_are_not_there_are_named(found: reproduction.Results) -> None:
    words = sentences.papers_gpus(found)
    assert words["gpus_here"] == "TOY"
    assert words["gpus_missing"].startswith(
        " V100, A40, RTX6000, P100: no power trace in the folder"
    )
    assert sentences.gpus_said(found).endswith("(TOY), surely below 1 on all but TOY.")
    assert words["hardware"].count("not replayed") == 4


def test_workloads_on_which_zeus_is_not_better_than_both_baselines_are_named(
    found: reproduction.Results,
) -> None:
    def row(zeus: float, grid: float) -> dict[str, dict[str, list[float]]]:
        return {
            policy: {name: [x, 0.01] for name in ("energy", "cost")}
            for policy, x in (("zeus", zeus), ("grid_search", grid))
        }

    clusters = {
        "bert_qa": row(0.88, 0.86),
        "bert_sa": row(0.9, 1.4),
        "neumf": row(0.995, 40.0),
        "all": row(0.9, 3.0),
    }
    said = sentences.against_baselines(found._replace(clusters=clusters))
    assert (
        "less energy than both baselines on BERT (SA), in the mean alone on NeuMF, not on BERT"
        " (QA); less" in said
    )
    assert "less cumulative regret than grid search on BERT (SA), NeuMF, not on BERT (QA)." in said


def test_the_part_that_slows_down_most_and_whether_surely(found: reproduction.Results) -> None:
    def by(stop: float, prune: float) -> dict[str, dict[str, list[float]]]:
        pairs = {"neumf/v100": stop, "bert_qa/v100": 1.0, "all": stop**0.5}
        return {
            "no_early_stopping": {pair: [x, x - 0.05, x + 0.05] for pair, x in pairs.items()},
            "no_pruning": {pair: [prune, prune - 0.05, prune + 0.05] for pair in pairs},
        }

    def said(stop: float, prune: float) -> str:
        sweeps = {**found.report["sweeps"], "parts": {UPSTREAM: {"time": by(stop, prune)}}}
        return sentences.parts_said(found._replace(report={**found.report, "sweeps": sweeps}))

    assert "no early stopping slows down most, on 1 of 2 pairs; without NeuMF 1.00" in said(4, 1.2)
    assert said(4, 1.2).endswith(", less than no pruning 1.20: NeuMF alone carries it.")
    assert said(4, 0.9).endswith("; without NeuMF 1.00.")
    assert "overlap" not in said(4, 1.2)
    assert "no early stopping slows down most (the intervals overlap)" in said(4, 1.95)


def test_what_profiling_costs_is_said_of_the_figures() -> None:
    theirs = Extra((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    ours = Extra((-0.014, -0.04, 0.01), (0.01, -0.01, 0.03), (0.002, -0.001, 0.005), astray=1)
    said = sentences.profiling_said(
        {"deepspeech2": (theirs, theirs, ours), "neumf": (theirs, theirs, theirs)}
    )
    assert "our search takes most on DeepSpeech2: +0.200 [−0.100, +0.500] %." in said
    assert said.endswith("Of 40 trainings it kept another limit than the best in 1 on DeepSpeech2.")
    calm = sentences.profiling_said({"neumf": (theirs, theirs, theirs)})
    assert "another limit" not in calm


def test_the_papers_way_of_profiling_by_hand(tmp_path: Path) -> None:
    """32: five seconds at 100 W instead of 5 x 8/12 s at 200 W,
    in a training of 24 s and 4560 J.
    """
    extra = papers_way(tiny(tmp_path), full_power=True)
    assert list(extra.time) == pytest.approx([(5 - 40 / 12) / 24] * 3)
    assert list(extra.energy) == pytest.approx([(5 * 90 - 40 / 12 * 190) / 4560] * 3)


# ---------------------------------------------------------------------- the page in the tree
def traces() -> Path:
    if "ZEUS_TRACES" not in os.environ:
        pytest.skip("the paper's traces are not here: set ZEUS_TRACES to their folder")
    return Path(os.environ["ZEUS_TRACES"])


def test_the_file_of_pairs_holds_what_no_seed_decides() -> None:
    scenarios = [Scenario(pair) for pair in Traces(traces()).pairs()]
    lines = PAIRS.read_text().splitlines()
    for scenario in scenarios:
        for best in potentials(scenario).values():
            configuration = f"{best.batch_size},{best.limit_w:g}"
            kept = [line for line in lines if line.endswith(f",{configuration}")]
            start = f"{scenario.pair.name},best "
            assert [x for x in kept if x.startswith(start) and f",{best.value:.3f}," in x]


def test_page_and_file_hold_what_its_seeds_give_for_the_public_algorithm() -> None:
    """On the two pairs that replay fastest; the other policies take minutes."""
    folder = traces()
    text = PAGE.read_text()
    named = re.search(r"seeds 0 to\s(\d+)", text)
    assert named, "the page names its seeds"
    seeds = tuple(range(int(named[1]) + 1))
    tasks = [Task("bert_sa", gpu, UPSTREAM, seeds) for gpu in ("a40", "v100")]
    report = figures.report_of(run_tasks(folder, tasks, 1))
    lines = PAIRS.read_text().splitlines()
    for gpu in ("a40", "v100"):
        of = report["pairs"][f"bert_sa/{gpu}"][UPSTREAM]
        row = next(x for x in lines if x.startswith(f"bert_sa/{gpu},public algorithm,")).split(",")
        written = [float(cell) for cell in row[2:8]]
        replayed = [*of["eta_last5"], *of["tta_last5"], *of["expected_regret_end"]]
        assert written == pytest.approx(replayed, abs=0.0051)
    first = next(
        line for line in text.splitlines() if line.startswith("| BERT (SA) | ") and "±" in line
    )
    assert first.split(" | ")[1].split(", ")[0] == plus_minus(of["eta_last5"], ".3f")


def test_the_pages_pictures_are_there_and_small() -> None:
    shown = re.findall(r"\]\((images/reproduction/[\w-]+\.png)\)", PAGE.read_text())
    files = {
        p.relative_to(DOCS).as_posix(): p.stat().st_size
        for p in (DOCS / "images" / "reproduction").iterdir()
    }
    assert set(shown) == set(files)
    assert sum(files.values()) < 1_500_000
