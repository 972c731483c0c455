"""Figure 10 on real series: what a spike is, what is counted after it, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import drift_slices
from benchmarks.drift_slices import Slice, moves
from benchmarks.quality.slice_tables import COLUMNS
from benchmarks.quality.weather_measure import example_job


def slices(sizes: list[int]) -> list[Slice]:
    return [Slice(str(i), b, 1, 1.0, 1.0, 1.0) for i, b in enumerate(sizes)]


def test_a_spike_by_hand() -> None:
    """Ten slices at 32 cost 10, the seventh 13; the one after it is trained with 64."""
    costs = [10.0] * 10
    costs[6] = 13.0
    found = moves(slices([32] * 7 + [64] * 3), costs, settled=5)
    assert found == {True: [True], False: [False] * 3}
    assert moves(slices([32] * 10), costs, settled=5)[True] == [False]
    assert moves(slices([32] * 10), [10.0] * 10, settled=5)[True] == []
    assert moves(slices([32] * 10), [10.0] * 6 + [11.9] + [10.0] * 3, settled=5)[True] == [], "a fifth above is none"


def test_the_window_is_two_runs_for_each_batch_size() -> None:
    played = drift_slices.play("weather", None, ("zeus", 0))
    assert len(played.slices) == len(played.default) == 40
    assert {s.batch_size for s in played.default} == {example_job().default_batch_size}
    assert sum(s.cost for s in played.slices) < sum(s.cost for s in played.default)
    assert all(s.attempts == 1 for s in played.default)
    assert played == drift_slices.play("weather", None, ("zeus", 0)), "one seed, one replay"


@pytest.mark.nightly
def test_the_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [",".join(COLUMNS)]
    rows += [f"{slice_:02},{b},{seed},{4 + b // 32},0.5" for slice_ in range(16) for b in (16, 64) for seed in (0, 1)]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    out = tmp_path / "out"
    assert drift_slices.main(["--series", str(tmp_path), "--seeds", "2", "--jobs", "1", "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    assert set(report["series"]) == {"weather", "mine"}
    assert (report["series"]["mine"]["slices"], report["series"]["mine"]["default"]) == (16, 16)
    for of in report["series"].values():
        assert set(of["variants"]) == {"zeus", "knowledge_gradient"}
        assert len(of["first_seed"]["zeus"]) == of["slices"]
    steady = report["series"]["mine"]["variants"]["zeus"]["other_size"]["of_the_slice"]
    assert (steady["spikes"], steady["after"]) == (0, None), "every slice is alike"
    assert "none, " in capsys.readouterr().out
    assert (out / "drift.png").stat().st_size > 5_000


def test_a_folder_without_tables_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drift_slices.main(["--series", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds no CSV file" in capsys.readouterr().err
