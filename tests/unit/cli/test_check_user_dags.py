"""``airflow zeus check`` finds each of twenty usual mistakes, and nothing in fifteen DAGs that are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from airflow_provider_zeus.cli.finding import Finding
from tests.unit.cli.conftest import Zeus
from tests.unit.cli.user_dags import MISTAKES, Mistake

EACH = [
    pytest.param(each, id=f"{kind}-{i}", marks=[pytest.mark.slow] if i else [])
    for kind, found in MISTAKES.items()
    for i, each in enumerate(found)
]


@pytest.fixture(scope="module", autouse=True)
def _torch_is_loaded() -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


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
