"""Overlapping recurrences of several processes lose nothing: the benchmark's loads, smaller."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from benchmarks.cost import store_load
from benchmarks.cost.store_load import LOADS, Load


@pytest.fixture(params=["sqlite_url", pytest.param("database", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(Load("one job", 1, 64), marks=pytest.mark.slow, id="one job"),
        pytest.param(LOADS[0], marks=pytest.mark.nightly, id="one job, long"),
        pytest.param(Load("200 jobs", 200, 4), marks=pytest.mark.nightly, id="200 jobs"),
    ],
)
def test_the_whole_load(url: str, load: Load) -> None:
    done = store_load.run(url, load)
    assert done["errors"] == []
    assert done["ask"]["per_s"] > 0
    assert done["tell"]["p99_commits"] > 0


def test_the_load_is_dealt_out_whole() -> None:
    for load in LOADS:
        parts = [load.part(w, 8) for w in range(8)]
        assert (
            len({one for part in parts for one in part})
            == sum(map(len, parts))
            == load.jobs * load.each
        )
        assert min(map(len, parts)) == max(map(len, parts))


def test_what_was_lost_is_named(sqlite_url: str) -> None:
    load = Load("one job", 1, 6)
    assert store_load.run(sqlite_url, load, processes=2, commits=1)["errors"] == []
    with transaction(engine_of(read_url(sqlite_url)), write=True) as connection:
        connection.execute(
            sa.update(schema.trial).where(schema.trial.c.number == 4).values(samples=99, number=7)
        )
    said = "; ".join(store_load.lost(sqlite_url, load))
    assert "numbers [1, 2, 3, 5, 6, 7]" in said
    assert "observation" in said
