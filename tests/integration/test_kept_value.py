"""What has succeeded stays so, in each way of running: nothing is called after the kept value, a failing size never
costs the run its model, an empty slice is no run that cost nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zeus.operators.external_meter import ExternalMeter
from airflow_provider_zeus.operators.trial import ZeusTrial
from tests.integration.jobs import job, log_of, loop, of_script

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
EPOCHS = {16: 3, 32: 4, 64: 5}

SCRIPT = """
import os, signal, sys
from airflow_provider_zeus.training.run import ZeusRun
run = ZeusRun.from_env()
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        if run.batch_size == 16:
            {fails}
        run.report(accuracy=0.9 * (epoch + 1) / 4)
    return run.batch_size
"""
IN_ONE_PROCESS = SCRIPT + "print('kept', run.train(train))\n"
BY_LOOP_ALONE = SCRIPT + "print('kept', train(run))\n"
UNAWARE = 'import os\nassert os.environ["ZEUS_BATCH_SIZE"] != "16"\nprint(\'{"accuracy": 0.95, "epochs": 4}\')\n'
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
RAISES = 'raise ValueError("16 does not divide the data")'
REPORTS_NAN = 'run.report(accuracy=float("nan"))'


def states(dag_id: str) -> list[tuple[int, str, int]]:
    return [(t.batch_size, t.state.value, t.key.attempt) for t in log_of(f"{dag_id}.train")]


def of_function(dag_id: str, body: Callable[[Any], Any], **spec: Any) -> DAG:
    with DAG(dag_id, schedule=None, start_date=START) as dag:

        @task.zeus(job(**spec))
        def train(run):
            return body(run)

        train()
    return dag


def value_of(dag_run: Any, task_id: str = "train") -> Any:
    return dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id)


@pytest.mark.parametrize("how", ["raises", pytest.param("nan", marks=pytest.mark.slow)])
def test_a_function_whose_try_fails_keeps_the_incumbents_model(run_dag: Any, how: str) -> None:
    def train(run: Any) -> str:
        for epoch in run.epochs():
            run.step()
            if run.batch_size == 16 and how == "raises":
                raise ValueError("16 does not divide the data")
            run.report(accuracy=float("nan") if run.batch_size == 16 else 0.9 * (epoch + 1) / 4)
        return f"model-{run.batch_size}"

    dag = of_function(name := f"zeus_try_{how}", train)
    runs = [run_dag(dag), run_dag(dag)]
    assert [run.state for run in runs] == ["success", "success"]
    assert value_of(runs[1]) == "model-32"
    assert states(name) == [(32, "converged", 1), (16, "failed", 1), (32, "converged", 2)]


def test_a_try_that_skips_the_task_skips_it(run_dag: Any) -> None:
    def train(run: Any) -> int:
        loop(run, EPOCHS[run.batch_size])
        if run.batch_size == 16:
            raise AirflowSkipException("no data today")
        return run.batch_size

    dag = of_function("zeus_try_skips", train)
    run_dag(dag)
    assert run_dag(dag).get_task_instance("train").state == "skipped"
    assert states("zeus_try_skips") == [(32, "converged", 1), (16, "failed", 1)]


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        pytest.param(RAISES, BY_LOOP_ALONE, id="raises-epochs() alone"),
        pytest.param(KILLED, IN_ONE_PROCESS, id="killed"),
        pytest.param(RAISES, IN_ONE_PROCESS, id="raises-train(fn)", marks=pytest.mark.slow),
        pytest.param(
            REPORTS_NAN, BY_LOOP_ALONE, id="nan-epochs() alone", marks=pytest.mark.nightly
        ),
    ],
)
@pytest.mark.slow
def test_a_script_whose_try_fails_is_followed_by_the_incumbent(
    run_dag: Any, tmp_path: Path, code: str, fails: str
) -> None:
    name = f"zeus_script_{'one' if code is IN_ONE_PROCESS else 'loop'}_{[RAISES, REPORTS_NAN, KILLED].index(fails)}"
    dag = of_script(name, tmp_path, code.format(fails=fails), job())
    runs = [run_dag(dag), run_dag(dag)]
    assert [run.state for run in runs] == ["success", "success"]
    assert value_of(runs[1]) == "kept 32"
    assert states(name) == [(32, "converged", 1), (16, "failed", 1), (32, "converged", 2)]


def test_a_script_that_knows_nothing_of_us_is_started_again_with_the_incumbent(
    run_dag: Any, tmp_path: Path
) -> None:
    dag = of_script("zeus_unaware", tmp_path, UNAWARE, job(device="none", eta=0.0))
    assert [run_dag(dag).state for _ in range(2)] == ["success", "success"]
    assert states("zeus_unaware") == [(32, "converged", 1), (16, "failed", 1), (32, "converged", 2)]


@pytest.mark.slow
def test_a_try_that_ends_well_without_its_result_is_not_started_again(
    run_dag: Any, tmp_path: Path
) -> None:
    """It may have saved its model: the incumbent's would overwrite it."""
    leaves = "print('saved', run.batch_size, flush=True); os._exit(0)"
    dag = of_script("zeus_no_result", tmp_path, IN_ONE_PROCESS.format(fails=leaves), job())
    assert [run_dag(dag).state for _ in range(2)] == ["success", "success"]
    assert states("zeus_no_result") == [(32, "converged", 1), (16, "failed", 1)]


def test_a_device_that_fails_costs_no_command_its_value(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("GPU is lost")

    dag = of_script("zeus_lost_device", tmp_path, UNAWARE, job(device="none", eta=0.0))
    monkeypatch.setattr(ExternalMeter, "observation", lost)
    monkeypatch.setattr(ExternalMeter, "point", lost)
    assert run_dag(dag).state == "success"
    assert states("zeus_lost_device") == [(32, "converged", 1)]


@pytest.mark.nightly
def test_a_strict_job_fails_with_its_try(run_dag: Any, tmp_path: Path) -> None:
    dag = of_script(
        "zeus_strict_script", tmp_path, IN_ONE_PROCESS.format(fails=RAISES), job(strict=True)
    )
    assert [run_dag(dag).state for _ in range(2)] == ["success", "failed"]
    assert states("zeus_strict_script") == [(32, "converged", 1), (16, "failed", 1)]


@pytest.mark.parametrize("aware", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_a_pod_that_dies_in_its_try_is_retried_with_the_default_alone(
    run_dag: Any, tmp_path: Path, aware: bool
) -> None:
    code = IN_ONE_PROCESS.format(fails=KILLED) if aware else UNAWARE
    (tmp_path / "train.py").write_text(code)
    name = f"zeus_pod_retry_{'aware' if aware else 'unaware'}"
    with (
        DAG(name, schedule=None, start_date=START) as dag,
        ZeusTrial(job(), result_path=str(tmp_path / "zeus")) as trial,
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
    assert [run_dag(dag).state for _ in range(2)] == ["success", "success"]
    if aware:
        assert states(name) == [(32, "converged", 1), (16, "failed", 1), (32, "converged", 2)]


@pytest.mark.slow
def test_what_runs_before_the_kept_value_never_runs_after_it(run_dag: Any, tmp_path: Path) -> None:
    """A function that clears its folder when it begins, and saves in ``finally``: what is there is the kept model."""
    out = tmp_path / "out"
    calls = []

    def train(run: Any) -> str:
        out.mkdir(exist_ok=True)
        for old in out.iterdir():
            old.unlink()
        calls.append(run.batch_size)
        try:
            loop(run, EPOCHS[run.batch_size])
        finally:
            (out / "model").write_text(str(run.batch_size))
        return f"model {run.batch_size}"

    dag = of_function("zeus_saves_in_finally", train, policy="knowledge_gradient", max_epochs=200)
    for _ in range(6):
        calls.clear()
        dag_run = run_dag(dag)
        assert f"model {(out / 'model').read_text()}" == value_of(dag_run) == f"model {calls[-1]}"
    sizes = {t.batch_size for t in log_of("zeus_saves_in_finally.train")}
    assert len(sizes) > 1, "other sizes were tried"


def test_files_of_the_kept_attempt_stay_where_the_task_returned_them(run_dag: Any) -> None:
    def train(run: Any) -> str:
        path = run.attempt_dir / "model"
        path.write_text(str(run.batch_size))
        for epoch in run.epochs():
            run.step()
            run.report(accuracy=0.0 if run.batch_size == 16 else 0.9 * (epoch + 1) / 4)
        return str(path)

    dag = of_function("zeus_attempt_dir", train)
    kept = [Path(value_of(run_dag(dag))) for _ in range(2)]
    assert [path.read_text() for path in kept] == ["32", "32"]
    assert states("zeus_attempt_dir")[1][:2] == (16, "given_up")


@pytest.mark.nightly
def test_an_empty_slice_keeps_the_tasks_value_and_teaches_nothing(run_dag: Any) -> None:
    def train(run: Any) -> str:
        data = [1.0] * 512 if len(log_of("zeus_no_data.train")) == 1 else []
        for _ in run.epochs():
            for _ in run.data_loader(data):
                pass
            run.report(accuracy=0.95)
        return "yesterday's" if not data else "new"

    dag = of_function("zeus_no_data", train, policy="knowledge_gradient")
    runs = [run_dag(dag) for _ in range(3)]
    assert [value_of(run) for run in runs] == ["new", "yesterday's", "yesterday's"]
    assert [run.state for run in runs] == ["success"] * 3
    trials = log_of("zeus_no_data.train")
    assert [t.state.value for t in trials] == ["converged", "no_data", "no_data"]
    assert trials[1].decision.attempts[0].batch_size == trials[2].decision.attempts[0].batch_size
