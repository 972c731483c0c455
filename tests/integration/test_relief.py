"""The best known size begins to fail: no run loses its model, in each way of running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from tests.integration.jobs import job, log_of, of_script

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
EPOCHS = {32: 8, 64: 2}
GOOD_RUNS = 5
RUNS = 15
POLICIES = pytest.mark.parametrize("policy", ["zeus", "knowledge_gradient"])

SCRIPT = """
import os, signal, sys
from pathlib import Path
from airflow_provider_zeus.training.run import ZeusRun
run = ZeusRun.from_env()
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        if run.batch_size == 64 and Path("broken").exists():
            FAILS
        run.report(accuracy=0.9 * (epoch + 1) / {32: 8, 64: 2}[run.batch_size])
    return run.batch_size
print("kept", TRAIN)
"""
IN_ONE_PROCESS = SCRIPT.replace("TRAIN", "run.train(train)")
BY_LOOP_ALONE = SCRIPT.replace("TRAIN", "train(run)")
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
RAISES = 'raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")'
UNAWARE = """
import os, sys
from pathlib import Path
size = int(os.environ["ZEUS_BATCH_SIZE"])
if size == 64 and Path("broken").exists():
    sys.exit(3)
print('{"accuracy": 0.95, "epochs": %d}' % {32: 8, 64: 2}[size])
"""


def spec(policy: str = "zeus", **changes: Any) -> Any:
    return job(batch_sizes=[32, 64], policy=policy, audit=0.0, **changes)


def check(trials: list[Trial], good: int) -> None:
    """All runs kept a model, and the size that fails was tried a few times only."""
    by_run: dict[str, list[Trial]] = {}
    for trial in trials:
        by_run.setdefault(trial.origin.run_id, []).append(trial)
    assert len(by_run) == good + RUNS
    assert all(run[-1].state.kept_model for run in by_run.values())
    failed = [trial for trial in trials if trial.state is State.FAILED]
    assert {trial.batch_size for trial in failed} == {64}
    assert 2 <= len(failed) <= 4
    assert all(len(run) <= 2 for run in by_run.values())


def play(run_dag: Callable[..., Any], dag: DAG, folder: Path) -> None:
    for _ in range(GOOD_RUNS):
        assert run_dag(dag).state == "success"
    assert log_of(f"{dag.dag_id}.train")[-1].batch_size == 64, "it is the best known one"
    (folder / "broken").touch()
    assert [run_dag(dag).state for _ in range(RUNS)] == ["success"] * RUNS
    check(log_of(f"{dag.dag_id}.train"), GOOD_RUNS)


@POLICIES
@pytest.mark.parametrize("how", ["raises", pytest.param("nan", marks=pytest.mark.slow)])
def test_fifteen_runs_of_a_function(run_dag: Any, tmp_path: Path, policy: str, how: str) -> None:
    with DAG(f"zeus_relief_{how}_{policy}", schedule=None, start_date=START) as dag:

        @task.zeus(spec(policy))
        def train(run):
            for epoch in run.epochs():
                for _ in range(5000 // run.batch_size):
                    run.step()
                broken = run.batch_size == 64 and (tmp_path / "broken").exists()
                if broken and how == "raises":
                    raise ValueError("Expected more than 1 value per channel when training")
                run.report(
                    accuracy=float("nan") if broken else 0.9 * (epoch + 1) / EPOCHS[run.batch_size]
                )
            return run.batch_size

        train()
    play(run_dag, dag, tmp_path)


@POLICIES
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("killed", IN_ONE_PROCESS.replace("FAILS", KILLED)),
        ("killed_loop", BY_LOOP_ALONE.replace("FAILS", KILLED)),
        ("raises_loop", BY_LOOP_ALONE.replace("FAILS", RAISES)),
        ("exits", IN_ONE_PROCESS.replace("FAILS", "sys.exit(3)")),
    ],
)
@pytest.mark.slow
def test_fifteen_runs_of_a_command(
    run_dag: Any, tmp_path: Path, policy: str, name: str, code: str
) -> None:
    play(
        run_dag,
        of_script(f"zeus_relief_{name}_{policy}", tmp_path, code, spec(policy=policy)),
        tmp_path,
    )


def test_fifteen_runs_of_a_command_that_knows_nothing_of_us(run_dag: Any, tmp_path: Path) -> None:
    dag = of_script("zeus_relief_unaware", tmp_path, UNAWARE, spec(device="none", eta=0.0))
    (tmp_path / "broken").touch()
    for _ in range(RUNS):
        assert run_dag(dag).state == "success"
    trials = log_of("zeus_relief_unaware.train")
    assert {t.batch_size for t in trials if t.state is State.FAILED} == {64}


@pytest.mark.parametrize(
    ("ends", "follows"), [("kill -TERM $$", False), ("kill -KILL $$", True), ("exit 3", True)]
)
def test_a_command_that_is_stopped_is_followed_by_nothing(
    run_dag: Any, ends: str, follows: bool
) -> None:
    name = f"zeus_relief_{'_'.join(ends.split()[:2]).replace('-', '')}"
    # so 64 is tried alone
    unreached = spec("knowledge_gradient", max_epochs=3, device="none", eta=0.0)
    says = """echo '{"accuracy": 0.5, "epochs": 3}'"""
    with DAG(name, schedule=None, start_date=START) as dag:
        command = f"[ $ZEUS_BATCH_SIZE = 64 ] && {ends}; {says}"
        ZeusCommandOperator(task_id="train", job=unreached, command=command)
    assert [run_dag(dag).state for _ in range(2)] == ["success", "success" if follows else "failed"]
    expected = [(32, "exhausted"), (64, "failed"), *([(32, "exhausted")] if follows else [])]
    assert [(t.batch_size, t.state.value) for t in log_of(f"{name}.train")] == expected


def test_an_error_outside_of_the_epochs_of_a_command_is_its_authors(
    run_dag: Any, tmp_path: Path
) -> None:
    begins = "    for epoch in run.epochs():"
    fails = "    if run.batch_size == 64 and Path('broken').exists(): raise OSError('no data')"
    code = BY_LOOP_ALONE.replace("FAILS", "pass").replace(begins, f"{fails}\n{begins}")
    dag = of_script("zeus_relief_authors", tmp_path, code, spec())
    for _ in range(GOOD_RUNS):
        assert run_dag(dag).state == "success"
    (tmp_path / "broken").touch()
    assert run_dag(dag).state == "failed"
    failed = log_of("zeus_relief_authors.train")[-1]
    assert (failed.batch_size, failed.state) == (64, State.FAILED)


@pytest.mark.slow
def test_a_pod_that_dies_at_the_best_size_is_retried_with_the_default(
    run_dag: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(IN_ONE_PROCESS.replace("FAILS", KILLED))
    with (
        DAG("zeus_relief_pod", schedule=None, start_date=START) as dag,
        ZeusTrial(spec(), result_path=str(tmp_path / "zeus")) as trial,
    ):
        BashOperator(
            task_id="train",
            bash_command=f"{sys.executable} train.py",
            env=trial.env | {"PYTHONPATH": str(ROOT), "ZEUS_STATE_DIR": str(tmp_path)},
            append_env=True,
            cwd=str(tmp_path),
            retries=1,
            retry_delay=timedelta(0),
        )
    for _ in range(GOOD_RUNS):
        assert run_dag(dag).state == "success"
    (tmp_path / "broken").touch()
    before = len(log_of("zeus_relief_pod.train"))
    assert [run_dag(dag).state for _ in range(3)] == ["success"] * 3
    after = [(t.batch_size, t.state.value) for t in log_of("zeus_relief_pod.train")[before:]]
    assert after == [
        (64, "failed"),
        (32, "converged"),
        (64, "failed"),
        (32, "converged"),
        (32, "converged"),
    ]
