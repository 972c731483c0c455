"""Thirty scheduled runs with a batch size that always fails: thirty models, and few tries of that size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.store.open import open_store
from tests.handles import handle_of
from tests.integration.jobs import FOUR_SIZES as JOB

RUNS = 30
MOST_TRIES = 3  # of the size that fails, in so many runs
NEEDS = {16: 6, 32: 8, 64: 7, 128: 9}  # epochs
BAD = 64  # next to the default, and the cheapest if it worked
_task_instances = itertools.count(1)


def scheduled(run: int, try_number: int = 1) -> dict[str, Any]:
    """The context of a task instance in one scheduled run."""
    known = {
        "dag_id": "d",
        "task_id": "train",
        "run_id": f"r{run}",
        "map_index": -1,
        "try_number": try_number,
    }
    ti = SimpleNamespace(id=f"ti-{next(_task_instances)}", xcom_push=lambda **_: None, **known)
    return {
        "ti": ti,
        "dag_run": SimpleNamespace(run_type="scheduled"),
        "task": SimpleNamespace(max_active_tis_per_dag=1),
    }


def trains(fails: Callable[[Any, int], float]) -> Callable[[Any], str]:
    def train(run: Any) -> str:
        for epoch in run.epochs():
            for _ in range(40):
                run.step()
            metric = 0.9 * (epoch + 1) / NEEDS[run.batch_size]
            run.report(accuracy=fails(run, epoch) if run.batch_size == BAD else metric)
        return f"model-{run.batch_size}"

    return train


def raises(run: Any, epoch: int) -> float:
    raise RuntimeError("this size is not supported by the kernel")


def raises_late(run: Any, epoch: int) -> float:
    if epoch == 2:
        raise RuntimeError("the loss exploded")
    return 0.1


def reports_nan(run: Any, epoch: int) -> float:
    return math.nan


def reports_infinity(run: Any, epoch: int) -> float:
    return math.inf


@pytest.mark.parametrize(
    ("fails", "policy"),
    [
        pytest.param(raises, "knowledge_gradient", marks=pytest.mark.slow),
        pytest.param(raises_late, "zeus", marks=pytest.mark.slow),
        pytest.param(reports_nan, "zeus", marks=pytest.mark.nightly),
        pytest.param(reports_infinity, "knowledge_gradient", marks=pytest.mark.nightly),
    ],
)
def test_a_size_that_always_fails_costs_no_run_its_model(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str, fails: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))  # the store's file
    job = ZeusJob.from_dict({**JOB.to_dict(), "policy": policy})
    models = [
        handle_of(Recurrence.open(job, scheduled(n), conn_id="zeus_default")).train(trains(fails))
        for n in range(RUNS)
    ]
    assert len(models) == RUNS
    assert f"model-{BAD}" not in models
    trials = open_store().trials("d.train")
    tries = [t for t in trials if t.batch_size == BAD]
    assert 1 <= len(tries) <= MOST_TRIES
    assert {t.state for t in tries} == {State.FAILED}
    assert len({t.origin.run_id for t in trials if t.state is State.CONVERGED}) == RUNS


def test_an_error_of_every_size_is_held_against_none(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A night on which the data cannot be read: the size that was to be tried then is tried in the next run."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    # whose order of exploration is known
    job = ZeusJob.from_dict({**JOB.to_dict(), "policy": "zeus"})

    def unreadable(run: Any) -> str:
        raise OSError("no data tonight")

    def night(n: int, train: Callable[[Any], str], try_number: int = 1) -> list[Trial]:
        recurrence = Recurrence.open(job, scheduled(n, try_number), conn_id="zeus_default")
        try:
            handle_of(recurrence).train(train)
        except OSError:
            assert train is unreadable
        return [t for t in open_store().trials("d.train") if t.origin.run_id == f"r{n}"]

    works = trains(lambda run, epoch: 0.9 * (epoch + 1) / NEEDS[run.batch_size])
    night(0, works)
    tried, failed = night(1, unreadable)
    assert (tried.state, failed.state) == (State.FAILED, State.FAILED)
    night(1, works, try_number=2)
    assert night(2, works)[0].batch_size == tried.batch_size
