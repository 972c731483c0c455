"""The benchmark of the power profiler, on curves small enough to reckon by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_zeus.training.profiling.search import MOST
from benchmarks import profiler
from benchmarks.parts.profiler_overhead import overhead
from benchmarks.parts.profiler_replay import (
    SEARCHES,
    Bench,
    Case,
    Curve,
    curves_of,
    first_worse,
    full_sweep,
    monotone,
    ours,
    searched,
    ternary,
)
from benchmarks.simulation.traces import Traces
from tests.unit.benchmarks.simulation.tiny import POWER_HEAD, write

LIMITS_W = np.array([100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0])
# cost at eta 1: a hump at 225 W hides the best one from a search that stops there
HUMP = Curve("hump", 250.0, LIMITS_W, np.full(7, 100.0), np.array([9.0, 7.0, 5.0, 6.0, 7.0, 9.0, 8.0]) * 1e3)
BOWL = Curve("bowl", 250.0, LIMITS_W, 100 * (250 / LIMITS_W) ** 0.5, (LIMITS_W - 40) * 100 * (250 / LIMITS_W) ** 0.5)


def traces(folder: Path) -> Path:
    row = "squad,bert_base_uncased,{},adamw,{:g},{:.9g},{:.9g}"
    rows = [
        row.format(size, w, size * s, j / s)
        for size, curve in ((16, HUMP), (32, BOWL))
        for w, s, j in zip(curve.limits_w, curve.time_s, curve.energy_j, strict=True)
    ]
    short = row.format(64, 100, 1, 90)  # one limit is no curve
    return write(folder, power=[POWER_HEAD, *rows, short])


def test_every_curve_of_the_folder_is_read(tmp_path: Path) -> None:
    found = curves_of(Traces(traces(tmp_path)))
    assert [c.name for c in found] == [f"squad/bert_base_uncased/adamw/toy/{b}" for b in (16, 32)]
    assert found[1].energy_j == pytest.approx(32 * BOWL.energy_j)
    assert found[0].max_power_w == 250.0


def test_interpolation_goes_through_its_points_and_makes_no_new_minimum() -> None:
    long = HUMP.resampled(21)
    assert len(long.limits_w) == 21
    assert monotone(LIMITS_W, HUMP.energy_j, LIMITS_W) == pytest.approx(HUMP.energy_j)
    assert (long.energy_j.min(), long.energy_j.max()) == (pytest.approx(5000, rel=0.01), 9000)
    falling = monotone(LIMITS_W, BOWL.time_s, np.linspace(100, 250, 301))
    assert (np.diff(falling) < 0).all()
    straight = monotone(LIMITS_W, 2 * LIMITS_W, np.array([110.0, 237.0]))
    assert straight == pytest.approx([220.0, 474.0])


def test_searches_without_noise() -> None:
    bench = Bench(HUMP, 1.0, 0.0, 0)
    assert full_sweep(bench) == (2, 7, 7)
    assert first_worse(bench) == (6, 2, 2)
    assert first_worse(Bench(BOWL, 1.0, 0.0, 0)) == (0, 7, 7)
    assert ternary(bench).at == 2
    assert ternary(bench).limits < 7
    found = ours(bench)
    assert found.at == 2
    assert found.limits == 6  # 250, 200, 150 and 100 W, and the neighbours of 150 W
    assert found.windows == found.limits


def test_the_first_window_shows_the_same_noise_to_every_search_and_windows_have_the_noise_asked_for() -> None:
    benches = [Bench(BOWL, 0.5, 0.03, seed) for seed in range(300)]
    pieces = benches[0].pieces(3, 0)
    time_s, energy_j, n = (sum(getattr(p, name) for p in pieces) for name in ("time_s", "energy_j", "samples"))
    cost = 0.5 * energy_j / n + 0.5 * 250 * time_s / n
    assert cost * 1e9 == pytest.approx(benches[0].once[3], rel=1e-6)
    off = np.array([bench.once / BOWL.cost(0.5) - 1 for bench in benches])
    share = 0.5 * BOWL.energy_j / BOWL.cost(0.5)
    assert off.std(axis=0) == pytest.approx(0.03 * np.hypot(share, 1 - share), rel=0.15)
    assert (Bench(BOWL, 0.5, 0.03, 7).noise == benches[7].noise).all()
    assert not np.allclose(Bench(HUMP, 0.5, 0.03, 7).noise, benches[7].noise)


def test_a_case_counts_regret_limits_and_windows() -> None:
    rows = searched(Case(HUMP, 1.0, 0.0, 2))
    assert list(rows) == list(SEARCHES)
    assert rows["full sweep"] == ([0.0, 0.0], [1.0, 1.0], [1.0, 1.0])
    sweep, as_long_as_ours, stops_early = (row for name, row in rows.items() if name.startswith(("full", "stop")))
    assert as_long_as_ours == sweep
    assert stops_early.regret == pytest.approx([0.6, 0.6])
    noisy = searched(Case(HUMP, 1.0, 0.05, 5))["ours"]
    assert max(noisy.windows) <= MOST
    assert max(noisy.regret) < 0.2


def test_a_training_costs_little_more_than_the_same_one_at_the_optimum() -> None:
    found = overhead(BOWL, 10.0, 12)
    assert 30 < found.complete_s < 140
    assert 0 <= found.regret < 0.02
    assert -0.001 < found.cost < 0.2
    long = overhead(BOWL, 3600.0, 2)
    assert long.cost < found.cost
    assert long.cost == pytest.approx(found.regret, abs=0.01)


@pytest.mark.slow
def test_the_report_says_what_is_met_and_the_exit_status_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiler, "EPOCHS", 4)
    out = tmp_path / "out"
    arguments = ["--traces", str(traces(tmp_path)), "--seeds", "2", "--jobs", "1", "--out", str(out)]
    status = profiler.main(arguments)
    report = json.loads((out / "profiler.json").read_text())
    assert (report["curves"], report["seeds"]) == (2, 2)
    assert len(report["searches"]) == 2 * 2 * 2 * len(SEARCHES)
    assert [row["epoch_s"] for row in report["overhead"]] == [10.0, 60.0, 3600.0]
    assert len(report["verdicts"]) == 4 * 3 + 4
    assert status == int(not all(v["met"] for v in report["verdicts"]))
    assert (out / "profiler.md").read_text() in capsys.readouterr().out
    monkeypatch.setitem(profiler.GRIDS, "21 limits", 0.01)
    assert profiler.main(arguments) == 1
    assert "| NO |" in (out / "profiler.md").read_text()
