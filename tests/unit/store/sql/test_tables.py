"""What only the SQL store has: its tables, made by a migration."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.sql import engine as sql_engine
from airflow_provider_zeus.store.sql import migrate, schema
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import execute


def test_a_file_lets_readers_beside_a_writer(store: SqlStore, sqlite_url: str) -> None:
    assert execute(sqlite_url, "PRAGMA journal_mode") == [("wal",)]


def test_the_revision_is_numbered_and_none_of_those_that_it_replaces() -> None:
    (file,) = (Path(migrate.__file__).parent / "migrations" / "versions").glob("tables_*.py")
    assert file.stem == f"tables_{schema.HEAD}"
    assert schema.HEAD > "0009"


def test_foreign_keys_hold(store: SqlStore, sqlite_url: str) -> None:
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    statement = sa.insert(schema.power).values(trial_id=99, points=[])
    with (
        pytest.raises(StoreError, match="FOREIGN KEY"),
        sql_engine.transaction(engine, write=True) as connection,
    ):
        connection.execute(statement)


def test_tables_that_are_not_there_name_the_command(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE mine (x INTEGER)")
    with pytest.raises(StoreError, match="airflow zeus db upgrade"):
        SqlStore(sqlite_url)
    SqlStore(sqlite_url, create=True)
    assert execute(sqlite_url, "SELECT * FROM mine") == []


def test_a_reader_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "zeus.db"
    with pytest.raises(StoreError, match="no run log yet"):
        SqlStore(f"sqlite:///{path}")
    assert list(tmp_path.iterdir()) == []


def test_opening_an_up_to_date_file_needs_no_alembic(store: SqlStore, sqlite_url: str) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom airflow_provider_zeus.store.sql.store import SqlStore\n"
        f"SqlStore({sqlite_url!r}, create=True)\nassert 'alembic' not in sys.modules, 'alembic'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
