"""An SQLite store in place of each store there is."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.store.sql import checkpoints
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import Clock


@pytest.fixture
def store(sqlite_tables: str, clock: Clock) -> SqlStore:
    return SqlStore(sqlite_tables, now=clock)


@pytest.fixture
def request_(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    """pytest's own, where ``request`` is a question to the store."""
    return request


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints every 4 trials instead of every 16."""
    monkeypatch.setattr(checkpoints, "EVERY", 4)
