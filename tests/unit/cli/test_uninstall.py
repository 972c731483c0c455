"""``airflow zeus uninstall``: names what lies where, in order, and removes nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from airflow_provider_zeus.store.sql.schema import VERSION_TABLE, metadata
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.cli.conftest import Zeus, recur


def test_it_says_what_lies_where_and_removes_nothing(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    AirflowVariables().set("zeus-settings:d.train", "{}")
    done = zeus("uninstall", "--dry-run")
    assert done.status == 0, done.err
    assert "1. DAGs: d in the log" in done.out
    assert "2. pending costs: none" in done.out
    assert f"3. trial log: {home / 'zeus.db'}" in done.out
    assert "4. Variables: zeus-settings:d.train" in done.out
    assert f"rm -r {home / 'state'}" in done.out
    log = home / "zeus.db"
    assert f"rm -f {log} {log}-wal {log}-shm {log}-journal\n" in done.out, "no copy that somebody keeps beside it"
    assert "zeus-power-sidecar on hosts with GPUs" in done.out
    assert "pip uninstall airflow-provider-zeus" in done.out
    assert AirflowVariables().get("zeus-settings:d.train") == "{}"
    assert [trial.number for trial in store.trials("d.train")] == [1]


def test_the_tables_are_dropped_by_what_it_says(zeus: Zeus, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql.store import SqlStore

    SqlStore(database, create=True).close()
    url = sa.make_url(database)
    conn = {"conn_type": "zeus", "host": url.query["host"], "login": url.username, "schema": url.database}
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps(conn))
    done = zeus("uninstall", "--dry-run")
    (drop,) = [line.partition("then ")[2] for line in done.out.splitlines() if "DROP TABLE" in line]
    engine = sa.create_engine(database)
    assert {*metadata.tables, VERSION_TABLE} <= set(sa.inspect(engine).get_table_names())
    with engine.begin() as connection:
        connection.exec_driver_sql(drop)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_without_dry_run_it_refuses(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    done = zeus("uninstall")
    assert (done.status, "--dry-run" in done.err) == (1, True)
    with sqlite3.connect(home / "zeus.db") as connection:
        assert connection.execute("SELECT count(*) FROM zeus_trial").fetchone() == (1,)
