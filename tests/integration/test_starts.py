"""Starts in real Airflow runs: a function with a torch model, and a command that reads ``ZEUS_START``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus.model.trial import WHY_COLD
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from tests.integration.jobs import job, log_of, loop

START = datetime(2026, 1, 1, tzinfo=UTC)
STARTS = ["cold", "warm"]
DEAF = """echo '{"accuracy": 0.95, "epochs": 4, "samples": 20000}'"""
HEARS = """echo "{\\"accuracy\\": 0.95, \\"epochs\\": 4, \\"samples\\": 20000, \\"start\\": \\"$ZEUS_START\\"}" """


def test_a_function_starts_from_what_the_run_before_returned(run_dag: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    seen: list[tuple[str, bool]] = []
    with DAG("zeus_starts", schedule=None, start_date=START) as dag:

        @task.zeus(job(starts=STARTS, policy="knowledge_gradient", batch_sizes=[32], default_batch_size=32))
        def train(run, run_id=None):
            model = torch.nn.Linear(2, 1)
            state = torch.load(run.previous) if run.previous is not None else None
            taken = run.start(model, state)
            seen.append((taken, state is not None and torch.equal(model.weight, state["weight"])))
            loop(run, 8 if taken == "cold" else 2)
            path = tmp_path / f"{len(seen)}.pt"
            torch.save(model.state_dict(), path)
            return str(path)

        train()
    assert [run_dag(dag).state for _ in range(4)] == ["success"] * 4
    kept = [t for t in log_of("zeus_starts.train") if t.state.kept_model]
    assert (kept[0].observation.start, kept[0].lineage.from_ti_id) == ("cold", None)
    assert kept[-1].observation.start == "warm"
    assert kept[-1].lineage.from_ti_id == kept[-2].key.ti_id
    assert kept[-1].generations == kept[-2].generations + 1
    assert all(loaded == (taken == "warm") for taken, loaded in seen)


def test_a_command_gets_its_start(run_dag: Any) -> None:
    for name, command, why in (("hears", HEARS, ""), ("deaf", DEAF, "not seen to be used: read it from ZEUS_START")):
        with DAG(f"zeus_starts_{name}", schedule=None, start_date=START) as dag:
            ZeusCommandOperator(task_id="train", job=job(starts=STARTS, policy="knowledge_gradient"), command=command)
        assert run_dag(dag).state == "success"
        (trial,) = log_of(f"zeus_starts_{name}.train")
        assert trial.observation.start == "cold"
        said = trial.observation.reasons.get(WHY_COLD, "")
        assert why in said if why else not said
