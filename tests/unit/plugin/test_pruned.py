"""Pages over a pruned log: every figure as before; where a curve was, that it was pruned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.api import reading
from airflow_provider_zeus.plugin.api.reading import BeliefCache
from airflow_provider_zeus.store.open import open_store, store_url
from airflow_provider_zeus.store.sql.engine import engine_of, read_url
from airflow_provider_zeus.store.sql.prune import prune
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.kit import JOB
from tests.unit.store.store_kit import Clock, report, request

RUNS = 20
PAGES = ["jobs", "jobs/d/saved", "dags/d/costs", "dags/d/charts", "dags/d/export"]
PAGES += [f"dags/d/runs/run{n}/costs" for n in (1, 9, RUNS)]


@pytest.fixture
def log(store: Store) -> Iterator[Store]:
    """Runs whose window is full, all but the newest of them old."""
    clock = Clock()
    log = open_store(now=clock)
    job = replace(JOB, window=6)
    for n in range(1, RUNS + 1):
        clock.t += 86_400.0
        asked = log.ask(request(n, job=job)).trial
        log.tell(asked.key, State.CONVERGED, report(asked.batch_size, profile=3, points=100))
    yield log
    log.close()


def pages(admin: Any) -> dict[str, str]:
    answers = {}
    for page in PAGES:
        address, _, query = page.partition("?")
        params = {"job_id": "d.train", **dict(p.split("=") for p in query.split("&") if p)}
        answer = admin.get(f"/zeus/api/{address}", params=params)
        assert answer.status_code == 200, (page, answer.text)
        answers[page] = answer.text
    return answers


def test_no_page_says_anything_else_of_costs(
    admin: Any, log: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pages(admin)
    url = store_url("zeus_default")
    assert url is not None
    pruned = prune(engine_of(read_url(url)), "d.train", 1e9)
    assert pruned.points == pruned.decisions == RUNS - 6
    # as in a process that did not see the log before
    monkeypatch.setattr(reading, "beliefs", BeliefCache())
    assert pages(admin) == before


def test_the_curve_of_a_pruned_run_says_that_it_was_pruned(admin: Any, log: Store) -> None:
    address = "/zeus/api/dags/d/runs/run1/charts"
    params = {"job_id": "d.train", "task_id": "train"}
    assert "prune" not in admin.get(address, params=params).text
    url = store_url("zeus_default")
    assert url is not None
    prune(engine_of(read_url(url)), "d.train", 1e9)
    assert "airflow zeus prune" in admin.get(address, params=params).text
