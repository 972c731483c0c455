"""What only the SQL store has: migrations, tables of another version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql import engine as sql_engine
from airflow_provider_zeus.store.sql import migrate, schema
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import JOB, report, request


def test_migrations_make_the_tables_of_the_schema(store: SqlStore, sqlite_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, schema.metadata) == []
        assert migrate.version(engine) == schema.HEAD
    assert ("wal",) in execute(sqlite_url, "PRAGMA journal_mode")


def migrated(url: str, down_to: str) -> None:
    """Take the tables back to an older revision."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrate._MIGRATIONS))
    engine = sql_engine.engine_of(sql_engine.read_url(url))
    with sql_engine.transaction(engine, write=True) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, down_to)


def test_migrations_can_be_undone(store: SqlStore, sqlite_url: str) -> None:
    migrated(sqlite_url, "base")
    assert [name for (name,) in execute(sqlite_url, "SELECT name FROM sqlite_master WHERE name LIKE 'zeus_t%'")] == []


@pytest.mark.parametrize("versions", [("1",), ("1", "2")])
def test_profiles_from_before_they_had_a_version(sqlite_url: str, versions: tuple[str, ...]) -> None:
    """They are those of the one version that the job had; of several nobody knows which, and none is lost."""
    store = SqlStore(sqlite_url, create=True)
    for n, version in enumerate(versions, start=1):
        key = store.ask(request(n, job=replace(JOB, job_version=version))).trial.key
        store.tell(key, State.CONVERGED, report(profile=2))
    store.close()
    migrated(sqlite_url, "0002")
    assert execute(sqlite_url, "SELECT sum(samples) FROM zeus_profile_sample") == [(20 * len(versions),)]
    store = SqlStore(sqlite_url, create=True)
    asked = store.ask(request(9, job=replace(JOB, job_version=versions[-1])))
    assert [s.samples for s in asked.profile] == ([20] if len(versions) == 1 else [])
    assert execute(sqlite_url, "SELECT sum(samples) FROM zeus_profile_sample") == [(20 * len(versions),)]


def test_every_revision_is_numbered_and_the_last_is_the_head() -> None:
    files = sorted((Path(migrate.__file__).parent / "migrations" / "versions").glob("[0-9]*.py"))
    assert [f.name[:4] for f in files] == [f"{i:04d}" for i in range(1, len(files) + 1)]
    assert files[-1].name[:4] == schema.HEAD


def test_foreign_keys_hold(store: SqlStore, sqlite_url: str) -> None:
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    statement = sa.insert(schema.power).values(trial_id=99, points=[])
    with pytest.raises(StoreError, match="FOREIGN KEY"), sql_engine.transaction(engine, write=True) as connection:
        connection.execute(statement)


def test_newer_tables_name_the_remedy(store: SqlStore, sqlite_url: str) -> None:
    execute(sqlite_url, "UPDATE zeus_alembic_version SET version_num = '0999'")
    for create in (True, False):
        with pytest.raises(StoreError, match=r"schema 0999.*upgrade airflow-provider-zeus"):
            SqlStore(sqlite_url, create=create)


def test_tables_that_are_not_there_name_the_command(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE mine (x INTEGER)")
    with pytest.raises(StoreError, match="airflow zeus db upgrade"):
        SqlStore(sqlite_url)
    SqlStore(sqlite_url, create=True)
    assert execute(sqlite_url, "SELECT * FROM mine") == []


def test_older_tables_are_migrated_only_where_that_is_allowed(sqlite_url: str) -> None:
    SqlStore(sqlite_url, create=True).close()
    execute(sqlite_url, "UPDATE zeus_alembic_version SET version_num = '0000'")
    with pytest.raises(StoreError, match=r"schema 0000.*db upgrade"):
        SqlStore(sqlite_url)


def test_a_reader_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "zeus.db"
    with pytest.raises(StoreError, match="no trial log yet"):
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
