"""``[zeus] enabled``: everything trains as if Zeus were not there, measured or not, in every entry."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.switch import enabled
from tests.integration.jobs import SCRIPT, job, log_of, saves_of, zeus_dag

ROOT = Path(__file__).parents[2]
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda text: monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", text)


def dags(tmp: Path, name: str) -> dict[str, DAG]:
    """A function, a command and any operator."""
    (tmp / "train.py").write_text(SCRIPT)
    own = {
        "PYTHONPATH": str(ROOT),
        "ZEUS_XCOM": str(tmp / "return.json"),
        "ZEUS_STATE_DIR": str(tmp),
    }
    with DAG(f"{name}_command", schedule=None, start_date=START) as command:
        ZeusCommandOperator(
            task_id="train", job=job(), command=[sys.executable, "train.py"], env=own, cwd=str(tmp)
        )
    with (
        DAG(f"{name}_trial", schedule=None, start_date=START) as any_operator,
        ZeusTrial(job()) as trial,
    ):
        BashOperator(
            task_id="train",
            bash_command=f"{sys.executable} train.py && cat $ZEUS_XCOM",
            env=trial.env | own | {"PATH": "/usr/bin:/bin"},
            append_env=False,
            cwd=str(tmp),
        )
    return {
        "function": zeus_dag(f"{name}_function", job()),
        "command": command,
        "any operator": any_operator,
    }


def test_off_every_entry_trains_its_default_and_leaves_no_trace(
    run_dag: Any,
    tmp_path: Path,
    switched: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even a store that is away is asked."""
    switched("False")
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "zeus://nobody@127.0.0.1:1/away")
    caplog.set_level(logging.INFO, "airflow_provider_zeus")
    for dag in dags(tmp_path, "zeus_switched_off").values():
        caplog.clear()
        assert run_dag(dag).state == "success"
        assert (
            caplog.text.count(
                "Zeus is switched off ([zeus] enabled = False): batch size 32, the default"
            )
            == 1
        )
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING], caplog.text
    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_DEFAULT")
    assert not [job_id for job_id in open_store().jobs() if job_id.startswith("zeus_switched_off")]


def test_off_no_tracker_is_spoken_with(switched: Any) -> None:
    for text, log_to in (("True", ("mlflow",)), ("measure", ("mlflow",)), ("False", ())):
        switched(text)
        assert tuple(ZeusConfig.read().switched(job(log_to=["mlflow"])).log_to) == log_to


@pytest.mark.slow
def test_measured_it_writes_what_the_default_costs_and_tries_nothing(
    run_dag: Any, tmp_path: Path, switched: Any
) -> None:
    switched("measure")
    for name, dag in dags(tmp_path, "zeus_measured").items():
        assert [run_dag(dag).state for _ in range(3)] == ["success"] * 3
        trials = log_of(f"{dag.dag_id}.train")
        assert [(t.batch_size, t.planned.phase.value) for t in trials] == [(32, "pinned")] * 3, name
        assert all(
            t.planned.why == "Batch size 32 is pinned by [zeus] enabled = measure." for t in trials
        )
        assert all(t.observation.energy_j for t in trials)
        assert all(t.observation.power_limit_w in (None, 250.0) for t in trials), "no limit is set"


def test_on_again_it_learns_as_before(run_dag: Any, switched: Any) -> None:
    dag = zeus_dag("zeus_on_again", job())
    run = run_dag(dag)
    switched("False")
    off = run_dag(dag)
    switched("True")
    again = run_dag(dag)
    assert [saves_of(r.run_id) for r in (run, off, again)] == [[32]] * 3
    assert [t.batch_size for t in log_of("zeus_on_again.train")] == [32, 16, 32], (
        "the run while it was off is not there"
    )


@pytest.mark.parametrize(
    ("text", "found"), [("yes", "True"), ("0", "False"), ("Measure", "measure")]
)
def test_what_may_be_written(switched: Any, text: str, found: str) -> None:
    switched(text)
    assert enabled() == found


def test_another_text_is_named(switched: Any) -> None:
    switched("maybe")
    with pytest.raises(JobSpecError, match="use True, measure or False"):
        enabled()
