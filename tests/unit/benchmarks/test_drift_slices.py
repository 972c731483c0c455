"""Figure 10 on real series: what a spike is, what is counted after it, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import drift_slices
from benchmarks.drift_slices import Slice, more_often, moves, paths_said, spikes_said
from benchmarks.quality.slice_tables import COLUMNS
from benchmarks.weather import example_job


def slices(sizes: list[int]) -> list[Slice]:
    return [Slice(str(i), b, 1, 1.0, 1.0, 1.0) for i, b in enumerate(sizes)]


def test_a_spike_by_hand() -> None:
    """Ten slices at 32 cost 10, the seventh 13; the one after it is trained with 64."""
    costs = [10.0] * 10
    costs[6] = 13.0
    found = moves(slices([32] * 7 + [64] * 3), costs, settled=5)
    assert found == {True: {6: True}, False: {5: False, 7: False, 8: False}}
    assert moves(slices([32] * 10), costs, settled=5)[True] == {6: False}
    assert moves(slices([32] * 10), [10.0] * 10, settled=5)[True] == {}
    assert moves(slices([32] * 10), [10.0] * 6 + [11.9] + [10.0] * 3, settled=5)[True] == {}, (
        "a fifth above is none"
    )


def test_how_much_more_often_after_a_spike_is_over_slices_not_seeds() -> None:
    """Two slices of eight are spikes, the same for every seed: more seeds make nothing surer."""
    one = {
        True: {1: True, 5: False},
        False: {0: False, 2: True, 3: False, 4: False, 6: False, 7: True},
    }
    found = more_often([one])
    assert found is not None
    assert found[0] == pytest.approx(1 / 2 - 2 / 6)
    assert found[1] < 0 < found[2]
    assert more_often([one] * 40) == found
    assert more_often([{True: {}, False: {0: True}}]) is None


def test_the_sentences_follow_the_figures() -> None:
    def report(more: list[float] | None) -> dict[str, Any]:
        figures = {"other_size": {"of_the_slice": {"more": more}}}
        return {"series": {"bike": {"variants": {"zeus": figures}}}}

    assert spikes_said(report([0.05, -0.05, 0.14])).endswith(
        "bike +5 [-5, +14]. Above 0 as a whole: none."
    )
    assert spikes_said(report([0.2, 0.01, 0.4])).endswith(
        "bike +20 [+1, +40]. Above 0 as a whole: bike."
    )
    assert "no spike" in spikes_said(report(None))
    path = [*slices([32, 32, 32, 64]), slices([64])[0]._replace(attempts=3), slices([64])[0]]
    assert (
        paths_said({"zeus": path})
        == "In the last 3 slices of the picture `zeus` keeps 64 in 3, and gives up 2 attempts at"
        " other sizes."
    )
    assert "keeps 32 in 2, 1 other sizes in the rest" in paths_said(
        {"zeus": slices([1, 1, 1, 64, 32, 32])}
    )


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
    rows += [
        f"{slice_:02},{b},{seed},{4 + b // 32},0.5"
        for slice_ in range(16)
        for b in (16, 64)
        for seed in (0, 1)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    out = tmp_path / "out"
    assert (
        drift_slices.main(
            ["--series", str(tmp_path), "--seeds", "2", "--jobs", "1", "--out", str(out)]
        )
        == 0
    )
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
