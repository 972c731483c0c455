"""Replays: what is kept of them, and the public code's own beside them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import reproduction
from benchmarks.command import on_all_cores, progress
from benchmarks.parts.literal import literal
from benchmarks.replays import UPSTREAM, Replays, run_policy
from benchmarks.report import mean_ci, student
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces
from tests.unit.benchmarks import public_code
from tests.unit.benchmarks.simulation.tiny import tiny, write

SEEDS = 60


def test_what_cannot_be_run_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZEUS_TRACES", raising=False)
    assert reproduction.main([]) == 2
    assert reproduction.main(["--traces", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2
    assert "ZEUS_TRACES" in error[0]
    assert "summary_power_<gpu>.csv" in error[1]


def test_what_is_not_installed_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (
        reproduction.main(["--traces", str(write(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    )
    assert "installed = 'matplotlib': " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_bar_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(progress(iter("abc"), 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert list(progress(iter("ab"), 2)) == ["a", "b"]
    shown = capsys.readouterr().err
    assert "] 1/2" in shown
    assert f"[{'#' * 30}] 2/2" in shown
    assert shown.endswith("\n")


def test_upstreams_own_simulator_agrees_where_nothing_is_left_to_chance(tmp_path: Path) -> None:
    """Size 64 misses in half of its runs, so only what comes before it is compared:
    32 is run, then 16.
    """
    pytest.importorskip(
        "zeus._legacy.simulate", reason="upstream is not installed: pip install zeus==0.16.0"
    )
    scenario = tiny(tmp_path)
    theirs = public_code.regret_of(scenario, tmp_path, 2, 0)
    ours = literal(scenario, 2, 0).regret()
    assert ours == pytest.approx(theirs)
    first = (3 * 1560 + (1740 - 1560) / 2) / 4000 - 1
    assert ours == pytest.approx([first, first + (2 * 2000 + (3000 - 2000) / 2) / 4000 - 1]), (
        "profiling is paid"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("pair", ["bert_sa/v100", "bert_sa/a40", "shufflenet/v100"])
def test_the_public_codes_regret_is_that_of_the_replay(pair: str) -> None:
    pytest.importorskip(
        "zeus._legacy.simulate", reason="upstream is not installed: pip install zeus==0.16.0"
    )
    if "ZEUS_TRACES" not in os.environ:
        pytest.skip("the paper's traces are not here: set ZEUS_TRACES to their folder")
    folder = Path(os.environ["ZEUS_TRACES"])
    scenario = Scenario(Traces(folder).pair(*pair.split("/")))
    times = scenario.pair.recurrences
    theirs = [public_code.regret_of(scenario, folder, times, seed)[-1] for seed in range(SEEDS)]
    ours = [literal(scenario, times, seed).regret()[-1] for seed in range(SEEDS)]
    assert fmean(ours) == pytest.approx(fmean(theirs), rel=0.15)


def test_means_by_hand() -> None:
    assert mean_ci([1.0, 3.0]) == [2.0, pytest.approx(12.706)], (
        "two values: Student's t of one degree of freedom"
    )
    assert mean_ci([1.0, 2.0, 3.0])[1] == pytest.approx(4.303 / 3**0.5)
    assert [student(n) for n in (9, 10, 39, 10**6)] == pytest.approx(
        [2.262, 2.2281, 2.0227, 1.96], abs=5e-4
    )
    assert mean_ci([5.0]) == [5.0, 0.0]
    whole = Replays(recurrences=10, spent=[1.0], attempts=2)
    whole.join(Replays(recurrences=20, spent=[2.0], attempts=1))
    assert (whole.recurrences, whole.spent, whole.attempts) == (30, [1.0, 2.0], 2)


@pytest.mark.nightly
def test_numbers_on_the_papers_traces() -> None:
    if "ZEUS_TRACES" not in os.environ:
        pytest.skip("the paper's traces are not here: set ZEUS_TRACES to their folder")
    scenario = Scenario(Traces(Path(os.environ["ZEUS_TRACES"])).pair("bert_sa", "v100"))
    theirs, ours = (
        [run_policy(p, scenario, scenario.pair.recurrences, seed) for seed in (0, 1)]
        for p in (UPSTREAM, "zeus")
    )
    assert fmean(log.regret()[-1] for log in theirs) == pytest.approx(1.69, abs=0.05)
    assert sum(log.runs_without_model for log in ours) == 0


def test_work_is_shared_by_processes_that_inherit_no_handler_and_no_lock() -> None:
    """A process of ours may hold threads and handle signals:
    forks of it ended in nothing but being waited for.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert list(on_all_cores(abs, [-3, 2, -1], jobs=2)) == [3, 2, 1]
        with pytest.raises(TypeError):
            list(on_all_cores(abs, [1, "one", 2], jobs=2))
    finally:
        signal.signal(signal.SIGTERM, before)
