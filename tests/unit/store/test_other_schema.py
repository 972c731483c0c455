"""Tables of another revision, on both databases: every way in refuses them,
names the remedy and changes nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from airflow_provider_zeus.cli import doctor
from airflow_provider_zeus.cli.upkeep import upgrade_tables
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql import migrate, schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import report, request

REMEDY = "use the version of airflow-provider-zeus that wrote the log; "
REMEDY += "or export it with that version, then move it aside"
WAYS_IN: list[Callable[[], object]] = [
    open_store,
    lambda: open_store(create=False),
    upgrade_tables,
    lambda: doctor.trials("zeus_default"),
]


@pytest.fixture(params=["sqlite_url", "database"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def other(url: str, airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a log with rows whose tables have this revision, where tasks,
    pages and commands look for it.
    """
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT",
        json.dumps({"conn_type": "zeus", "extra": {"sqlalchemy_url": url}}),
    )

    def make(revision: str) -> str:
        store = SqlStore(url, create=True)
        for n in range(1, 4):
            trial = store.ask(request(n)).trial
            store.tell(trial.key, State.CONVERGED, report(trial.batch_size, profile=1, points=3))
        with engine_of(read_url(url)).begin() as connection:
            connection.execute(
                sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{revision}'")
            )
        store.close()
        return url

    return make


def content(url: str) -> dict[str, object]:
    """The bytes of an SQLite log; of PostgreSQL's tables each row with its place and the
    transaction that wrote it.
    """
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return {
            each.name: each.read_bytes()
            for each in path.parent.glob("zeus.db*")
            if each.suffix != ".db-shm"
        }
    engine = sa.create_engine(read_url(url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        rows = {
            name: f"SELECT ctid::text, xmin::text, whole::text FROM {name} AS whole ORDER BY 1"
            for name in names
        }
        return {name: connection.execute(sa.text(text)).all() for name, text in rows.items()}


@pytest.mark.parametrize("revision", ["0009", "0999", "f3a9"])
def test_every_way_in_refuses_it_and_leaves_it_as_it_is(
    other: Callable[[str], str], revision: str
) -> None:
    url = other(revision)
    before = content(url)
    for way_in in WAYS_IN:
        with pytest.raises(
            StoreError, match=rf"has schema {revision}\. This version knows {schema.HEAD}.*{REMEDY}"
        ):
            way_in()
    found = doctor.schema("zeus_default")
    assert (found.status, found.finding) == (
        "error",
        f"{revision}; this version knows {schema.HEAD} alone",
    )
    assert REMEDY in str(found.remedy)
    assert content(url) == before


def test_what_a_killed_writer_left_beside_the_file_stays_too(
    sqlite_url: str, airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever closes an SQLite file last moves its write-ahead log into it."""
    store = SqlStore(sqlite_url, create=True)
    store.ask(request(1))
    killed = tmp_path / "killed"
    killed.mkdir()
    # while it is open the log beside the file stays
    with engine_of(read_url(sqlite_url)).connect() as reader:
        reader.execute(sa.text("SELECT 1 FROM zeus_trial")).all()
        with engine_of(read_url(sqlite_url)).begin() as connection:
            connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0009'"))
        for path in tmp_path.glob("zeus.db*"):
            shutil.copy(path, killed / path.name)
    store.close()
    url = f"sqlite:///{killed / 'zeus.db'}"
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT",
        json.dumps({"conn_type": "zeus", "extra": {"sqlalchemy_url": url}}),
    )
    before = content(url)
    assert before["zeus.db-wal"]
    for way_in in WAYS_IN:
        with pytest.raises(StoreError, match="has schema 0009"):
            way_in()
    assert doctor.schema("zeus_default").status == "error"
    assert content(url) == before


def test_the_revision_makes_the_tables_of_the_schema(url: str) -> None:
    SqlStore(url, create=True).close()
    engine = engine_of(read_url(url))
    assert migrate.present_version(engine) == schema.HEAD
    options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
    options["compare_server_default"] = (
        engine.dialect.name == "postgresql"
    )  # of SQLite's, alembic misreads an empty text
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
        changed = sa.MetaData()
        for table in schema.metadata.sorted_tables:
            table.to_metadata(changed)
        changed.tables["zeus_job"].append_column(sa.Column("more", sa.Text))
        assert len(compare_metadata(context, changed)) == 1, "a difference would be seen"
