"""Overlapping submissions: the trace, what is known when, and what the benchmark reports."""

from __future__ import annotations

import csv
import json
import lzma
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import Observation, Phase, State, Trial
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks import groups as benchmark
from benchmarks.quality import overlap
from benchmarks.quality.group_shape import (
    COLUMNS,
    Group,
    Submission,
    draw_groups,
    read_groups,
    read_shape,
)
from benchmarks.quality.overlap import Default, Going, GridSearch, Ledger, Zeus, play
from benchmarks.simulation.driver import replay
from benchmarks.simulation.scenario import Scenario
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny, write

HEAD = ",".join(COLUMNS)
# with room for a second attempt
APART = [Submission(2.0 * t, 2.0 * t + 0.5, 1.0) for t in range(40)]
AT_ONCE = [Submission(0.0, 10.0, 1.0)] * 4


def write_groups(path: Path, groups: Iterable[Group]) -> None:
    """A file that :func:`read_groups` reads back unchanged."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for group in groups:
            writer.writerows(
                (group.name, s.start_s, s.end_s, group.dataset, s.ratio) for s in group.submissions
            )


def test_a_drawn_trace_is_heavy_tailed_and_overlaps() -> None:
    shape = read_shape()
    datasets = ["movielens-1m", "cifar100", "squad", "sentiment140", "librispeech", "imagenet"]
    groups = list(draw_groups(20_000, datasets, seed=3))
    assert (
        groups
        == list(draw_groups(20_000, datasets, seed=3))
        != list(draw_groups(20_000, datasets, seed=4))
    )
    sizes = sorted((len(g.submissions) for g in groups), reverse=True)
    assert sum(sizes) == 20_000
    assert sum(sizes[: len(sizes) // 10]) > sum(sizes) / 2, "a tenth of the groups submits most"
    everything = [s for g in groups for s in g.submissions]
    assert sum(s.ratio for s in everything) / len(everything) == pytest.approx(1.0, abs=0.35)
    assert all(list(g.submissions) == sorted(g.submissions) for g in groups)
    means = dict(zip(datasets, shape.cluster_means_s, strict=True))
    assert all(
        s.end_s - s.start_s == pytest.approx(s.ratio * means[g.dataset])
        for g in groups
        for s in g.submissions
    )
    assert sum(s.end_s - s.start_s for s in everything) / 20_000 == pytest.approx(
        shape.mean_run_s, rel=0.15
    )
    counts = [sum(len(g.submissions) for g in groups if g.dataset == d) for d in datasets]
    assert counts == sorted(counts, reverse=True), "short jobs are the most"
    overlaps = sum(
        b.start_s < a.end_s
        for g in groups
        for a, b in zip(g.submissions, g.submissions[1:], strict=False)
    )
    assert 0.2 < overlaps / 20_000 < 0.99
    assert all(0 <= s.start_s <= shape.span_s for s in everything)


def test_a_file_is_read_back_as_it_was_packed_or_in_any_order(tmp_path: Path) -> None:
    groups = list(draw_groups(200, ["squad"]))
    path = tmp_path / "groups.csv"
    write_groups(path, groups)
    assert read_groups(path) == groups
    head, *lines = path.read_text().splitlines()
    with lzma.open(tmp_path / "groups.csv.xz", "wt") as file:
        file.write("\n".join([head, *reversed(lines)]))
    assert read_groups(tmp_path / "groups.csv.xz") == groups


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("group,start_time\n", "lacks the columns end_time, dataset, runtime_ratio"),
        (f"{HEAD}\n", "holds no submission"),
        (f"{HEAD}\na,0,x,squad,1\n", "end_time = 'x': in line 2 of"),
        (f"{HEAD}\na,0,nan,squad,1\n", "is not a number"),
        (f"{HEAD}\na,0,1,squad\n", "runtime_ratio = None: in line 2 of"),
        (
            "start_time,end_time,dataset,runtime_ratio,group\n0,1,squad,1\n",
            "group = None: in line 2",
        ),
        (f"{HEAD}\na,0,1,squad,1e300\n", "is not a positive number from 1e-09 to 1e+15"),
        (f"{HEAD}\na,0,1,squad,1\na,5,4,squad,1\n", "end_time = '4': in line 3 of"),
        (f"{HEAD}\na,0,1,squad,0\n", "runtime_ratio = '0': in line 2 of"),
        (f"{HEAD}\na,0,1,squad,1\na,0,1,imagenet,1\n", "differs from the 'squad' of its group 'a'"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(JobSpecError) as error:
        read_groups(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_spreadsheets_byte_order_mark_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(f"\ufeff{HEAD}\na,0,1,squad,1\n", encoding="utf-8")
    assert read_groups(path) == [Group("a", "squad", (Submission(0, 1, 1),))]


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "a.xz").write_bytes(b"not packed")
    (tmp_path / "cut.xz").write_bytes(lzma.compress(f"{HEAD}\na,0,1,squad,1\n".encode())[:-20])
    (tmp_path / "c.csv").write_text(f'{HEAD}\na,0,1,"{"x" * 200_000}')  # a quote that nobody closed
    no_csv = dict.fromkeys(("a.csv", "a.xz", "cut.xz", "c.csv"), "is not a CSV file")
    for name, said in {**no_csv, "b": "cannot be read", ".": "cannot be read"}.items():
        with pytest.raises(JobSpecError, match=said):
            read_groups(tmp_path / name)


@pytest.mark.nightly
@REPRODUCIBLE
@given(scenarios(), st.sampled_from(POLICIES), st.integers(0, 100))
def test_where_nothing_overlaps_it_is_the_plain_replay(
    scenario: Scenario, policy: str, seed: int
) -> None:
    job = scenario.job(policy=policy)
    ours = play(Zeus(scenario, job, seed), scenario, APART)
    plain = replay(scenario, job, len(APART), seed)
    assert ours.batch_sizes == [
        tuple(run.batch_size for run in runs[:n])
        for runs, n in zip(plain.runs, plain.attempts, strict=True)
    ]
    assert ours.energy_j == pytest.approx(math.fsum(plain.energy_j))
    assert ours.time_s == pytest.approx(math.fsum(plain.time_s))
    assert ours.attempts == sum(plain.attempts)
    assert (ours.concurrent, ours.runs_without_model) == (0, 0)
    assert ours.runs_below_target == plain.runs_below_target


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[Trial], int]]:
    """What each decision saw: trials still running, and the highest number learnt."""
    seen: list[tuple[Sequence[Trial], int]] = []
    choose = overlap.choose

    def watching(situation: Situation) -> Any:
        seen.append((tuple(situation.running), situation.belief.newest[0]))
        return choose(situation)

    monkeypatch.setattr(overlap, "choose", watching)
    return seen


def test_while_one_explores_the_others_take_the_incumbent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 4.4. At 0 s four submissions, at 10 s, when they have ended, four more."""
    scenario = tiny(tmp_path)
    seen = watched(monkeypatch)
    later = [s._replace(start_s=10.0, end_s=20.0) for s in AT_ONCE]
    ledger = play(Zeus(scenario, scenario.job(policy="zeus")), scenario, [*AT_ONCE, *later])
    assert [len(running) for running, _ in seen] == [0, 1, 2, 3] * 2
    assert [newest for _, newest in seen] == [0] * 4 + [4] * 4, "nothing is known before it ended"
    phases = [t.planned.phase for t in seen[7][0]]
    assert phases[0].exploring
    assert phases[1:] == [Phase.INCUMBENT] * 2
    assert all(
        t.state is State.RUNNING and t.observation == Observation()
        for running, _ in seen
        for t in running
    )
    assert (ledger.concurrent, ledger.concurrent_incumbent) == (6, 6)
    assert ledger.batch_sizes == [(32,)] * 4 + [(16,)] + [(32,)] * 3


def test_a_second_attempt_runs_beside_the_next_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 never reaches its target: given up at 20 s, its incumbent runs until 30 s,
    when the next one already began.
    """
    scenario = tiny(tmp_path)
    seen = watched(monkeypatch)
    scenario = Scenario(replace(scenario.pair, epochs={**scenario.pair.epochs, 16: (math.inf,)}))
    submissions = [Submission(10.0 * t, 10.0 * (t + 1), 1.0) for t in range(3)]
    ledger = play(Zeus(scenario, scenario.job(policy="zeus")), scenario, submissions)
    assert [(t.number, t.key.attempt, t.batch_size) for t in seen[2][0]] == [(3, 2, 32)]
    assert seen[2][1] == 2, "what was given up is known"
    assert ledger.batch_sizes == [(32,), (16, 32), ledger.batch_sizes[2]]
    assert ledger.runs_without_model == 0


def test_results_come_in_the_order_of_their_ends(tmp_path: Path) -> None:
    """The first of three ends last; what it explored is learnt then."""
    scenario = tiny(tmp_path)
    player = Zeus(scenario, scenario.job(policy="zeus"))
    play(player, scenario, [Submission(0, 100, 1), Submission(1, 2, 1), Submission(3, 4, 1)])
    assert [n for n, _, _ in player._belief.converged] == [1, 2, 3]
    assert dict(player._belief.explored) == {(1, 32): (1, True)}


@REPRODUCIBLE
@given(
    scenarios(),
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 9)), max_size=25),
)
def test_every_submission_ends_with_a_model(
    scenario: Scenario, policy: str, spans: list[tuple[float, float]]
) -> None:
    submissions = sorted(Submission(start, start + length, 1.0) for start, length in spans)
    ledger = play(Zeus(scenario, scenario.job(policy=policy)), scenario, submissions)
    assert ledger.submissions == len(ledger.batch_sizes) == len(spans)
    assert ledger.runs_without_model == 0
    assert len(spans) <= ledger.attempts <= 2 * len(spans)


def test_the_ratio_scales_what_is_charged_and_no_decision(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    job = scenario.job(policy="zeus")
    once = play(Zeus(scenario, job), scenario, APART)
    thrice = play(Zeus(scenario, job), scenario, [s._replace(ratio=3.0) for s in APART])
    assert thrice.batch_sizes == once.batch_sizes
    assert (thrice.energy_j, thrice.time_s) == (
        pytest.approx(3 * once.energy_j),
        pytest.approx(3 * once.time_s),
    )
    assert thrice.energy_j / thrice.default_energy_j == pytest.approx(
        once.energy_j / once.default_energy_j
    )
    assert thrice.time_s / thrice.default_time_s == pytest.approx(once.time_s / once.default_time_s)


def test_the_first_runs_of_a_size_side_by_side_all_profile(tmp_path: Path) -> None:
    """A run of 32 draws 1520 J an epoch at 200 W, and 1300 J in the epoch that is profiled."""
    scenario = tiny(tmp_path)
    job = scenario.job(policy="zeus")
    profiled = 3 * 1520 + (1080 + 1520) / 2 - 1520
    assert play(Zeus(scenario, job), scenario, AT_ONCE[:2]).energy_j == pytest.approx(2 * profiled)


def test_default_and_grid_search_by_hand(tmp_path: Path) -> None:
    """The grid is 16 at 200 and 100 W, 32 likewise, begun at once, then 64, which misses;
    the cheapest stays.
    """
    scenario = tiny(tmp_path)
    default = play(Default(scenario), scenario, AT_ONCE)
    assert default.energy_j == default.default_energy_j == pytest.approx(4 * 3 * 1520)
    later = [Submission(100.0 * t, 100.0 * t + 10, 1.0) for t in range(1, 4)]
    scenario = Scenario(replace(scenario.pair, epochs={**scenario.pair.epochs, 64: (math.inf,)}))
    grid = play(GridSearch(scenario), scenario, [*AT_ONCE, *later])
    assert grid.batch_sizes == [(16,), (16,), (32,), (32,), (64, 16), (16,), (16,)]
    epochs_j = 2 * (2000 + 2000) + 3 * (1080 + 1520) + 6 * 1260 + 3 * 2 * 2000
    assert grid.energy_j == pytest.approx(epochs_j)
    assert grid.runs_without_model == 0


def test_a_run_without_a_model_is_counted_as_that_alone(tmp_path: Path) -> None:
    """No policy of ours leaves one; the ledger would say so."""
    scenario = tiny(tmp_path)

    class Stopping(Default):
        def begin(self) -> Going:
            return Going(self._env.train(64, bound_epochs=1), kept=False)

    ledger = play(Stopping(scenario), scenario, AT_ONCE)
    assert (ledger.runs_without_model, ledger.runs_below_target) == (4, 0)


def test_ledgers_add_up() -> None:
    whole = Ledger(submissions=1, energy_j=2.0, batch_sizes=[(1,)])
    whole.join(Ledger(submissions=2, energy_j=3.0, attempts=4, batch_sizes=[(2,)]))
    assert whole == Ledger(submissions=3, energy_j=5.0, attempts=4, batch_sizes=[(1,), (2,)])


def test_the_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    path = tmp_path / "groups.csv"
    out = tmp_path / "out"
    write_groups(path, [Group("a", "squad", tuple(AT_ONCE)), Group("b", "squad", tuple(APART))])
    arguments = ["--traces", str(tmp_path), "--out", str(out), "--processes", "2"]
    assert benchmark.main([*arguments, "--trace", str(path), "--policies", *benchmark.NAMES]) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["submissions"] == 44
    figures = report["workloads"]["bert_qa"]
    assert set(figures) == set(benchmark.NAMES)
    assert figures["default"]["energy"] == figures["default"]["time"] == pytest.approx(1.0)
    assert "Grid search" in (out / "report.md").read_text()
    assert figures["zeus"]["concurrent"] == figures["zeus"]["concurrent_incumbent"] == 3
    assert all(f["runs_without_model"] == 0 and f["attempts"] >= 44 for f in figures.values())
    assert (out / "report.md").read_text() in capsys.readouterr().out
    assert set(report["workloads"]) == {"bert_qa"}
    assert benchmark.main([*arguments, "--jobs", "300"]) == 0
    assert json.loads((out / "report.json").read_text())["submissions"] == 300


def test_the_file_of_the_papers_authors_is_read(tmp_path: Path) -> None:
    """``alibaba_groups.csv.xz``: packed, its columns as their README has them."""
    write(tmp_path)
    rows = ["0001086788b7de0f13804d22a12a27db,1427642.0,1446915.0,squad,1.1779405764729405"] * 3
    with lzma.open(tmp_path / "alibaba_groups.csv.xz", "wt") as file:
        file.write("\n".join(["group,start_time,end_time,dataset,runtime_ratio", *rows]))
    arguments = ["--traces", str(tmp_path), "--out", str(tmp_path / "out"), "--processes", "1"]
    assert benchmark.main([*arguments, "--trace", str(tmp_path / "alibaba_groups.csv.xz")]) == 0
    default = json.loads((tmp_path / "out" / "report.json").read_text())["workloads"]["bert_qa"][
        "default"
    ]
    assert (default["submissions"], default["concurrent"]) == (3, 2)
    assert default["default_time_s"] == pytest.approx(3 * 24 * 1.1779405764729405)


@pytest.mark.nightly
def test_a_seed_gives_one_report_however_many_processes_share_the_work(tmp_path: Path) -> None:
    write(tmp_path)

    def figures(*options: str) -> Any:
        arguments = ["--traces", str(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "9000"]
        assert benchmark.main([*arguments, "--policies", "zeus", "zeus", *options]) == 0
        return json.loads((tmp_path / "out" / "report.json").read_text())["workloads"]

    one = figures("--processes", "1")
    assert figures("--processes", "3") == one, "to the last digit"
    assert figures("--seed", "1") != one


def test_a_seed_is_the_luck_of_the_runs_too(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    groups = [Group("a", "squad", tuple(APART)), Group("b", "squad", tuple(APART))]
    found = [
        benchmark.run_groups(groups, {"squad": scenario}, ["zeus"], seed, 1)["bert_qa"]["zeus"]
        for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]


def test_the_report_by_hand() -> None:
    """A total where there are several workloads; a run below target is said."""
    half = Ledger(2, 5.0, 8.0, 10.0, 4.0, 7.0, 14.0, attempts=3)
    third = Ledger(1, 10.0, 1.0, 30.0, 4.0, 1.0, 2.0, 1)
    report = benchmark.report_of({"a": {"zeus": half}, "b": {"zeus": third}})
    energy_time = {
        name: (row["zeus"]["energy"], row["zeus"]["time"])
        for name, row in report["workloads"].items()
    }
    assert energy_time == {
        "a": (0.5, 2.0),
        "b": (pytest.approx(1 / 3), 0.25),
        "all": (15 / 40, 9 / 8),
    }
    assert report["submissions"] == 3
    assert "| all | zeus | 3 | 0.375 | 1.125 | 1.333 |" in benchmark.markdown_of(report)
    assert "done again" not in benchmark.markdown_of(report)
    missed = benchmark.report_of({"a": {"zeus": replace(half, runs_below_target=1)}})
    assert "done again" in benchmark.markdown_of(missed)


def test_what_the_benchmark_cannot_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    path = tmp_path / "groups.csv"
    write_groups(path, [Group("a", "imagenet", tuple(AT_ONCE))])
    assert benchmark.main(["--traces", str(tmp_path), "--trace", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dataset = 'imagenet': ")
    assert error.count("\n") == 1
    assert "squad" in error, "the remedy names what is there"
    assert benchmark.main(["--traces", str(tmp_path), "--gpu", "none"]) == 2


CELL = st.one_of(
    st.sampled_from(
        ["a", "squad", "0", "1", "2.5", "-1", "1e300", "nan", "inf", "", '"', "\x00", "1,1"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)


@REPRODUCIBLE
@given(
    st.lists(st.lists(CELL, max_size=5).map(",".join), max_size=4), st.sampled_from(["\n", "\r\n"])
)
def test_whatever_stands_in_a_file_is_read_or_said_in_one_line(lines: list[str], end: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "groups.csv"
        path.write_bytes(end.join([HEAD, "a,0,1,squad,1", *lines]).encode())
        said = ""
        groups = []
        try:
            groups = read_groups(path)
        except JobSpecError as error:
            said = str(error)
    assert groups or len(said.splitlines()) == 1
    assert all(
        s.end_s >= s.start_s and 0 < s.ratio < math.inf for g in groups for s in g.submissions
    )
