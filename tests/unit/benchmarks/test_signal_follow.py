"""The replay of limits that follow a signal,
on series and traces small enough to reckon by hand.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_zeus.model.cost import Rate
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H
from benchmarks import signal_follow
from benchmarks.signal_follow import frontier, train
from tests.unit.benchmarks.simulation import tiny

RATES: dict[float, Rate] = {100.0: (2000.0, 20.0), 200.0: (3000.0, 10.0)}


def grid(folder: Path, name: str, night: float, day: float) -> None:
    start = datetime(2019, 12, 20, tzinfo=UTC)
    lines = ["time_utc,gco2_per_kwh"]
    for h in range(24 * 40):
        at = start + timedelta(hours=h)
        lines.append(f"{at:%Y-%m-%dT%H:%MZ},{night if at.hour < 12 else day}")
    (folder / name).write_text("\n".join(lines) + "\n")


def test_a_run_spends_by_the_hour() -> None:
    unit = Unit.parse("g/kWh")
    series = Series.of(unit, [Step(0.0, S_PER_H, 100.0), Step(S_PER_H, 2 * S_PER_H, 300.0)])
    work = 360.0 + 90.0  # an hour at 200 W, then half an hour at 100 W
    grams, time_s = train(series, 0.0, work, lambda at_s: 200.0 if at_s < S_PER_H else 100.0, RATES)
    assert time_s == pytest.approx(1.5 * S_PER_H)
    assert grams == pytest.approx((360 * 3000.0 * 100.0 + 90 * 2000.0 * 300.0) / J_PER_KWH)


def test_the_frontier_mixes_two_limits() -> None:
    single = [(10.0, 1.0), (4.0, 3.0), (9.0, 2.0)]
    assert frontier(single, 1.0) == 10.0
    assert frontier(single, 2.0) == pytest.approx(7.0)
    assert frontier(single, 5.0) == 4.0


def test_a_grid_that_changes_gains_and_one_that_does_not_gains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    grid(signals, "flat_2020.csv", 200.0, 200.0)
    grid(signals, "steep_2020.csv", 10.0, 500.0)
    arguments = [
        "--traces",
        str(tiny.write(tmp_path)),
        "--signals",
        str(signals),
        "--hours",
        "10",
        "--jobs",
        "1",
    ]
    assert signal_follow.main([*arguments, "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "report.json").read_text())
    gained = {(r["signal"], r["rule"], r["eta"]): r["saved"] - r["single_saved"] for r in rows}
    assert all(abs(g) < 0.02 for (signal, _, _), g in gained.items() if signal == "flat_2020")
    assert all(abs(g) < 0.02 for (_, rule, _), g in gained.items() if rule == "best limit")
    steep = [gained["steep_2020", "known", eta] for eta in signal_follow.ETAS]
    assert max(steep) > 1.0
    assert [gained["steep_2020", "planned", eta] for eta in signal_follow.ETAS] == pytest.approx(
        steep, abs=0.02
    )
    assert "gained over single limits" in (tmp_path / "out" / "report.md").read_text()
    assert "known" in capsys.readouterr().out


def test_a_folder_without_a_series_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        signal_follow.main(
            ["--traces", str(tiny.write(tmp_path)), "--signals", str(tmp_path / "none")]
        )
        == 2
    )
    assert "no carbon series" in capsys.readouterr().err
