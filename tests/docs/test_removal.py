"""The commands by which a page removes the run log: all that is the provider's goes,
and nothing else.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from airflow_provider_zeus.store.open import open_store, state_dir
from airflow_provider_zeus.store.sql.schema import VERSION_TABLE, metadata
from tests.docs.blocks import blocks
from tests.unit.cli.conftest import home, recur  # noqa: F401 - a fixture

PAGE = "docs/how-to/upgrade.md"


def test_an_sqlite_log_is_removed_and_a_copy_stays(
    home: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AIRFLOW__ZEUS__STATE_DIR")
    store = open_store()
    recur(store, 1)
    store.close()
    for name in ("zeus.db-wal", "zeus.db-shm", "zeus.db-journal", "zeus.db.copy", "airflow.db"):
        (home / name).touch()
    state_dir().mkdir()
    (state_dir() / "limit-dead.json").touch()
    (commands,) = [block.text for block in blocks(PAGE) if "rm -f" in block.text]
    subprocess.run(
        ["bash", "-eu"],
        input=commands,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(home)},
    )
    assert sorted(path.name for path in home.iterdir()) == ["airflow.db", "zeus.db.copy"]


def test_the_tables_are_dropped(database: str) -> None:
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql.store import SqlStore

    SqlStore(database, create=True).close()
    engine = sa.create_engine(database)
    assert set(sa.inspect(engine).get_table_names()) == {*metadata.tables, VERSION_TABLE}
    (drop,) = [block.text for block in blocks(PAGE) if block.kind == "sql"]
    with engine.begin() as connection:
        connection.exec_driver_sql(drop)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
