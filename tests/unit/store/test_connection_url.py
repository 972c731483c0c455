"""Which database a Connection means, and what is said of one that means none."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk import Connection

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.open import database_url, is_variable_store
from airflow_provider_zeus.store.sql import engine as sql_engine
from airflow_provider_zeus.store.sql.store import SqlStore

SECRET = "s3cr3t/p@ss:w%rd"


def connection(**values: Any) -> Connection:
    return Connection(**{"conn_id": "zeus_default", "conn_type": "zeus", **values})


def url_of(**values: Any) -> str:
    return database_url(connection(**values), "zeus_default")


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({"extra": '{"sqlalchemy_url": "sqlite:////a.db"}'}, "sqlite:////a.db"),
        ({"host": "postgresql://u@h/db"}, "postgresql://u@h/db"),
        ({"host": "postgres://u@h/db"}, "postgresql://u@h/db"),
        ({"host": "sqlite:////a.db", "schema": "x"}, "sqlite:////a.db"),
        ({"host": "db", "schema": "costs"}, "postgresql://db/costs"),
        ({"host": "::1", "port": 5433, "schema": "c"}, "postgresql://[::1]:5433/c"),
        (
            {
                "conn_type": "postgres",
                "host": "db",
                "login": "u@x",
                "password": "p:/@",
                "port": 5433,
                "schema": "c",
            },
            "postgresql://u%40x:p%3A%2F%40@db:5433/c",
        ),
        ({"conn_type": "sqlite", "host": "/data/zeus.db"}, "sqlite:////data/zeus.db"),
        (
            {
                "host": "db",
                "schema": "c",
                "extra": '{"store": "sql", "sslmode": "require", "sslrootcert": ""}',
            },
            "postgresql://db/c?sslmode=require",
        ),
        (
            {
                "host": "db",
                "schema": "c",
                "extra": '{"keepalives": false, "connect_timeout": 3, "cursor": "dict"}',
            },
            "postgresql://db/c?connect_timeout=3&keepalives=0",
        ),
        (
            {"host": "db", "extra": '{"sqlalchemy_query": {"options": "-c a=b"}}'},
            "postgresql://db?options=-c+a%3Db",
        ),
        ({"host": "/run/pg", "schema": "c"}, "postgresql:///c?host=%2Frun%2Fpg"),
        (
            {"host": "", "schema": "c", "extra": '{"host": "/run/pg"}'},
            "postgresql:///c?host=%2Frun%2Fpg",
        ),
        (
            {
                "host": "postgresql://db/c?sslmode=verify-full",
                "login": "u",
                "password": "p",
                "port": 5433,
            },
            "postgresql://u:p@db:5433/c?sslmode=verify-full",
        ),
        (
            {"host": "postgresql://db/c?sslmode=verify-full", "extra": '{"sslmode": "prefer"}'},
            "postgresql://db/c?sslmode=verify-full",
        ),
    ],
)
def test_the_url_of_a_connection(values: dict[str, Any], url: str) -> None:
    assert sa.make_url(url_of(**values)) == sa.make_url(url)


def test_a_password_with_any_characters_arrives_as_it_is() -> None:
    assert (
        sa.make_url(url_of(host="db", login="u", password="p:/@#%é", schema="c")).password
        == "p:/@#%é"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"conn_type": "mysql", "host": "db", "password": SECRET},
            r"'zeus_default': conn_type = 'mysql'.*type zeus",
        ),
        (
            {"host": "mysql://u:s3cr3t@db:3306/c"},
            r"host: the run log is not kept in mysql\. Name a PostgreSQL.*postgresql://",
        ),
        ({"host": "mongodb+srv://u:s3cr3t@db/c"}, r"not kept in mongodb\+srv.*postgresql://"),
        (
            {"host": "postgresql+asyncpg://u:s3cr3t@db/c"},
            r"not kept in postgresql\+asyncpg.*postgresql://",
        ),
        ({"host": "postgresql://u:a@s3cr3t@db/c"}, r"host cannot be read.*@ as %40"),
        (
            {"extra": '{"sqlalchemy_url": "oracle://u:s3cr3t@db/c"}'},
            r"extra sqlalchemy_url: .* not kept in oracle",
        ),
        ({"password": SECRET}, r"host = '': it names no database\. Use type zeus with host"),
        (
            {"host": "db", "extra": '{"sqlalchemy_query": "s3cr3t"}'},
            r"cannot be put together .* Use type zeus with host",
        ),
    ],
)
def test_what_cannot_be_used_is_named_with_its_remedy_and_without_the_password(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        url_of(**values)
    assert (
        "s3cr3t" not in f"{caught.value!r}"
        f" {caught.value.__context__ if not caught.value.__suppress_context__ else ''}"
    )


def test_a_store_that_there_is_not() -> None:
    assert is_variable_store(connection(extra='{"store": "variable"}'), "c")
    assert not is_variable_store(connection(extra='{"store": "sql"}'), "c")
    assert not is_variable_store(connection(extra='{"store": null}'), "c")
    assert not is_variable_store(connection(conn_type="postgres", extra='{"store": "redis"}'), "c")
    with pytest.raises(StoreError, match=r"'c': extra store = '\.\.\.'.* sql and variable"):
        is_variable_store(connection(extra='{"store": "redis"}'), "c")


def test_no_password_in_identity_messages_and_logs(
    database: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    there = sa.make_url(database)
    url = url_of(
        login="postgres",
        password=SECRET,
        schema=there.database,
        extra=json.dumps(dict(there.query)),
    )
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "sqlalchemy"):
        store = SqlStore(url, create=True)
        assert store.jobs() == []
        store.close()
        with pytest.raises(StoreError) as caught:
            SqlStore(url.replace(str(there.database), "nowhere"))
    assert 'database "***" does not exist' in str(caught.value)
    assert store.identity == f"postgresql:///{there.database}?host={there.query['host']}"
    assert "sqlalchemy" in caplog.text
    seen = f"{store.identity} {store!r} {caught.value!r} {caplog.text} {capfd.readouterr()}"
    assert SECRET not in seen
    assert "s3cr3t" not in seen


def test_what_a_server_repeats_of_a_secret_is_hidden() -> None:
    url = sql_engine.read_url("postgresql+psycopg2://zeus:s3cr3t@db/costs?sslpassword=0ther")
    said = str(sql_engine.explained(RuntimeError("key 0ther, password s3cr3t"), url))
    assert "(key ***, password ***)" in said


def test_a_misspelt_option_is_refused(database: str) -> None:
    """Else a Connection with ``ssl_mode`` for ``sslmode`` would go on in the clear."""
    with pytest.raises(StoreError, match='option "ssl_mode"'):
        SqlStore(database + "&ssl_mode=require", create=True)


def test_an_sslmode_is_obeyed(database: str) -> None:
    assert SqlStore(database + "&sslmode=disable&connect_timeout=3", create=True).jobs() == []
    with pytest.raises(StoreError, match=r"sslmode.*Connection"):
        SqlStore(database + "&sslmode=always")


def test_options_of_the_url_win_over_our_own(database: str) -> None:
    engine = sql_engine.engine_of(sql_engine.read_url(database + "&application_name=mine"))
    with sql_engine.transaction(engine) as connection:
        assert connection.exec_driver_sql("SHOW application_name").scalar() == "mine"
    sql_engine.forget(engine)
    engine = sql_engine.engine_of(sql_engine.read_url(database))
    with sql_engine.transaction(engine) as connection:
        assert (
            connection.exec_driver_sql("SHOW application_name").scalar() == "airflow-provider-zeus"
        )
    sql_engine.forget(engine)


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3cr3t@h/db", "postgresql+psycopg2://u:s3cr3t@h/db"]
)
def test_without_a_driver_the_extra_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(sql_engine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(
        StoreError, match=r"pip install airflow-provider-zeus\[postgres\]"
    ) as caught:
        SqlStore(url)
    assert "s3cr3t" not in str(caught.value)
