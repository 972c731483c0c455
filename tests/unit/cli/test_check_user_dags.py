"""``airflow zeus check`` finds each usual mistake, and nothing in DAGs that are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk import Context

from airflow_provider_zeus.cli.finding import Finding
from tests.unit.cli.conftest import Zeus
from tests.unit.cli.user_dags import BY_COMMAND, MISTAKES, RIGHT, SCRIPT, Mistake

NO_PARTITIONS = "partition_key" not in Context.__annotations__
FROM_3_3 = "a task gets partition_key from Airflow 3.3 on"


def marks_of(kind: str, number: int) -> list[pytest.MarkDecorator]:
    """The first mistake of each kind is tried quickly;
    those of partitions where Airflow has them.
    """
    marks = [pytest.mark.slow] if number else []
    if NO_PARTITIONS and "partition" in kind:
        marks.append(pytest.mark.skip(reason=FROM_3_3))
    return marks


EACH = [
    pytest.param(each, id=f"{kind}-{i}", marks=marks_of(kind, i))
    for kind, found in MISTAKES.items()
    for i, each in enumerate(found)
]


def found_in(zeus: Zeus, path: Path, dag_id: str = "nightly") -> list[Finding]:
    done = zeus("check", dag_id, "--file", str(path), "--json")
    return [Finding(**f) for f in json.loads(done.out)]


@pytest.mark.parametrize("mistake", EACH)
def test_a_usual_mistake(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    path = home / "nightly.py"
    path.write_text(mistake.text)
    found = {f.check.removeprefix("train: "): f for f in found_in(zeus, path)}
    accused = {name: f for name, f in found.items() if f.status in ("warning", "error")}
    assert accused.keys() == {mistake.check}, accused
    finding = accused[mistake.check]
    assert finding.status == mistake.status
    assert mistake.words in f"{finding.finding} -> {finding.remedy}"
    assert finding.remedy


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_dag(zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    monkeypatch.setenv("AIRFLOW_VAR_ZEUS_JOB", '{"target": "accuracy >= 0.9"}')
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_CARBON", "zeus-signal://")
    monkeypatch.setenv("AIRFLOW_CONN_GRID", "zeus-signal://")
    (home / "script.py").write_text(SCRIPT)
    (home / "by_command.py").write_text(BY_COMMAND)
    if name.startswith("partitions") and NO_PARTITIONS:
        pytest.skip(FROM_3_3)
    (home / "nightly.py").write_text(RIGHT[name])
    found = found_in(zeus, home / "nightly.py")
    assert [f for f in found if f.status in ("warning", "error")] == []
    assert [f for f in found if f.status == "ok" and f.check.endswith("job")]
    undecided = [f.check for f in found if f.status == "undecided"]
    assert undecided == (["train: context"] if name == "values of another task" else [])
