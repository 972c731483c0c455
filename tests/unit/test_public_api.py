"""The public API: which names it has, that each is there and documented,
and that importing the package is cheap.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import airflow_provider_zeus

ROOT = Path(airflow_provider_zeus.__file__).parents[1]
NAMES = [
    "AttemptOver",
    "BelowTargetError",
    "DeviceError",
    "JobSpecError",
    "ReportError",
    "StoreError",
    "TrainingKilled",
    "UnknownTrialError",
    "ZeusCommandOperator",
    "ZeusError",
    "ZeusHook",
    "ZeusJob",
    "ZeusRun",
    "ZeusTrainOperator",
    "ZeusTrial",
]


def test_the_package_lists_these_names_and_its_version() -> None:
    assert sorted(airflow_provider_zeus.__all__) == sorted([*NAMES, "__version__"])
    assert sorted(dir(airflow_provider_zeus)) == sorted(airflow_provider_zeus.__all__)


def test_each_name_is_there_and_documented() -> None:
    for name in NAMES:
        found = getattr(airflow_provider_zeus, name)
        assert inspect.isclass(found) or inspect.isfunction(found), name
        assert found.__name__ == name
        assert found is getattr(import_module(found.__module__), name), name
        assert found.__doc__, name
        for member, value in vars(found).items():
            if not member.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, property | classmethod)
            ):
                assert inspect.getdoc(getattr(found, member)), f"{name}.{member} has no docstring"


def test_the_document_names_every_one() -> None:
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    section = text.partition("## Public API")[2]
    assert set(NAMES) <= set(re.findall(r"`(\w+)`", section))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = airflow_provider_zeus.NoSuchName


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = (
        "import json, sys, importlib\n"
        "before = set(sys.modules)\n"
        "import airflow_provider_zeus\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = json.loads(done.stdout)
    assert [m for m in loaded if m.startswith("airflow")] == ["airflow_provider_zeus"]
    assert {m.partition(".")[0] for m in loaded} <= {
        "airflow_provider_zeus",
        *sys.stdlib_module_names,
    }
