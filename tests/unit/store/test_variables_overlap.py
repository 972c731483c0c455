"""Two processes of one host that write Airflow's Variables at once:
what was told is in the log, or was refused.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.patience import T
from airflow_provider_zeus.store.open import embedded_path
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import report, request

RUNS = 4  # of each process
MOST_S = 120.0


def opened() -> VariableStore:
    return VariableStore(AirflowVariables(), overlap_possible=False, turns=embedded_path())


def insisted(call: Callable[[], T]) -> T:
    """The answer, once it is not refused any more: the other process's run is over,
    or its write has ended.
    """
    until_s = time.monotonic() + MOST_S
    while True:
        try:
            return call()
        except StoreError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def run_all(worker: int, job_id: str, start: Barrier) -> None:
    store = opened()
    start.wait(MOST_S)
    for i in range(RUNS):
        n = 100 * worker + i
        asked = insisted(lambda n=n: store.ask(request(n, job_id=job_id)))  # type: ignore[misc]
        key = asked.trial.key
        news = report(samples=n)
        insisted(lambda key=key, news=news: store.tell(key, State.CONVERGED, news))  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "job_ids", [("one", "one"), ("left", "right")], ids=["one job", "two jobs"]
)
def test_two_processes_lose_no_run(airflow_home: Path, job_ids: tuple[str, str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    processes = [
        spawn.Process(target=run_all, args=(w, job_id, start)) for w, job_id in enumerate(job_ids)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(MOST_S + 60)
    assert [process.exitcode for process in processes] == [0, 0]
    store = opened()
    assert {*job_ids} <= {*store.jobs()}
    told = set()
    for job_id in {*job_ids}:
        trials = store.trials(job_id)
        assert [t.number for t in trials] == list(range(1, len(trials) + 1))
        assert {t.state for t in trials} == {State.CONVERGED}
        told |= {t.observation.samples for t in trials}
    assert told == {100 * worker + i for worker in range(2) for i in range(RUNS)}
    assert AirflowVariables().keys("zeus-beat:") == []
