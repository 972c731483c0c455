"""Airflow's internals are used in one file, and each of them is there on the installed version."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus import airflow_compat

ROOT = Path(__file__).parents[2]
COMPAT = Path(airflow_compat.__file__).resolve()
# What Airflow documents as its public interface: a module with all of its names, or single names.
PUBLIC = {"airflow.sdk", "airflow.exceptions", "airflow.sdk.exceptions", "airflow.providers"}
PUBLIC_NAMES = {
    "airflow.plugins_manager.AirflowPlugin",
    "airflow.sdk.bases.decorator.DecoratedOperator",  # "Creating Custom @task Decorators"
    "airflow.sdk.bases.decorator.TaskDecorator",
    "airflow.sdk.bases.decorator.task_decorator_factory",
    "airflow.sdk.log.mask_secret",  # "Masking sensitive data"
    "airflow.sdk.types.TaskInstanceKey",
    "airflow.triggers.base.BaseTrigger",  # "Deferrable Operators & Triggers"
    "airflow.triggers.base.TriggerEvent",
}
PLANTED = [
    "import airflow.models",
    "from airflow import models",
    "from airflow.models import Variable",
    "def f():\n    from airflow.utils.session import create_session",
    "from airflow.sdk.definitions._internal.contextmanager import DagContext",
    "from airflow.sdk.execution_time.comms import GetVariable",
    "from airflow.sdk.execution_time import task_runner",
    "from airflow.sdk.bases.decorator import KeywordParameters",
    "from airflow.cli.cli_config import Arg",
    "from airflow.api_fastapi.app import get_auth_manager",
    "from airflow.secrets.metastore import MetastoreBackend",
    "from airflow.configuration import conf",
]
BEYOND_RUFF = [
    "from airflow.sdk._shared.secrets_masker import redact",
    "from airflow.sdk.api.client import Client",
    "from airflow.executors.local_executor import LocalExecutor",
    "import importlib\nimportlib.import_module('airflow.models.variable')",
    "import sys\nsys.modules['airflow.sdk.execution_time.task_runner']",
]


def internals(source: str) -> Iterator[str]:
    """Airflow's names in a source that are not public: imported, or spelt in a text."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("airflow."):
            names = [node.value] if all(part.isidentifier() for part in node.value.split(".")) else []
        yield from (name for name in names if name.split(".")[0] == "airflow" and not _is_public(name))


def _is_public(name: str) -> bool:
    module = name.rpartition(".")[0]
    return name in PUBLIC | PUBLIC_NAMES or module in PUBLIC or module.startswith("airflow.providers.")


@pytest.mark.parametrize("name", [*airflow_compat.INTERNALS, "supervisor", "is_test_run"])
def test_every_name_is_there(name: str) -> None:
    assert getattr(airflow_compat, name) is not None


def test_the_types_of_all_names_are_declared() -> None:
    tree = ast.parse(COMPAT.read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    declared = {a.asname for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names} - {None}
    assert declared | {"ServerVariable"} == set(airflow_compat.INTERNALS)


def test_another_name_is_no_internal() -> None:
    with pytest.raises(AttributeError, match="no attribute 'task_runner'"):
        _ = airflow_compat.task_runner


@pytest.mark.parametrize("folder", ["airflow_provider_zeus", "dags", "demo"])
def test_no_other_file_uses_them(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if path.resolve() != COMPAT]
    assert files
    found = {str(path.relative_to(ROOT)): list(internals(path.read_text())) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("source", PLANTED + BEYOND_RUFF)
def test_a_planted_one_is_found(source: str) -> None:
    assert list(internals(source))


@pytest.fixture(scope="module")
def ruff() -> Path:
    found = Path(sys.executable).with_name("ruff")
    if not found.exists():
        pytest.skip("ruff is not installed here")
    return found


@pytest.mark.parametrize("source", PLANTED)
def test_ruff_refuses_a_planted_one(ruff: Path, source: str) -> None:
    assert "TID251" in _said_of(ruff, source, "store/planted.py")
    assert "TID251" not in _said_of(ruff, source, "airflow_compat.py")


def _said_of(ruff: Path, source: str, name: str) -> str:
    command = [ruff, "check", "--no-cache", "--select", "TID251", "--output-format", "concise"]
    command += ["--stdin-filename", f"airflow_provider_zeus/{name}", "-"]
    return subprocess.run(command, input=source + "\n", capture_output=True, text=True, cwd=ROOT, check=False).stdout
