"""What a command that trains finds in its environment: of Airflow's settings,
Connections and Variables nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from tests.integration.conftest import run_dag  # noqa: F401
from tests.integration.jobs import job, log_of
from tests.security.users import ROOT

PLANTED = {
    "AIRFLOW__API_AUTH__JWT_SECRET": "jwt s3cr3t",
    "AIRFLOW_CONN_X": "postgresql://u:s3cr3t@h/d",
    "airflow_conn_y": "postgresql://u:s3cr3t@h/d",
    "AIRFLOW_VAR_X": "s3cr3t",
    "_AIRFLOW_X": "s3cr3t",
    "__AIRFLOW_SUPERVISOR_X": "s3cr3t",
}
OTHERS = {"NCCL_DEBUG": "INFO", "HF_HOME": "/hf", "AIRFLOW_CTX_X": "a task's"}
NEEDED = {"LD_LIBRARY_PATH": "/cuda/lib", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}

# Its own environment, and that of the process above it, which the same user may read.
TELLS = """
import json, os, sys
above = open(f"/proc/{os.getppid()}/environ", "rb").read().decode(errors="replace")
json.dump({"own": dict(os.environ), "above": above}, open(sys.argv[1], "w"))
"""
TRAINS = """
from airflow_provider_zeus import ZeusRun
run = ZeusRun.from_env()
for epoch in run.epochs():
    for _ in range(50):
        run.step()
    run.report(accuracy=0.95)
"""
Dag = Callable[..., Any]


def command_dag(dag_id: str, command: Any, **kwargs: Any) -> DAG:
    with DAG(
        dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"given": ""}
    ) as dag:
        ZeusCommandOperator(task_id="train", job=job(), command=command, **kwargs)
    return dag


@pytest.fixture
def seen(
    run_dag: Dag,  # noqa: F811  a fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., dict[str, str]]:
    """The environment of a command that an operator starts;
    the planted variables are in that of the worker.
    """
    for name, value in {**PLANTED, **OTHERS, **NEEDED}.items():
        monkeypatch.setenv(name, value)

    def seen(dag_id: str, **kwargs: Any) -> dict[str, str]:
        told = tmp_path / "told.json"
        dag = command_dag(dag_id, [sys.executable, "-c", TELLS, str(told)], **kwargs)
        assert run_dag(dag).state == "success"
        found = json.loads(told.read_text())
        assert ("s3cr3t" in found["above"]) == ("s3cr3t" in "".join(found["own"].values()))
        own: dict[str, str] = found["own"]
        return own

    return seen


def test_a_command_gets_all_but_what_is_airflows(seen: Callable[..., dict[str, str]]) -> None:
    found = seen("zeus_env_default")
    assert "s3cr3t" not in "".join(found.values())
    assert not any(
        name.upper().startswith(
            ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW", "__AIRFLOW")
        )
        for name in found
    )
    assert {**OTHERS, **NEEDED}.items() <= found.items()


def test_it_gets_all_where_the_dag_says_so(seen: Callable[..., dict[str, str]]) -> None:
    assert {**PLANTED, **OTHERS, **NEEDED}.items() <= seen("zeus_env_all", inherit_env=True).items()


def test_it_gets_next_to_nothing_where_the_dag_says_so(seen: Callable[..., dict[str, str]]) -> None:
    found = seen("zeus_env_none", inherit_env=False)
    assert NEEDED.items() <= found.items()
    assert not set(found) & {*PLANTED, *OTHERS}


@pytest.mark.parametrize("inherit_env", [None, False])
def test_what_the_dag_names_is_handed_on(
    seen: Callable[..., dict[str, str]], inherit_env: bool | None
) -> None:
    named = {"AIRFLOW_CONN_X": "named", "HF_HOME": "/other"}
    assert (
        named.items()
        <= seen(f"zeus_env_named_{inherit_env}", inherit_env=inherit_env, env=named).items()
    )


@pytest.mark.parametrize("inherit_env", [None, True, False])
def test_a_training_finds_its_plan_in_each_of_them(
    run_dag: Dag,  # noqa: F811
    tmp_path: Path,
    inherit_env: bool | None,
) -> None:
    dag_id = f"zeus_env_trains_{inherit_env}"
    environ = {"PYTHONPATH": str(ROOT)}
    dag = command_dag(
        dag_id,
        [sys.executable, "-c", TRAINS],
        inherit_env=inherit_env,
        env=environ,
        cwd=str(tmp_path),
    )
    assert run_dag(dag).state == "success"
    assert [trial.state.value for trial in log_of(f"{dag_id}.train")] == ["converged"]


def test_another_word_for_it_is_refused_at_parse() -> None:
    with pytest.raises(JobSpecError, match="inherit_env = 'no'"):
        command_dag("zeus_env_word", "true", inherit_env="no")


def test_what_a_user_gives_to_a_list_is_no_shell_text(run_dag: Dag, tmp_path: Path) -> None:  # noqa: F811
    made = tmp_path / "made"
    dag = command_dag("zeus_env_list", ["echo", "{{ params.given }}"])
    for given in (f"; touch {made}", f"$(touch {made})", f"`touch {made}`"):
        dag_run = run_dag(dag, run_conf={"given": given})
        assert dag_run.get_task_instance("train").xcom_pull(task_ids="train") == given
    assert not made.exists()
