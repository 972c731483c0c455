"""Airflow's internals are used in one file, and each of them is there on the installed version."""

from __future__ import annotations

import ast
import re
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
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("airflow.")
        ):
            names = (
                [node.value] if all(part.isidentifier() for part in node.value.split(".")) else []
            )
        yield from (
            name for name in names if name.split(".")[0] == "airflow" and not _is_public(name)
        )


def _is_public(name: str) -> bool:
    module = name.rpartition(".")[0]
    return (
        name in PUBLIC | PUBLIC_NAMES or module in PUBLIC or module.startswith("airflow.providers.")
    )


def test_every_name_is_there() -> None:
    names = [*airflow_compat.INTERNALS, "supervisor", "is_test_run"]
    assert [name for name in names if getattr(airflow_compat, name, None) is None] == []


def test_the_types_of_all_names_are_declared() -> None:
    tree = ast.parse(COMPAT.read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    declared = {
        a.asname for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names
    } - {None}
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


def test_each_planted_one_is_found() -> None:
    assert [source for source in PLANTED + BEYOND_RUFF if not list(internals(source))] == []


def test_ruff_refuses_each_planted_one() -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed here")
    lines = "\n".join(PLANTED).split("\n")
    imports = {number for number, line in enumerate(lines, 1) if "airflow" in line}
    assert len(imports) == len(PLANTED)
    assert _refused_by(ruff, lines, "store/planted.py") == imports
    assert _refused_by(ruff, lines, "airflow_compat.py") == set()


def _refused_by(ruff: Path, lines: list[str], name: str) -> set[int]:
    """Numbers of the lines that ruff refuses in a file of the package."""
    command = [ruff, "check", "--no-cache", "--select", "TID251", "--output-format", "concise"]
    command += ["--stdin-filename", f"airflow_provider_zeus/{name}", "-"]
    source = "\n".join(lines) + "\n"
    said = subprocess.run(
        command, input=source, capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout
    return {int(number) for number in re.findall(r":(\d+):\d+: TID251", said)}
