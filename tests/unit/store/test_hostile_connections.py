"""Connections that someone mistyped: a URL of a database that we keep logs in, or a StoreError; the
password in neither an error nor the name of the store.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.open import database_url, is_variable_store
from airflow_provider_zeus.store.sql.engine import engine_of, forget, read_url, shown
from tests.hostile import HOSTILE, LEAVES

SECRET = "hunter2Planted"

_texts = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.sampled_from([leaf for leaf in LEAVES if isinstance(leaf, str)]),
)
_hosts = st.one_of(
    _texts,
    st.sampled_from(
        [
            "localhost",
            "/run/postgresql",
            "db:5432",
            f"postgresql://u:{SECRET}@db/x",
            f"u:{SECRET}@db",
        ]
    ),
    st.sampled_from(
        [
            f"postgres://u:p@{SECRET}@db/x",
            f"mysql://u:{SECRET}@db",
            f"://{SECRET}@",
            "postgresql://[::1",
        ]
    ),
)
_extras = st.dictionaries(
    st.sampled_from(
        [
            "store",
            "sqlalchemy_url",
            "sqlalchemy_query",
            "host",
            "sslmode",
            "connect_timeout",
            "x",
            "cursor",
        ]
    ),
    st.one_of(
        st.sampled_from(LEAVES),
        st.sampled_from([f"postgresql://u:{SECRET}@db/x", f"//{SECRET}@", {"sslpassword": SECRET}]),
    ),
    max_size=4,
)
_connections = st.builds(
    lambda **given: SimpleNamespace(**given),
    conn_type=st.sampled_from(["zeus", "postgres", "postgresql", "sqlite", "mysql", "", None]),
    host=_hosts,
    login=_texts,
    password=st.just(SECRET),
    port=st.sampled_from([None, 0, 5432, 10**6]),
    schema=_texts,
    extra_dejson=_extras,
)


def opened(connection: Any) -> str:
    """What is said of a Connection: where its log lies, or what is wrong."""
    try:
        if is_variable_store(connection, "zeus_default"):
            return "Variables"
        url = read_url(database_url(connection, "zeus_default"))
        forget(engine_of(url))  # made, not connected
        return shown(url)
    except StoreError as error:
        return str(error) if error.__cause__ is None else f"what is beneath it may show {SECRET}"


@HOSTILE
@given(connection=_connections)
def test_a_mistyped_connection(connection: Any) -> None:
    said = opened(connection)
    assert SECRET not in said
    assert SECRET not in json.dumps(said)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "sqlite", "zeus", "mysql", "x"])
@HOSTILE
@given(rest=st.text(alphabet=f"{SECRET}:/@?#[]%.0123456789 \\é", max_size=24))
def test_a_url_that_is_none(scheme: str, rest: str) -> None:
    extra = {"sqlalchemy_url": f"{scheme}://user:{SECRET}@host{rest}"}
    said = opened(
        SimpleNamespace(
            conn_type="zeus",
            host="",
            login="",
            password="",
            port=None,
            schema="",
            extra_dejson=extra,
        )
    )
    assert SECRET not in said
