"""Every Airflow process imports the plugin module: it must load nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from airflow_provider_zeus.plugin import ZeusPlugin, listener

HEAVY = {"fastapi", "sqlalchemy", "alembic", "numpy", "pynvml", "torch", "starlette"}
SCRIPT = """
import json, sys
import airflow.plugins_manager
before = set(sys.modules)
from airflow_provider_zeus.plugin import ZeusPlugin
assert ZeusPlugin.external_views
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_plugin_module_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "airflow_provider_zeus.plugin" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert not [name for name in loaded if name.startswith("airflow_provider_zeus.plugin.")]


def test_a_listener_that_cannot_be_loaded_stops_no_airflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> None:
        raise ImportError("no module")

    monkeypatch.setattr(listener, "named_tasks", damaged)
    assert ZeusPlugin().listeners == []
    assert "measures no task from outside" in caplog.text
