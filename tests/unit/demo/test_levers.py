"""``make demo-levers``: what it writes is what the job's signal reads.

The whole demo runs nightly.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_zeus.signals.parse import Layout, parsed
from demo.levers import __main__ as demo_levers


def test_its_intensity_can_be_read_and_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_levers, "CARBON", tmp_path / "carbon.csv")
    demo_levers.write_carbon(450.0, then=120.0)
    said = json.loads(demo_levers.levers_env(8080)["AIRFLOW_CONN_ZEUS_CARBON"])["extra"]
    layout = Layout(times=said["times"], values=said["values"], unit=said["unit"])
    values = [step.value for step in parsed((tmp_path / "carbon.csv").read_text(), layout).steps]
    assert values == sorted(values, reverse=True)
    assert {values[0], values[-1]} == {450.0, 120.0}
