"""``benchmarks.targets``: the table says what is met, and its cases are those that are told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.case_set import Cases, recurring, two_sizes_alone
from benchmarks.quality.drifts import SHIFT
from benchmarks.simulation.traces import Traces
from benchmarks.targets import ASKED, Figure, figures_of, markdown, worst
from tests.unit.benchmarks.simulation.tiny import write


def test_a_figure_is_met_up_to_what_is_asked_and_names_its_case() -> None:
    lines = markdown({"audit": Figure(1.05), "drifts: worst": Figure(2.01, "a b")})
    assert [line.split(" | ")[-1] for line in lines[2:4]] == ["**not met** |", "met |"]
    assert "2.01 (a b) | 2.00 |" in lines[2]
    assert worst({"a": 1.0, "b": 3.0}) == Figure(3.0, "b")


def test_every_figure_that_is_asked_for_is_made(tmp_path: Path) -> None:
    """Of the groups that need no folder but the traces."""
    found = figures_of(Cases(write(tmp_path), seeds=1, every=5), 1, ["pairs", "regimes"])
    others = ("near_optimal", "large", "small", "expected_runs", "mlperf", "held", "drifts", "two")
    assert {a.figure for a in ASKED if not a.figure.startswith(others)} <= found.keys()
    assert found["pairs: worst"].of == "bert_qa/toy"


def test_two_sizes_alone_reach_a_raised_target_in_two_of_five_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert two_sizes_alone(Cases(write(tmp_path))) is None, "it befell ResNet-50 on A40"
    runs = dict.fromkeys((16, 32, 64), (10.0,) * 5)
    pair = replace(Traces(tmp_path).pair("bert_qa", "toy"), workload="resnet50", gpu="a40", epochs=runs, max_epochs=20)
    monkeypatch.setattr(Cases, "pairs", lambda _: [replace(pair, default_batch_size=64)])
    drift = two_sizes_alone(Cases(tmp_path))
    assert drift is not None
    assert [*drift.shifts] == [SHIFT]
    after = drift.shifts[SHIFT].pair.epochs
    assert [sum(map(math.isfinite, after[b])) for b in (16, 32, 64)] == [2, 2, 0]


def test_each_group_holds_jobs_and_thinning_leaves_one_of_each(tmp_path: Path) -> None:
    found = recurring(Cases(write(tmp_path), every=1000))
    assert {"small", "near_optimal", "large", "expected runs", "pairs", "audit", "drifts", "regimes"} == found.keys()
    assert (len(found["drifts"]), len(found["audit"])) == (1, 1)
    assert {job.job.expected_runs for job in found["expected runs"]} == {40}
    assert found["audit"][0].job.audit == 0.02
