"""``benchmarks.targets``: the table says what is met, and its cases are those that are told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.asked import (
    ASKED,
    ASKED_SINCE,
    SPEED,
    Figure,
    cost_of,
    markdown,
    since,
    worst,
)
from benchmarks.quality.case_set import RECURRING, Cases, recurring, two_sizes_alone
from benchmarks.quality.drifts import SHIFT
from benchmarks.quality.made_jobs import TROUBLES
from benchmarks.simulation.traces import Traces
from benchmarks.targets import figures_of
from tests.unit.benchmarks.simulation.tiny import write


def test_a_figure_is_met_up_to_what_is_asked_and_names_its_case() -> None:
    found = {"pairs: audit": Figure(1.05), "drifts: worst": Figure(2.01, "a b")}
    lines = markdown(found, {"drifts: worst": Figure(1.5)})
    assert [line.split(" | ")[4:] for line in lines[2:4]] == [
        ["met", " |"],
        ["**not met**", "1.50 |"],
    ]
    assert "2.01 (a b) | 2.00 |" in lines[3]
    assert worst({"a": 1.0, "b": 3.0}) == Figure(3.0, "b")


def test_how_much_dearer_than_before() -> None:
    found = {cost_of("pairs"): Figure(-10.0), SPEED: Figure(1.2), "drifts: mean": Figure(3.0)}
    before = {cost_of("pairs"): Figure(-20.0), SPEED: Figure(1.0)}
    changes = {name: figure.value for name, figure in since(found, before).items()}
    assert changes == pytest.approx({"dearer: pairs": 12.5, "slower": 20.0})
    assert since(found, {}) == {}
    assert {*changes} <= {asked.figure for asked in ASKED_SINCE}


MADE = ("moved", "nothing", "season", "default misses", "a size", "first", "missed")
SHIFTS = ("below", "locked", "false alarms")


def asked_of(*names: str) -> set[str]:
    """The figures that are asked for whose names begin so."""
    return {asked.figure for asked in ASKED if asked.figure.startswith(names)}


def test_every_figure_of_pairs_is_made(tmp_path: Path) -> None:
    found = figures_of(Cases(write(tmp_path), seeds=1), 1, ["pairs", "speed"])
    assert asked_of("pairs", "overdraft: pairs") <= found.keys()
    assert found["pairs: worst"].of == "bert_qa/toy"
    assert found[SPEED].value > 0


@pytest.mark.nightly
@pytest.mark.parametrize(("group", "names"), [("made", MADE), ("regimes", SHIFTS)])
def test_every_figure_of_other_jobs_is_made(
    tmp_path: Path, group: str, names: tuple[str, ...]
) -> None:
    found = figures_of(Cases(write(tmp_path), seeds=1, every=5), 1, [group])
    assert asked_of(*names, f"overdraft: {group}") <= found.keys()


def test_two_sizes_alone_reach_a_raised_target_in_two_of_five_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert two_sizes_alone(Cases(write(tmp_path))) is None, "it befell ResNet-50 on A40"
    runs = dict.fromkeys((16, 32, 64), (10.0,) * 5)
    pair = replace(
        Traces(tmp_path).pair("bert_qa", "toy"),
        workload="resnet50",
        gpu="a40",
        epochs=runs,
        max_epochs=20,
    )
    monkeypatch.setattr(Cases, "pairs", lambda _: [replace(pair, default_batch_size=64)])
    drift = two_sizes_alone(Cases(tmp_path))
    assert drift is not None
    assert [*drift.shifts] == [SHIFT]
    after = drift.shifts[SHIFT].pair.epochs
    assert [sum(map(math.isfinite, after[b])) for b in (16, 32, 64)] == [2, 2, 0]


def test_each_group_holds_jobs_and_thinning_leaves_one_of_each(tmp_path: Path) -> None:
    traces = write(tmp_path)
    found = recurring(Cases(traces, seeds=1, every=1000), tuple(RECURRING))
    assert len(found["drifts"]) == 1
    assert "season" not in found, "jobs that were made are thinned, too"
    found |= recurring(Cases(traces, seeds=1), ("made",))
    made = sum(len(trouble.defaults) for trouble in TROUBLES.values())
    names = (
        "moved",
        "default misses",
        "a size fails",
        "unlucky",
        "slices missed",
        "season",
        "nothing",
    )
    others = ("small", "near_optimal", "large", "expected runs", "pairs", "drifts", "regimes")
    assert {*others, *names} == found.keys()
    assert sum(len(found[name]) for name in names) == made
    assert {job.job.expected_runs for job in found["expected runs"]} == {40}
    assert {job.job.audit for jobs in found.values() for job in jobs} == {0.02}
