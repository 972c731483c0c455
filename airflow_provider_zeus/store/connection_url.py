"""Which database an Airflow Connection means. Errors name the field, its value and the remedy, never a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import StoreError

if TYPE_CHECKING:
    import sqlalchemy as sa

REMEDY = (
    "Use type zeus with host, schema, login and password of a PostgreSQL database, "
    'or with extra {"store": "variable"} for Airflow Variables'
)
_STORES = ("sql", "variable")
_POSTGRES = ("zeus", "postgres", "postgresql")
_NOT_OF_LIBPQ = ("store", "sqlalchemy_url", "sqlalchemy_scheme", "sqlalchemy_query", "cursor")


def is_variable_store(connection: Any, conn_id: str) -> bool:
    """Whether Airflow's Variables hold the log. Raises StoreError for a store that there is not."""
    chosen = connection.extra_dejson.get("store") or "sql"
    if connection.conn_type == "zeus" and chosen not in _STORES:
        chosen = chosen if re.fullmatch(r"\w{1,20}", str(chosen)) else "..."  # it may be a URL with a password
        raise _wrong(conn_id, "extra store", chosen, f"there is no such store, only {' and '.join(_STORES)}")
    return bool(connection.conn_type == "zeus" and chosen == "variable")


def database_url(connection: Any, conn_id: str) -> str:
    """Database URL of a Connection (types zeus, postgres, sqlite), with its password. Raises StoreError."""
    try:
        return _database_url(connection, conn_id)
    except (TypeError, ValueError, AttributeError):  # an extra that is no text, a character that no URL takes
        raise StoreError(
            f"Connection {conn_id!r}: its fields cannot be put together as the URL of a database. {REMEDY}."
        ) from None


def _database_url(connection: Any, conn_id: str) -> str:
    from airflow_provider_zeus.store.sql_engine import parsed_url

    extra, kind, host = connection.extra_dejson, connection.conn_type, connection.host or ""
    if extra.get("sqlalchemy_url"):
        url = parsed_url(str(extra["sqlalchemy_url"]), f"Connection {conn_id!r}: extra sqlalchemy_url")
    elif kind == "sqlite" and "://" in host:  # not repeated: there may be a password in it
        raise _wrong(conn_id, "host", "...", "a URL where the path of a file should be")
    elif kind == "sqlite" and host:
        return f"sqlite:///{host}"
    elif kind not in _POSTGRES:
        raise _wrong(conn_id, "conn_type", kind, "no trial log is kept there")
    elif host or extra.get("host"):
        url = _of_fields(connection, conn_id, host)
    else:
        raise _wrong(conn_id, "host", host, "it names no database")
    return url.render_as_string(hide_password=False)


def _of_fields(connection: Any, conn_id: str, host: str) -> sa.URL:
    """The fields of the form; ``host`` may be a name, a folder with a Unix socket, or a URL that leaves fields out."""
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql_engine import parsed_url

    if "://" in host:
        url = parsed_url(host, f"Connection {conn_id!r}: host")
    elif host.startswith("/"):
        url = sa.URL.create("postgresql", query={"host": host})
    else:
        url = sa.URL.create("postgresql", host=host or None)
    if url.get_backend_name() != "postgresql":
        return url
    url = url.set(
        username=url.username or connection.login or None,
        password=url.password or connection.password or None,
        port=url.port or connection.port or None,
        database=url.database or connection.schema or None,
    )
    return url.update_query_dict({k: v for k, v in _options(connection.extra_dejson).items() if k not in url.query})


def _options(extra: Mapping[str, Any]) -> dict[str, str]:
    """Options of the PostgreSQL client in a Connection's extra: sslmode, options, connect_timeout ... All are handed
    on, so that a misspelt one is refused and no connection is made without the encryption that was asked for.
    """
    given = {**(extra.get("sqlalchemy_query") or {}), **{k: v for k, v in extra.items() if k not in _NOT_OF_LIBPQ}}
    return {k: str(int(v) if isinstance(v, bool) else v) for k, v in given.items() if v not in (None, "")}


def _wrong(conn_id: str, field: str, value: object, problem: str) -> StoreError:
    return StoreError(f"Connection {conn_id!r}: {field} = {value!r}: {problem}. {REMEDY}.")
