"""An SQLite trial log without rows: copying it is quick, making its tables is not."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables, to be copied."""
    from airflow_provider_zeus.store.sql.store import SqlStore

    path = tmp_path_factory.mktemp("migrated") / "zeus.db"
    SqlStore(f"sqlite:///{path}", create=True).close()
    assert [each.name for each in path.parent.glob("zeus.db-*")] == [], "all of it is in the file"
    return path
