"""The judge of what the pages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_zeus.model.estimate import Estimate
from benchmarks import ledger
from benchmarks.ledger import Judged, figures
from benchmarks.series_table import weather

COVERED, WRONG, OPEN = (True, False, False), (False, True, False), (True, False, True)


def test_an_interval_against_the_truth_by_hand() -> None:
    def said(low: float, high: float, truth: float) -> tuple[bool, bool, bool]:
        return ledger._compared(Estimate(0.0, low, high), truth, spent=100.0)

    assert said(110, 130, 120) == COVERED
    assert said(110, 130, 90) == WRONG, "it says that something was saved"
    assert said(70, 90, 120) == WRONG
    assert said(110, 130, 105) == (False, False, False)
    assert said(90, 130, 120) == OPEN
    assert said(120, 120, 120.01) == COVERED, "measured, to a thousandth"


def test_figures_by_hand() -> None:
    found = figures([Judged(5, 0.1, *COVERED, (COVERED, WRONG)), Judged(5, -0.3, *OPEN, (OPEN, OPEN))])
    assert (found["logs"], found["bias"]) == (2, pytest.approx(-0.1))
    assert found["rmse"] == pytest.approx((0.05) ** 0.5)
    assert found["sums"] == {"covered": 1.0, "wrong_sign": 0.0, "undecided": 0.5}
    assert found["runs"] == {"covered": 0.75, "wrong_sign": 0.25, "undecided": 0.5}
    assert figures([Judged(5, 0.0, *COVERED, ())])["runs"]["covered"] is None


def test_the_weather_series_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZEUS_TRACES", raising=False)
    assert ledger.main(["--seeds", "1", "--jobs", "1", "--report", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found[ledger.REAL]) == {"5", "10", "20", "40"}
    assert found[ledger.REAL]["40"]["sums"]["wrong_sign"] == 0
    assert "real series" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(3))
def test_the_baseline_of_the_demo_lies_in_the_pages_interval(seed: int) -> None:
    """The weather example from batch size 32: never the wrong sign, and the trained baseline in the interval."""
    series = weather()
    part = ledger.Part(ledger.REAL, series, "small", "knowledge_gradient", 0.02, seed)
    for judged in ledger.judged(part):
        assert not judged.wrong
        assert judged.covered or judged.runs > 20
