"""The replay of waits over hourly series, on a small folder made up here,
and on the real one where it is named.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks import signals


def folder(tmp_path: Path, days: int = 40) -> Path:
    """A grid that is clean at 03:00 and dirty at 18:00, every day the same."""
    start = datetime(2019, 12, 24, tzinfo=UTC)
    lines = ["time_utc,gco2_per_kwh"]
    for h in range(24 * days):
        at = start + timedelta(hours=h)
        value = {3: 100.0, 18: 500.0}.get(at.hour, 300.0)
        lines.append(f"{at:%Y-%m-%dT%H:%MZ},{value}")
    (tmp_path / "xx_2020.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "savings.csv").write_text(
        "signal,scheduled_utc_h,job_h,may_wait_h,forecast,saved_percent\nxx carbon"
        " 2020,18,1,16,week,80.0\n"
    )
    return tmp_path


@pytest.mark.nightly
def test_a_replay_and_its_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = signals.main(
        ["--signals", str(folder(tmp_path)), "--out", str(tmp_path / "out"), "--jobs", "1"]
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    cells = {(c["scheduled_h"], c["job_h"], c["wait_h"]): c for c in report["cells"]}
    assert len(cells) == 27
    evening = cells[18, 1, 16]
    assert evening["perfect_saved"] == evening["forecast_5_saved"] == evening["fixed_saved"] == 80.0
    assert evening["forecast_5_wait_h"] == 9.0
    assert cells[1, 1, 4]["forecast_5_saved"] == pytest.approx(66.67, abs=0.01)
    assert cells[9, 4, 4]["forecast_5_saved"] == 0.0
    assert status == 0
    assert capsys.readouterr().out.count("held ") == 3
    assert (
        "plan" in (tmp_path / "out" / "report.md").read_text()
        or "perfect" in (tmp_path / "out" / "report.md").read_text()
    )


def test_an_empty_folder_and_an_unknown_column_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert signals.main(["--signals", str(tmp_path)]) == 2
    (tmp_path / "xx_2020.csv").write_text("time_utc,joules\n2020-01-01T00:00Z,3\n")
    assert signals.main(["--signals", str(tmp_path)]) == 2
    assert "gco2_per_kwh" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_real_carbon_intensities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = os.environ.get("ZEUS_SIGNALS")
    if not where:
        pytest.skip("ZEUS_SIGNALS names no folder of hourly series")
    for path in (*Path(where).glob("??_2020.csv"), Path(where) / "savings.csv"):
        (tmp_path / path.name).symlink_to(path)
    status = signals.main(["--signals", str(tmp_path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert status == 0, said
    assert "(81 cells)" in said
