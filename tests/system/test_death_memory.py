"""Out of memory, from the training to the next decision;
and that what listens to Airflow's events raises nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.learn import learn
from airflow_provider_zeus.optimizer.policy import prior
from tests.integration.conftest import run_dag  # noqa: F401
from tests.integration.jobs import EPOCHS, job, log_of, loop, save, saves_of

MARK = "airflow_impl"  # what pluggy sets at a hook of Airflow


class OutOfMemoryError(RuntimeError):
    """As torch raises it, with its name and its words."""


def dag_of(name: str, spec: ZeusJob, fits: Any, **task_kwargs: Any) -> DAG:
    """A training that runs out of memory in its second epoch where ``fits(batch size)`` is not
    so.
    """
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task.zeus(spec, **task_kwargs)
        def train(run, run_id=None):
            if not fits(run.batch_size):
                for epoch in run.epochs():
                    if epoch:
                        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                    for _ in range(20):  # some ticks of the energy counter
                        run.step()
                    run.report(accuracy=0.1)
            loop(run, EPOCHS.get(run.batch_size, 4))
            return save(run_id, run.batch_size)

        train()
    return dag


def belief_of(job_id: str, spec: ZeusJob) -> Belief:
    """What the log teaches."""
    belief = prior(spec)
    for trial in log_of(job_id):
        belief = learn(belief, trial)
    return belief


@pytest.mark.slow
def test_the_same_task_goes_on_with_another_batch_size(run_dag: Any) -> None:  # noqa: F811
    spec = job()
    dag = dag_of("death_explores", spec, lambda b: b != 16)
    runs = [run_dag(dag) for _ in range(5)]
    assert [r.state for r in runs] == ["success"] * 5
    assert all(len(saves_of(r.run_id)) == 1 for r in runs), "one model of each run"
    first, full, kept, *later = log_of("death_explores.train")
    assert (first.batch_size, first.state.value) == (32, "converged")
    assert (full.batch_size, full.state.value, full.observation.out_of_memory) == (
        16,
        "failed",
        True,
    )
    assert (full.reason or "").startswith("OutOfMemoryError: CUDA")
    assert (full.observation.energy_j or 0) > 0, "it counts in the ledger"
    assert (kept.key.ti_id, kept.batch_size, kept.state.value) == (full.key.ti_id, 32, "converged")
    assert 16 not in {t.batch_size for t in later}, "it is not tried again there"
    belief = belief_of("death_explores.train", spec)
    model = full.observation.device_model or ""
    assert belief.infeasible(model) == {16}
    assert belief.infeasible("another GPU") == frozenset()
    assert {b for _, b, _ in (*belief.converged, *belief.stopped)} == {32, 64}, (
        "it taught no epochs"
    )


def test_at_the_default_the_same_task_goes_on_with_the_nearest_smaller_size(run_dag: Any) -> None:  # noqa: F811
    dag = dag_of("death_default", job(), lambda b: b == 16)
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert saves_of(dag_run.run_id) == [16]
    full, kept = log_of("death_default.train")
    assert (full.batch_size, full.state.value, full.observation.out_of_memory) == (
        32,
        "failed",
        True,
    )
    assert (kept.key.ti_id, kept.key.attempt) == (full.key.ti_id, 2)
    assert (kept.batch_size, kept.state.value) == (16, "converged")
    assert belief_of("death_default.train", job()).infeasible(
        full.observation.device_model or ""
    ) == {32}


def test_what_stands_in_may_not_fit_either_and_the_next_try_takes_the_next_smaller(
    run_dag: Any,  # noqa: F811  a fixture
) -> None:
    spec = job(batch_sizes=[8, 16, 32], default_batch_size=32)
    dag = dag_of("death_twice", spec, lambda b: b == 8, retries=2, retry_delay=timedelta(0))
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert saves_of(dag_run.run_id) == [8]
    log = log_of("death_twice.train")
    assert [(t.batch_size, t.state.value) for t in log[:2]] == [(32, "failed"), (16, "failed")]
    assert (log[-1].batch_size, log[-1].state.value) == (8, "converged")
    assert log[-1].origin.try_number == 2


def test_in_a_second_attempt_it_says_nothing_of_the_batch_size(run_dag: Any) -> None:  # noqa: F811
    """What the first one has left behind may be what did not fit."""
    calls = iter([True, True, False, True])  # 32; 16 given up, then 32 is full; 32
    spec = job(batch_sizes=[16, 32])
    dag = dag_of("death_second", spec, lambda b: next(calls))
    assert [run_dag(dag).state for _ in range(3)] == ["success", "failed", "success"]
    log = log_of("death_second.train")
    assert [(t.batch_size, t.state.value, t.observation.out_of_memory) for t in log] == [
        (32, "converged", False),
        (16, "given_up", False),
        (32, "failed", False),
        (32, "converged", False),
    ]
    assert belief_of("death_second.train", spec).too_large == frozenset()


def entry_of(group: str) -> Any:
    """What this package has in a group of entry points."""
    (found,) = [entry for entry in entry_points(group=group) if "zeus" in entry.value]
    return found.load()


@pytest.mark.parametrize("names_tasks", ["", " , ", "!left_out"])
def test_nothing_of_ours_listens_to_airflows_events_unless_tasks_are_to_be_measured(
    monkeypatch: pytest.MonkeyPatch, names_tasks: str
) -> None:
    """A listener that raises would block DAG runs;
    a lease and the next question do what it could do.
    """
    monkeypatch.setenv("AIRFLOW__ZEUS__MEASURE", names_tasks)
    provider_info = entry_of("apache_airflow_provider")()
    assert list(entry_of("airflow.plugins")().listeners) == []
    assert list(provider_info.get("listeners", [])) == []


def test_what_listens_where_tasks_are_measured_raises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hears of a task and of its process alone, never of a DAG run."""
    monkeypatch.setenv("AIRFLOW__ZEUS__MEASURE", "*")
    (listener,) = entry_of("airflow.plugins")().listeners
    hooks = {name for name in dir(listener) if getattr(getattr(listener, name), MARK, None)}
    assert hooks == {
        "on_task_instance_running",
        "on_task_instance_success",
        "on_task_instance_skipped",
        "on_task_instance_failed",
        "before_stopping",
    }
    broken = object()  # each attribute that is read of it is an error
    listener.on_task_instance_running(None, broken)
    listener.on_task_instance_success(None, broken)
    listener.on_task_instance_skipped(None, broken)
    listener.on_task_instance_failed(None, broken, ValueError("of the task"))
    listener.before_stopping(broken)
