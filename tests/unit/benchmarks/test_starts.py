"""The benchmark of starts: a training is made once, its policy pays for all that it tries,
and its report is whole.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_zeus.model.job_checks import Start
from benchmarks import starts
from benchmarks.quality.dated_series import Dated
from benchmarks.starts import POLICY, WAYS, Totals, Trainings, figures, main, play, slices_of


def series(rows: int = 160) -> Dated:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 3))
    return Dated(
        x, x @ np.array([1.0, -1.0, 0.5]) + 0.1 * rng.standard_normal(rows), window=60, step=20
    )


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "MOST", 6)
    monkeypatch.setattr(starts, "REFERENCE_EPOCHS", 3)


def test_no_model_has_trained_on_a_hold_out_that_comes_later() -> None:
    data = series()
    found = slices_of(data)
    assert len(found) == 5
    for now, then in pairwise(found):
        assert np.array_equal(now.next_y, then.held_y)
        assert not set(now.y) & set(then.held_y)


def test_a_training_is_made_once_and_shrunk_is_between() -> None:
    trainings = Trainings(series(), 16, 0, 40)
    cold = trainings.run(0, Start.WARM, None)
    assert cold is trainings.run(0, Start.COLD, None), "without an earlier model it is cold"
    warm = trainings.run(1, Start.WARM, cold.weights)
    assert warm is trainings.run(1, Start.WARM, cold.weights)
    assert warm is not trainings.run(1, Start.SHRUNK, cold.weights)
    assert trainings.run(1, Start.COLD, cold.weights) is trainings.run(1, Start.COLD, warm.weights)


def test_the_policy_pays_for_what_it_tries() -> None:
    trainings = Trainings(series(), 16, 0, 40)
    ours = play(trainings, POLICY, 16, 0, skipping=False)
    kept = ours.epochs * len(trainings.slices) * len(trainings.slices[0].y)
    assert ours.cost >= kept > 0
    assert 0.0 <= ours.due <= ours.cost


def test_figures_are_relative_to_always_cold() -> None:
    seeds = [
        {way: Totals(2.0, 10.0 if way == "cold" else 5.0, 1.0, 1, 4.0) for way in WAYS}
        for _ in range(2)
    ]
    found = figures(seeds)
    assert found["cold"] == {"cost": 1.0, "due": 0.1, "epochs": 2.0, "missed": 1.0, "service": 1.0}
    assert found["policy"]["cost"] == 0.5


def test_a_series_of_others_is_read_and_the_report_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = series()
    np.savez(tmp_path / "mine.npz", X=data.x, y=data.y, window=60, step=20)
    out = tmp_path / "out.json"
    assert (
        main(
            [
                "--data",
                str(tmp_path / "mine.npz"),
                "--seeds",
                "1",
                "--jobs",
                "1",
                "--report",
                str(out),
            ]
        )
        == 0
    )
    found = json.loads(out.read_text())
    assert set(found["ways"]) == set(found["skipping"]) == {"cold", "shrunk", "warm", "policy"}
    assert set(found["ways"]["policy"]) == {"cost", "due", "epochs", "missed", "service"}
    assert "| mine | policy |" in capsys.readouterr().out
