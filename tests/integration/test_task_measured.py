"""``@task.zeus`` without a job: an unchanged function runs as with ``@task``, and what it takes is in the log."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, Metadata, setup, task, teardown
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob, ZeusTrainOperator
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import Phase, Trial
from airflow_provider_zeus.operators import asking, measured
from airflow_provider_zeus.power.nvml import library
from airflow_provider_zeus.training.torch_listener import LEAD_STEPS
from tests.fake_nvml import FakeNvml
from tests.fake_slurm import FakeSlurm
from tests.integration.jobs import log_of
from tests.unit.training.commands import waited_for

START = datetime(2026, 1, 1, tzinfo=UTC)


def value(dag_run: Any, task_id: str, key: str = "return_value") -> Any:
    pulled = dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)
    return json.loads(json.dumps(pulled, allow_nan=False))


def states(dag_run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()}


def ended(job_id: str) -> list[tuple[str, str | None]]:
    trials: list[Trial] = log_of(job_id)
    assert all(t.planned.phase is Phase.MEASURED and t.batch_size is None for t in trials)
    return [(t.state.value, t.reason) for t in trials]


def test_a_function_stays_as_it_is_whatever_its_parameters_are_called(run_dag: Any) -> None:
    with DAG("measured_plain", schedule=None, start_date=START) as dag:

        @task.zeus
        def bare(n: int, run: str = "mine", ds: str | None = None) -> list[Any]:
            return [n, run, ds is not None]

        @task.zeus()
        def called(batch_size: int) -> int:
            return 2 * batch_size

        @task.zeus(ZeusJob(mode="measure", eta=0.5))
        def with_job() -> None:
            return None

        bare(3)
        called(3)
        with_job()
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert value(dag_run, "bare") == [3, "mine", True]
    assert value(dag_run, "called") == 6
    for name in ("bare", "called", "with_job"):
        assert ended(f"measured_plain.{name}") == [("done", None)]
    cost = value(dag_run, "bare", "zeus_cost")
    decision = value(dag_run, "bare", "zeus_decision")
    assert (cost["batch_size"], decision["batch_size"], decision["phase"]) == (
        None,
        None,
        "measured",
    )
    assert cost["time_s"] > 0
    assert cost["attempts"][0]["kept"] is True


def test_operators_without_a_job_measure(run_dag: Any, tmp_path: Any) -> None:
    with DAG("measured_operators", schedule=None, start_date=START) as dag:
        ZeusTrainOperator(
            task_id="function", python_callable=lambda x, ds: [x, len(ds)], op_args=[1]
        )
        words = "import os; print('size', os.environ.get('ZEUS_BATCH_SIZE'))"
        ZeusCommandOperator(task_id="command", command=[sys.executable, "-c", words])
        ZeusCommandOperator(task_id="fails", command="echo about to fail; exit 3")
    dag_run = run_dag(dag)
    assert value(dag_run, "function") == [1, 10]
    assert value(dag_run, "command") == "size None"
    assert states(dag_run) == {"function": "success", "command": "success", "fails": "failed"}
    assert ended("measured_operators.command") == [("done", None)]
    ((state, reason),) = ended("measured_operators.fails")
    assert state == "failed"
    assert "about to fail" in str(reason)


@pytest.mark.slow
def test_skip_fail_retry_and_clear_work_as_with_a_plain_task(run_dag: Any, rerun_task: Any) -> None:
    tries: list[int] = []
    with DAG("measured_ends", schedule=None, start_date=START) as dag:

        @task.zeus
        def skips() -> None:
            raise AirflowSkipException("nothing to do")

        @task.zeus
        def fails() -> None:
            raise ValueError("disk full")

        @task.zeus(retries=1, retry_delay=timedelta(0))
        def retries() -> int:
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("once")
            return len(tries)

        @task.zeus
        def after(x: Any) -> None: ...

        after(skips())
        fails()
        retries()
    dag_run = run_dag(dag)
    assert states(dag_run) == {
        "skips": "skipped",
        "after": "skipped",
        "fails": "failed",
        "retries": "success",
    }
    assert ended("measured_ends.skips") == [("done", "the task skipped itself")]
    assert ended("measured_ends.fails") == [("failed", "ValueError: disk full")]
    assert ended("measured_ends.retries") == [("failed", "RuntimeError: once"), ("done", None)]
    assert value(dag_run, "retries") == 2
    rerun_task(dag, dag_run, "retries")
    assert [state for state, _ in ended("measured_ends.retries")] == ["failed", "done", "done"]


def test_multiple_outputs_override_expand_setup_and_teardown(run_dag: Any) -> None:
    done: list[str] = []
    with DAG("measured_forms", schedule=None, start_date=START) as dag:

        @task.zeus(multiple_outputs=True)
        def two() -> dict[str, int]:
            return {"a": 1, "b": 2}

        @task.zeus
        def plus(x: int, y: int = 0) -> int:
            return x + y

        @task.zeus
        def region(name: str) -> str:
            return name.upper()

        @setup
        @task.zeus
        def begin() -> None:
            done.append("setup")

        @teardown
        @task.zeus
        def end() -> None:
            done.append("teardown")

        both = two()
        plus.override(task_id="renamed", pool="default_pool")(both["a"], y=both["b"])
        region.expand(name=["fr", "de"])
        first = begin()
        last = end()
        first >> plus.override(task_id="between")(5) >> last
        first >> last
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert value(dag_run, "two", "b") == 2
    assert value(dag_run, "renamed") == 3
    assert done == ["setup", "teardown"]
    assert ended("measured_forms.region") == [("done", None)] * 2
    assert {t.origin.map_index for t in log_of("measured_forms.region")} == {0, 1}


def test_a_deferral_is_no_failure_and_goes_on(run_dag: Any) -> None:
    from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
    from airflow.sdk.exceptions import TaskDeferred

    class Defers(ZeusTrainOperator):
        def resumed(self, context: Any, event: Any = None) -> str:
            return "resumed"

    def waits() -> None:
        raise TaskDeferred(trigger=TimeDeltaTrigger(timedelta(0)), method_name="resumed")

    with DAG("measured_defers", schedule=None, start_date=START) as dag:
        Defers(task_id="waits", python_callable=waits)
    dag_run = run_dag(dag)
    assert value(dag_run, "waits") == "resumed"
    ((state, reason),) = ended("measured_defers.waits")
    assert (state, "deferred" in str(reason)) == ("done", True)


def test_a_coroutine_runs_and_a_forked_child_writes_nothing(run_dag: Any) -> None:
    with DAG("measured_other", schedule=None, start_date=START) as dag:

        @task.zeus
        def forks() -> str:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return "parent"

        ZeusTrainOperator(task_id="waits", python_callable=answer)
        forks()
    dag_run = run_dag(dag)
    assert value(dag_run, "forks") == "parent"
    assert value(dag_run, "waits") == 42
    assert ended("measured_other.forks") == [("done", None)]


@pytest.mark.slow
def test_a_time_limit_ends_it_with_airflows_own_error(run_dag: Any, tmp_path: Path) -> None:
    """Airflow's timer of a minute goes off once the task is at work, however busy the host is."""
    seen: list[str] = []
    told = {"on_failure_callback": lambda context: seen.append(type(context["exception"]).__name__)}
    limited = {"execution_timeout": timedelta(minutes=1), **told}
    sleeps = tmp_path / "sleeps"
    with DAG("measured_limit", schedule=None, start_date=START) as dag:

        @task.zeus(**limited)
        def waits() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            Event().wait(60.0)

        ZeusCommandOperator(task_id="sleeps", command=f"touch {sleeps}; sleep 600", **limited)
        waits()

    def ends_the_command() -> None:
        if waited_for(sleeps.exists):
            os.kill(os.getpid(), signal.SIGALRM)

    at_work = Thread(target=ends_the_command)
    at_work.start()
    assert states(run_dag(dag)) == {"waits": "failed", "sleeps": "failed"}
    at_work.join()
    assert seen == ["AirflowTaskTimeout"] * 2
    for name in ("waits", "sleeps"):
        ((state, reason),) = ended(f"measured_limit.{name}")
        assert (state, "AirflowTaskTimeout" in str(reason)) == ("failed", True)


def test_what_a_generator_yields_goes_to_its_outlets(run_dag: Any) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    written = Asset("measured_written")
    with DAG("measured_yields", schedule=None, start_date=START) as dag:

        @task.zeus(outlets=[written])
        def writes(rows: int) -> Any:
            yield Metadata(written, {"rows": rows})
            return "ready"

        @task.zeus(outlets=[written])
        async def writes_later() -> Any:
            yield Metadata(written, {"rows": 5})

        writes(3)
        writes_later()
    dag_run = run_dag(dag)
    assert value(dag_run, "writes") == "ready"
    with create_session() as session:
        events = (
            session.query(AssetEvent).filter(AssetEvent.source_dag_id == "measured_yields").all()
        )
        assert {e.source_task_id: e.extra["rows"] for e in events} == {
            "writes": 3,
            "writes_later": 5,
        }


@pytest.mark.parametrize("hangs", ["before", "within"])
def test_a_driver_that_hangs_holds_no_task(
    run_dag: Any, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    nvml.add()
    monkeypatch.setattr(library, "RETURNS_S", 0.2)
    with DAG(f"measured_hangs_{hangs}", schedule=None, start_date=START) as dag:

        @task.zeus
        def works() -> int:
            if hangs == "within":
                nvml.hang()
            return 1

        works()
    if hangs == "before":
        nvml.hang()
    assert value(run_dag(dag), "works") == 1
    (trial,) = log_of(f"measured_hangs_{hangs}.works")
    assert trial.state.value == "done"
    assert trial.observation.energy_j is None
    assert trial.observation.time_s
    assert "gave no answer for 0.2 s" in trial.observation.reasons["energy_j"]
    assert sum(calls == 1 for calls in nvml.calls().values()) >= (hangs == "before")


def test_a_slurm_job_needs_no_shared_folder_and_nothing_of_it_is_measured_here(
    run_dag: Any, tmp_path: Path
) -> None:
    slurm = FakeSlurm(tmp_path)
    try:
        with DAG("measured_slurm", schedule=None, start_date=START) as dag:
            command = [str(slurm.bin / "sbatch"), "--wrap", "echo trained"]
            ZeusCommandOperator(task_id="train", command=command, cwd=str(slurm.shared))
        assert states(run_dag(dag)) == {"train": "success"}
    finally:
        slurm.stop()
    (trial,) = log_of("measured_slurm.train")
    assert trial.observation.energy_j is None
    assert "another host" in trial.observation.reasons["energy_j"]
    assert trial.observation.time_s


async def answer() -> int:
    return 42


def test_without_a_store_the_task_runs_and_its_cost_is_kept(
    run_dag: Any,
    asks_briefly: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise asking.StoreError("the database is gone")

    with DAG("measured_alone", schedule=None, start_date=START) as dag:

        @task.zeus
        def works() -> str:
            return "kept"

        works()
    with monkeypatch.context() as patch:
        patch.setattr(asking, "open_store", away)
        dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert value(dag_run, "works") == "kept"
    assert "This run begins all the same" in caplog.text
    run_dag(dag)
    assert ended("measured_alone.works") == [("done", None)] * 2, (
        "the next run stores what the first one kept"
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mode": "off"}, "batch_sizes"),
        ({"finish_by": "06:00"}, "finish_by"),
        ({"require_target": True}, "require_target"),
        ({"target": "accuracy >= 0.9"}, "batch_sizes, default_batch_size, max_epochs"),
        ({"batch_sizes": [16], "default_batch_size": 16}, "target, max_epochs"),
    ],
)
def test_half_a_job_is_refused_with_the_remedy(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(JobSpecError, match=f"ZeusJob.{field} = "):
        ZeusJob(**{"mode": "measure", **changes})


def test_a_job_that_names_sizes_later_keeps_its_id_and_learns_from_then_on(run_dag: Any) -> None:
    from tests.integration.jobs import job, loop

    with DAG("measured_climbs", schedule=None, start_date=START) as dag:

        @task.zeus
        def train() -> None: ...

        train()
    run_dag(dag)
    with DAG("measured_climbs", schedule=None, start_date=START) as climbed:

        @task.zeus(job())
        def train(run: Any) -> int:
            loop(run, 4)
            return int(run.batch_size)

        train()
    dag_run = run_dag(climbed)
    assert dag_run.state == "success"
    first, second = log_of("measured_climbs.train")
    assert (first.batch_size, second.batch_size) == (None, 32)
    assert second.planned.phase is Phase.EXPLORE


TORCH = """
import torch
from airflow_provider_zeus import ZeusRun

with ZeusRun.from_env():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(600):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print("trained")
"""
OTHER = """
import os
from airflow_provider_zeus import ZeusRun

run = ZeusRun.from_env()
for _ in range(600):
    run.step()
"""
SCRIPTS = {
    "tuned": TORCH,
    "told": OTHER,
    "killed": OTHER + "os.kill(os.getpid(), 9)",
    "unchanged": "",
    "measured": OTHER,
}
BY_LIMIT = ZeusJob(
    device="simulated:v100/shufflenet", eta=1.0, power_limits_w=[250.0, 175.0, 100.0], profile_s=0.5
)


@pytest.mark.slow
def test_a_script_tunes_its_limit_by_one_line_around_its_loop(
    run_dag: Any, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level("INFO")
    with DAG("measured_scripts", schedule=None, start_date=START) as dag:
        for name, text in SCRIPTS.items():
            (path := tmp_path / f"{name}.py").write_text(text)
            job = None if name == "measured" else BY_LIMIT
            ZeusCommandOperator(task_id=name, job=job, command=[sys.executable, str(path)])
    dag_run = run_dag(dag)
    assert states(dag_run) == {
        name: "failed" if name == "killed" else "success" for name in SCRIPTS
    }
    assert value(dag_run, "tuned") == "trained"
    for name in ("tuned", "told"):
        (trial,) = log_of(f"measured_scripts.{name}")
        seen = trial.observation
        assert (seen.samples, seen.power_limit_w, seen.limit_found_w) == (
            600 - LEAD_STEPS,
            100.0,
            250.0,
        )
        assert seen.energy_j
        assert seen.excess_j is not None
    (killed,) = log_of("measured_scripts.killed")
    assert (killed.state.value, killed.batch_size) == ("failed", None)
    assert "reported optimizer steps" in caplog.text
    for name in ("unchanged", "measured"):
        (trial,) = log_of(f"measured_scripts.{name}")
        assert (trial.state.value, trial.observation.samples) == ("done", None)


def test_the_authors_threads_and_signal_handlers_stay_as_they_were(run_dag: Any) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    others = set(threading.enumerate())  # of a test before, whose store or device still hangs
    before = {number: signal.getsignal(number) for number in numbers}
    ended = Event()
    hook = threading.excepthook

    def handler(*_: Any) -> None: ...

    def works() -> list[str]:
        """What of these a task sees; it starts a thread and sets a handler, and leaves both."""
        seen = [getattr(signal.getsignal(number), "__qualname__", "default") for number in numbers]
        Thread(target=ended.wait, name="authors", daemon=True).start()
        signal.signal(signal.SIGUSR1, handler)
        return [*seen, str(threading.excepthook is hook)]

    with DAG("measured_signals", schedule=None, start_date=START) as dag:
        plain = task(works).override(task_id="plain")()
        plain >> task.zeus(mode="optimize")(works).override(task_id="measured")()
    try:
        dag_run = run_dag(dag)
        first = value(dag_run, "plain")
        again = value(dag_run, "measured")
        assert first[:2] == again[:2], "as with @task"
        assert (again[2].split(".")[-1], again[3]) == ("handler", "True"), (
            "what the task before it left"
        )
        assert signal.getsignal(signal.SIGUSR1) is handler
        left = set(threading.enumerate()) - others
        assert [thread.name for thread in left].count("authors") == 2
        for beats in (thread for thread in left if thread.name == "zeus-heartbeat"):
            beats.join(60)  # one that is under way ends by itself
            assert not beats.is_alive()
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, before[signal.SIGUSR1])


def test_asset_events_and_lineage_of_a_tuned_task_tell_what_it_took_and_saved(run_dag: Any) -> None:
    lineage = pytest.importorskip("airflow_provider_zeus.operators.openlineage")
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with DAG("measured_lineage", schedule=None, start_date=START) as dag:

        @task.zeus(BY_LIMIT, outlets=[Asset("measured_model")])
        def trains(run: Any) -> None:
            for _ in range(900):
                run.step()

        trains()
    run_dag(dag)
    with create_session() as session:
        (event,) = (
            session.query(AssetEvent).filter(AssetEvent.source_dag_id == "measured_lineage").all()
        )
        told = event.extra["zeus"]
    assert (told["job_id"], told["power_limit_w"]) == ("measured_lineage.trains", 100.0)
    assert told["saved_low_j"] < told["saved_j"] < told["saved_high_j"]
    facet = lineage.lineage_of(told).run_facets[lineage.FACET]
    assert (facet.batchSize, facet.energyJ) == (None, told["energy_j"])


def test_a_script_trains_where_nothing_hears_of_its_steps(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no driver")

    monkeypatch.setattr(measured.TaskMeter, "open", fails)
    slurm = FakeSlurm(tmp_path)
    (script := slurm.shared / "train.py").write_text(OTHER)
    try:
        with DAG("measured_unheard", schedule=None, start_date=START) as dag:
            ZeusCommandOperator(
                task_id="here", job=ZeusJob(eta=0.5), command=[sys.executable, str(script)]
            )
            sbatch = [str(slurm.bin / "sbatch"), "--wrap", f"{sys.executable} train.py"]
            ZeusCommandOperator(task_id="elsewhere", command=sbatch, cwd=str(slurm.shared))
        assert states(run_dag(dag)) == {"here": "success", "elsewhere": "success"}
    finally:
        slurm.stop()
