"""``airflow zeus check`` finds each of twenty usual mistakes, and nothing in fifteen DAGs that are right."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from airflow.sdk import Context

from airflow_provider_zeus.cli.finding import Finding
from tests.unit.cli.conftest import Zeus
from tests.unit.cli.user_dags import BY_COMMAND, MISTAKES, RIGHT, SCRIPT, Mistake

EACH = [
    pytest.param(each, id=f"{kind}-{i}", marks=[pytest.mark.slow] if i else [])
    for kind, found in MISTAKES.items()
    for i, each in enumerate(found)
]


@pytest.fixture(scope="module", autouse=True)
def _torch_is_loaded() -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.fixture(autouse=True)
def _mlflow_stays() -> Iterator[None]:
    """Files that stand in for MLflow do so in their own test alone."""
    before = sys.modules.get("mlflow")
    yield
    sys.modules.pop("mlflow", None)
    if before is not None:
        sys.modules["mlflow"] = before


def found_in(zeus: Zeus, path: Path, dag_id: str = "nightly") -> list[Finding]:
    done = zeus("check", dag_id, "--file", str(path), "--json")
    return [Finding(**f) for f in json.loads(done.out)]


@pytest.mark.parametrize("mistake", EACH)
def test_a_usual_mistake(zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    path = home / "nightly.py"
    path.write_text(mistake.text)
    found = {f.check.removeprefix("train: "): f for f in found_in(zeus, path)}
    accused = {name: f for name, f in found.items() if f.status in ("warning", "error")}
    assert accused.keys() == {mistake.check, *(["training"] if mistake.ends else [])}, accused
    finding = accused[mistake.check]
    assert finding.status == mistake.status
    assert mistake.words in f"{finding.finding} -> {finding.remedy}"
    assert finding.remedy


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if i >= 15 or n == "commands" else []) for i, n in enumerate(RIGHT)],
)
def test_a_right_dag(zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    monkeypatch.setenv("AIRFLOW_VAR_ZEUS_JOB", '{"target": "accuracy >= 0.9"}')
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_CARBON", "zeus-signal://")
    monkeypatch.setenv("AIRFLOW_CONN_GRID", "zeus-signal://")
    (home / "script.py").write_text(SCRIPT)
    (home / "by_command.py").write_text(BY_COMMAND)
    if name.startswith("partitions") and "partition_key" not in Context.__annotations__:
        pytest.skip("a task gets partition_key from Airflow 3.3 on")
    (home / "nightly.py").write_text(RIGHT[name])
    found = found_in(zeus, home / "nightly.py")
    assert [f for f in found if f.status in ("warning", "error")] == []
    assert [f for f in found if f.status == "ok" and f.check.endswith("training")]
    assert not [f for f in found if f.status == "undecided" and f.check.endswith(": training")]
