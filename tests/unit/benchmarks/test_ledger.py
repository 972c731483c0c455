"""The judge of what the pages say."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from airflow_provider_zeus.model.estimate import Estimate
from benchmarks import ledger
from benchmarks.ledger import Judged, Verdict, figures
from benchmarks.quality import situations
from benchmarks.quality.slice_tables import weather
from tests.unit.benchmarks.test_drifts import WHOLE

COVERED = Verdict(covered=True, wrong=False, undecided=False)
WRONG = Verdict(covered=False, wrong=True, undecided=False)
OPEN = Verdict(covered=True, wrong=False, undecided=True)


def test_an_interval_against_the_truth_by_hand() -> None:
    def said(low: float, high: float, truth: float) -> tuple[bool, bool, bool]:
        return ledger._compared(Estimate(0.0, low, high), truth, spent=100.0)

    assert said(110, 130, 120) == COVERED
    assert said(110, 130, 90) == WRONG, "it says that something was saved"
    assert said(70, 90, 120) == WRONG
    assert said(110, 130, 105) == (False, False, False)
    assert said(90, 130, 120) == OPEN
    assert said(101, 130, 99.5) == (False, False, False), (
        "within 1 % of what was spent nothing has a sign"
    )
    assert said(120, 120, 120.01) == COVERED, "measured, to a thousandth"


def test_figures_by_hand() -> None:
    found = figures(
        [Judged(5, 0.1, *COVERED, (COVERED, WRONG)), Judged(5, -0.3, *OPEN, (OPEN, OPEN))]
    )
    assert (found["logs"], found["bias"]) == (2, pytest.approx(-0.1))
    assert found["rmse"] == pytest.approx((0.05) ** 0.5)
    assert found["sums"] == {"covered": 1.0, "wrong_sign": 0.0, "undecided": 0.5}
    assert found["runs"] == {"covered": 0.75, "wrong_sign": 0.25, "undecided": 0.5}
    assert figures([Judged(5, 0.0, *COVERED, ())])["runs"]["covered"] is None
    silent = figures([Judged(5, None, *OPEN, ()), Judged(5, 0.1, *COVERED, ())])
    assert (silent["open"], silent["sums"]["undecided"], silent["bias"]) == (0.5, 0.0, 0.1)
    assert figures([Judged(5, None, *OPEN, ())])["bias"] is None


def made_log(kind: str, seed: int) -> ledger.Log:
    made = situations.made(kind, seed)
    return ledger.log_of(ledger.Part(kind, made, "", "knowledge_gradient", 0.02, seed))


@pytest.mark.parametrize("kind", situations.KINDS)
def test_a_made_job_is_its_kind_and_seed_and_is_judged_at_each_length(kind: str) -> None:
    assert situations.made(kind, 3) == situations.made(kind, 3) != situations.made(kind, 4)
    log = made_log(kind, 3)
    assert len(log.truth) == situations.SLICES
    assert ledger._after(log, 3).runs == 3


def test_the_truth_of_a_made_job_is_what_its_default_takes_with_the_same_luck() -> None:
    """At full power, which the runs of the default in the log were below."""
    log = made_log("energy and time vary", 1)
    full = max(sample.limit_w for sample in log.profiles)
    own = [t for t in log.trials if t.batch_size == log.job.default_batch_size]
    assert own
    slices = list(dict.fromkeys(t.key.ti_id for t in log.trials))
    for trial in own:
        seen = trial.observation
        if not trial.state.kept_model or seen.excess_j:
            continue
        cost = 0.5 * (seen.energy_j or 0.0) + 0.5 * 250 * (seen.time_s or 0.0)
        truth = log.truth[slices.index(trial.key.ti_id)]
        assert (seen.power_limit_w or full) < full
        assert 0.6 < cost / truth < 1.0


def test_what_is_special_about_each_kind() -> None:
    def epochs(kind: str, of_default: bool) -> list[list[float]]:
        found = []
        for seed in range(20):
            made = situations.made(kind, seed)
            others = [b for b in situations.SIZES if (b == made.default) == of_default]
            found.append([week.epochs[b][0] for week in made.weeks for b in others])
        return found

    def missed(kind: str, *, of_default: bool) -> float:
        runs = [e for of_seed in epochs(kind, of_default) for e in of_seed]
        return sum(map(math.isinf, runs)) / len(runs)

    usual = missed("stationary", of_default=True)
    assert usual < 0.02
    assert missed("default misses", of_default=True) == pytest.approx(0.3, abs=0.05)
    assert missed("every size misses", of_default=True) == pytest.approx(0.1, abs=0.03)
    assert missed("slices that all miss", of_default=True) == pytest.approx(0.12, abs=0.04)
    assert missed("large sizes miss", of_default=True) < 0.02

    def first(kind: str) -> float:
        ratios = [of[0] / statistics.median(of[1:]) for of in epochs(kind, True)]
        return statistics.median(ratios)

    assert first("unlucky first run") == pytest.approx(2.5, rel=0.15)
    assert first("lucky first run") == pytest.approx(1 / 1.8, rel=0.15)
    for seed in range(10):
        made = situations.made("default is best", seed)
        curve = {
            b: statistics.median(week.epochs[b][0] for week in made.weeks)
            * situations._epoch_cost(b)
            for b in situations.SIZES
        }
        assert curve[made.default] < 1.1 * min(curve.values())


def test_a_job_known_from_one_run_of_its_default_has_no_verdict() -> None:
    log = made_log("unlucky first run", 0)
    default = log.job.default_batch_size
    first = log.trials[0]
    others = [t for t in log.trials if t.batch_size != default and t.state.kept_model]
    once = log._replace(trials=[first, *others])
    judged = ledger._after(once, 10)
    assert (judged.wrong, judged.undecided) == (False, True)
    assert judged.error is not None


def test_the_weather_series_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZEUS_TRACES", raising=False)
    assert ledger.main(["--seeds", "1", "--jobs", "1", "--report", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found[ledger.REAL]) == {"3", "5", "10", "20", "40"}
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
    wrong: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
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
    log = ledger._of_series(
        weather(), ledger.Part(ledger.REAL, weather(), "small", "knowledge_gradient", 0.02, 0)
    )
    assert ledger._after(log, 5).error is not None
    missed = [t for t in log.trials if t.batch_size != log.job.default_batch_size]
    assert ledger._after(log._replace(trials=missed), 5).error is None


def test_the_truth_of_a_measured_pair_is_its_own_run_or_a_measured_one() -> None:
    log = ledger._of_pair(WHOLE, ledger.Part(ledger.STATIONARY, WHOLE, "small", "zeus", 0.0, 1))
    assert log.job.default_batch_size == 16
    epoch = WHOLE.epoch(WHOLE.full_power(16)).cost
    epochs = dict(
        zip(
            dict.fromkeys(t.key.ti_id for t in log.trials),
            (cost / epoch for cost in log.truth),
            strict=True,
        )
    )
    assert len(epochs) == ledger.LENGTHS[-1]
    assert {round(e, 6) for e in epochs.values()} == {4.0, 5.0}
    own = [t for t in log.trials if t.batch_size == 16 and t.state.kept_model]
    assert len(own) > 1
    assert [t.observation.epochs for t in own] == pytest.approx([epochs[t.key.ti_id] for t in own])


@pytest.mark.parametrize("seed", range(3))
def test_the_baseline_of_the_demo_lies_in_the_pages_interval(seed: int) -> None:
    """The weather example from batch size 32: never the wrong sign,
    and the trained baseline in the interval.
    """
    series = weather()
    part = ledger.Part(ledger.REAL, series, "small", "knowledge_gradient", 0.02, seed)
    for judged in ledger.judged(part):
        assert not judged.wrong
        assert judged.covered or judged.runs > 20
