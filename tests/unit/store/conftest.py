"""Stores to test, all with a clock of the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_zeus.store.sql.store import Store
from tests.postgres import empty_database
from tests.unit.store.store_kit import Clock, DictPort

if TYPE_CHECKING:
    import sqlalchemy as sa

# The Variable store with a dict shows what it does; with Airflow's own Variables, each night, that
# these do the same.
STORES = ["sqlite", "dict", "postgres", pytest.param("variables", marks=pytest.mark.nightly)]

Opens = Callable[[], Store]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'zeus.db'}"


@pytest.fixture(params=STORES)
def opens(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    """Opens the same log each time: another process's view of it."""
    yield from {"sqlite": _sqlite, "dict": _dict, "variables": _variables, "postgres": _postgres}[
        request.param
    ](request, tmp_path, clock)


@pytest.fixture
def store(opens: Opens) -> Store:
    return opens()


@pytest.fixture(scope="session")
def _postgres_database(postgres: str) -> Iterator[str]:
    from airflow_provider_zeus.store.sql.store import SqlStore

    with empty_database(postgres) as url:
        SqlStore(url, create=True).close()
        yield url


@pytest.fixture
def sqlite_tables(empty_log: Path, sqlite_url: str) -> str:
    """URL of an SQLite file with our tables, which are empty."""
    shutil.copy(empty_log, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture(scope="session")
def _postgres_engine(_postgres_database: str) -> Iterator[sa.Engine]:
    """To empty the tables between two tests."""
    import sqlalchemy as sa

    engine = sa.create_engine(_postgres_database)
    yield engine
    engine.dispose()


@pytest.fixture
def postgres_tables(_postgres_engine: sa.Engine, _postgres_database: str) -> str:
    """URL of a PostgreSQL database with our tables, which are empty.

    A test leaves its rows there and nothing else.
    """
    from airflow_provider_zeus.store.sql import schema

    with _postgres_engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '60s'")
        # to delete few rows is quicker than TRUNCATE
        for table in reversed(schema.metadata.sorted_tables):
            connection.execute(table.delete())
    return _postgres_database


def _sqlite(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    yield from _sql(request.getfixturevalue("sqlite_tables"), tmp_path, clock)


def _postgres(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    yield from _sql(request.getfixturevalue("postgres_tables"), tmp_path, clock)


def _sql(url: str, tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    from airflow_provider_zeus.store.sql.store import SqlStore

    store = SqlStore(url, create=True, now=clock, read_setting=_settings(tmp_path))
    yield lambda: SqlStore(url, now=clock, read_setting=_settings(tmp_path))
    store.close()


def _dict(_request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    from airflow_provider_zeus.store.variables.store import VariableStore

    port = DictPort()
    yield lambda: VariableStore(port, overlap_possible=False, now=clock)


def _variables(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables
    from airflow_provider_zeus.store.variables.store import VariableStore

    request.getfixturevalue("airflow_home")
    port = AirflowVariables()
    yield lambda: VariableStore(port, overlap_possible=False, now=clock)


def _settings(tmp_path: Path) -> Callable[[str], str | None]:
    """Live settings of an SQL store: files instead of Variables."""

    def read(key: str) -> str | None:
        path = tmp_path / key
        return path.read_text() if path.exists() else None

    return read


@pytest.fixture
def set_setting(opens: Opens, tmp_path: Path) -> Callable[[str, str], None]:
    """Write the Variable of a key where this store reads it."""

    def write(key: str, text: str) -> None:
        port = getattr(opens(), "_port", None)
        if port is None:
            (tmp_path / key).write_text(text)
        else:
            port.set(key, text)

    return write
