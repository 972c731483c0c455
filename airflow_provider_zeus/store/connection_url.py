"""The database URL of an Airflow Connection. Errors name the field, its value and the remedy, never a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_zeus.errors import StoreError

if TYPE_CHECKING:
    import sqlalchemy as sa

REMEDY = (
    "Use type zeus with host, schema, login and password of a PostgreSQL database, "
    'or with extra {"store": "variable"} for Airflow Variables'
)


def is_variable_store(connection: Any, conn_id: str) -> bool:
    """Whether Airflow's Variables hold the log. Raises StoreError for an unknown store."""
    if not isinstance(connection.extra_dejson, Mapping):
        raise _wrong(conn_id, "extra", "...", "no JSON object")
    chosen = connection.extra_dejson.get("store") or "sql"
    if connection.conn_type == "zeus" and chosen not in ("sql", "variable"):
        raise _wrong(conn_id, "extra store", "...", "there is no such store, only sql and variable")
    return bool(connection.conn_type == "zeus" and chosen == "variable")


def database_url(connection: Any, conn_id: str) -> str:
    """Database URL of a Connection (types zeus, postgres, sqlite), with its password. Raises StoreError."""
    from airflow_provider_zeus.store.sql.engine import parsed_url

    try:
        extra, kind, host = connection.extra_dejson, connection.conn_type, connection.host or ""
        if extra.get("sqlalchemy_url"):
            url = parsed_url(str(extra["sqlalchemy_url"]), f"Connection {conn_id!r}: extra sqlalchemy_url")
        elif kind == "sqlite" and host and not host.startswith("/"):
            raise _wrong(conn_id, "host", "...", "not the absolute path of a file")
        elif kind == "sqlite" and host:
            return f"sqlite:///{host}"
        elif kind not in ("zeus", "postgres", "postgresql"):
            kind = kind if re.fullmatch("[a-z_]{0,30}", str(kind or "")) else "..."
            raise _wrong(conn_id, "conn_type", kind, "no trial log is kept there")
        elif host or extra.get("host"):
            url = _url_of_fields(connection, conn_id, host)
        else:
            raise _wrong(conn_id, "host", host, "it names no database")
        longest = 63  # bytes of a PostgreSQL name: of a longer one the server would report the beginning
        for field, name in (("login", url.username), ("schema", url.database)):
            if url.get_backend_name() == "postgresql" and len((name or "").encode()) > longest:
                raise _wrong(conn_id, field, "...", f"longer than {longest} bytes, so no name in PostgreSQL")
        return url.render_as_string(hide_password=False)
    except (TypeError, ValueError, AttributeError):  # an extra that is no text, a character that no URL allows
        raise StoreError(
            f"Connection {conn_id!r}: its fields cannot be put together as the URL of a database. {REMEDY}."
        ) from None


def _url_of_fields(connection: Any, conn_id: str, host: str) -> sa.URL:
    """URL of the form's fields; ``host`` may be a name, a folder with a Unix socket, or a URL without some fields."""
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql.engine import parsed_url

    if "://" in host:
        url = parsed_url(host, f"Connection {conn_id!r}: host")
    elif host.startswith("/"):
        url = sa.URL.create("postgresql", query={"host": host})
    elif not re.fullmatch(r"[\w.:,%\[\]-]*", host):  # names, addresses, several of them
        raise _wrong(conn_id, "host", "...", "not the name of a host; user and password have fields of their own")
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
    """Options of the PostgreSQL client in a Connection's extra: sslmode, options, connect_timeout ...

    All are passed on, so that the client refuses a misspelt one instead of connecting without the required encryption.
    """
    others = ("store", "sqlalchemy_url", "sqlalchemy_scheme", "sqlalchemy_query", "cursor")
    given = {**(extra.get("sqlalchemy_query") or {}), **{k: v for k, v in extra.items() if k not in others}}
    return {k: str(int(v) if isinstance(v, bool) else v) for k, v in given.items() if v not in (None, "")}


def passwords(connection: Any) -> list[str]:
    """Passwords in other fields than ``password``: as ``user:password@`` or as options of the client."""
    extra = connection.extra_dejson if isinstance(connection.extra_dejson, Mapping) else {}
    given = {**extra, **(extra["sqlalchemy_query"] if isinstance(extra.get("sqlalchemy_query"), Mapping) else {})}
    texts = [connection.host, connection.login, connection.schema, connection.extra, *given.values()]
    in_url = r"(?:^|//|[\s\"'])[^\s:/@\"']*:(?!//)([^\s\"']+)@"  # user:password@
    found = []
    for text in (text for text in texts if isinstance(text, str)):
        found += re.findall(in_url, text) + re.findall(r"pass\w*=([^\s&\"']+)", text)
    found += [str(value) for name, value in given.items() if "pass" in str(name) and value]
    return [*found, *(unquote(each) for each in found if "%" in each)]


def _wrong(conn_id: str, field: str, value: object, problem: str) -> StoreError:
    return StoreError(f"Connection {conn_id!r}: {field} = {value!r}: {problem}. {REMEDY}.")
