"""The judge of what the pages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_zeus.model.estimate import Estimate
from benchmarks import ledger
from benchmarks.ledger import Judged, figures
from benchmarks.quality.made_series import MADE, SIZES, made
from benchmarks.quality.slice_tables import weather
from tests.unit.benchmarks.test_drifts import WHOLE

COVERED, WRONG, OPEN = (True, False, False), (False, True, False), (True, False, True)


def test_an_interval_against_the_truth_by_hand() -> None:
    def said(low: float, high: float, truth: float) -> tuple[bool, bool, bool]:
        return ledger._compared(Estimate(0.0, low, high), truth, spent=100.0)

    assert said(110, 130, 120) == COVERED
    assert said(110, 130, 90) == WRONG, "it says that something was saved"
    assert said(70, 90, 120) == WRONG
    assert said(110, 130, 105) == (False, False, False)
    assert said(90, 130, 120) == OPEN
    assert said(101, 130, 99.5) == (False, False, False), "within 1 % of what was spent nothing has a sign"
    assert said(120, 120, 120.01) == COVERED, "measured, to a thousandth"


def test_figures_by_hand() -> None:
    found = figures([Judged(5, 0.1, *COVERED, (COVERED, WRONG)), Judged(5, -0.3, *OPEN, (OPEN, OPEN))])
    assert (found["logs"], found["bias"]) == (2, pytest.approx(-0.1))
    assert found["rmse"] == pytest.approx((0.05) ** 0.5)
    assert found["sums"] == {"covered": 1.0, "wrong_sign": 0.0, "undecided": 0.5}
    assert found["runs"] == {"covered": 0.75, "wrong_sign": 0.25, "undecided": 0.5}
    assert figures([Judged(5, 0.0, *COVERED, ())])["runs"]["covered"] is None
    silent = figures([Judged(5, None, *OPEN, ()), Judged(5, 0.1, *COVERED, ())])
    assert (silent["open"], silent["sums"]["undecided"], silent["bias"]) == (0.5, 0.0, 0.1)
    assert figures([Judged(5, None, *OPEN, ())])["bias"] is None


def test_a_made_series_is_its_kind_and_seed() -> None:
    """Series of one name are equal, and regimes change which size needs the fewest epochs."""
    assert made("regimes", 3) == made("regimes", 3) != made("regimes", 4)
    for kind in MADE:
        series = made(kind, 0)
        assert (len(series.weeks), len(series.batch_sizes)) == (40, 6)
        assert ledger.judged(ledger.Part(kind, series, "small", "knowledge_gradient", 0.02, 0))[-1].runs == 40

    def best(seed: int) -> list[int]:
        sums = [{b: sum(e) for b, e in week.epochs.items()} for week in made("regimes", seed).weeks]
        return [min(SIZES, key=lambda b: sum(s[b] for s in sums[i : i + 8])) for i in (0, 32)]

    assert sum(first != last for first, last in map(best, range(10))) >= 5


def test_the_weather_series_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZEUS_TRACES", raising=False)
    assert ledger.main(["--seeds", "1", "--jobs", "1", "--report", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found[ledger.REAL]) == {"5", "10", "20", "40"}
    assert found[ledger.REAL]["40"]["sums"]["wrong_sign"] == 0
    assert "real series" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--traces", "/nowhere"], "traces = '/nowhere'"),
        (["--series", "/nowhere"], "series = '/nowhere'"),
        (["--max-epochs", "bike=60"], "bike=60"),
        (["--max-epochs", "bike"], "bike is not NAME=N"),
        (["--seeds", "0"], "0 is not a positive number"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    wrong: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZEUS_TRACES", raising=False)
    monkeypatch.setattr(ledger, "measure", lambda *_: pytest.fail("it measures"))
    try:
        status = ledger.main(wrong)
    except SystemExit as stopped:  # argparse
        status = stopped.code if isinstance(stopped.code, int) else -1
    assert status == 2
    assert named in capsys.readouterr().err


def test_a_log_whose_default_never_reached_its_target_is_not_judged() -> None:
    log = ledger._of_series(weather(), ledger.Part(ledger.REAL, weather(), "small", "knowledge_gradient", 0.02, 0))
    assert ledger._after(log, 5).error is not None
    missed = [t for t in log.trials if t.batch_size != log.job.default_batch_size]
    assert ledger._after(log._replace(trials=missed), 5).error is None


def test_the_truth_of_a_measured_pair_is_its_own_run_or_a_measured_one() -> None:
    log = ledger._of_pair(WHOLE, ledger.Part(ledger.STATIONARY, WHOLE, "small", "zeus", 0.0, 1))
    assert log.job.default_batch_size == 16
    epoch = WHOLE.epoch(WHOLE.full_power(16)).cost
    epochs = dict(
        zip(dict.fromkeys(t.key.ti_id for t in log.trials), (cost / epoch for cost in log.truth), strict=True)
    )
    assert len(epochs) == ledger.LENGTHS[-1]
    assert {round(e, 6) for e in epochs.values()} == {4.0, 5.0}
    own = [t for t in log.trials if t.batch_size == 16 and t.state.kept_model]
    assert len(own) > 1
    assert [t.observation.epochs for t in own] == pytest.approx([epochs[t.key.ti_id] for t in own])


@pytest.mark.parametrize("seed", range(3))
def test_the_baseline_of_the_demo_lies_in_the_pages_interval(seed: int) -> None:
    """The weather example from batch size 32: never the wrong sign, and the trained baseline in the interval."""
    series = weather()
    part = ledger.Part(ledger.REAL, series, "small", "knowledge_gradient", 0.02, seed)
    for judged in ledger.judged(part):
        assert not judged.wrong
        assert judged.covered or judged.runs > 20
