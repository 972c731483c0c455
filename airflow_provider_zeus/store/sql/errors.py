"""Classify errors of a database or its driver, and hide in their texts what may be a password."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_OPTION = re.compile("[a-z_]+")  # names of libpq's options


def may_pass(error: Exception) -> bool:
    """Whether an error is temporary: no connection, no free slot, a lock or a timeout; not a name, a right, a schema.

    libpq has no SQLSTATE for a failed connection, only a text: the server's (FATAL) or its own.
    """
    cause = getattr(error, "orig", None) or error
    said, kinds = str(cause), {kind.__name__ for kind in type(cause).__mro__}
    if _state(cause) is None and kinds.isdisjoint(("OperationalError", "InterfaceError")):
        return False
    if type(cause).__module__.startswith("sqlite3"):
        return re.search("database( table)? is locked", said) is not None
    if (state := _state(cause)) is not None:  # connection lost; no memory or slot; shutting down; timeouts; locks
        return re.fullmatch("08...|53200|53300|57P0[123]|57014|25P0[34]|55P03|40001|40P01", state) is not None
    if "FATAL" in said:
        passing = "starting up|shutting down|recovery mode|not yet accepting|terminating connection"
        return no_slot(cause) or re.search(passing, said) is not None
    refused = "could not translate host name.*not known|SSL was required|certificate|does not support"
    return re.search(refused, said) is None


def no_slot(error: Exception) -> bool:
    """Whether the server has no free connection for this user (SQLSTATE 53300)."""
    full = "too many (clients|connections)|connection slots are reserved"
    return _state(error) == "53300" or re.search(full, str(error)) is not None


def connected(error: Exception) -> bool:
    """Whether the database answered a statement, so that host, database and user are correct."""
    state = _state(getattr(error, "orig", None) or error)
    return state is not None and not state.startswith(("08", "28", "3D"))  # no connection, user or database


def reached(said: str, host: str) -> bool:
    """Whether a driver's text shows that ``host`` is a host to which it tried to connect."""
    return f'connection to server at "{host}"' in said


def hidden(said: str, fields: Mapping[str, object]) -> str:
    """A driver's text with ``***`` for each value of a Connection's fields: any of them may be a password.

    A known host and a possible port stay. Text that the server quotes is hidden too: the server shortens long values,
    and writes ``_`` for ``-`` in names.
    """
    for name, value in fields.items():
        if "pass" in name and value:
            said = said.replace(str(value), "***")
    for secret in sorted(set(_suspects(said, fields)), key=len, reverse=True):
        said = said.replace(f'"{secret}"', '"***"')
        if len(secret) >= 5:  # a shorter one is hidden within quotes only
            said = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", said)
    known = {name for name in fields if _OPTION.fullmatch(name)}
    quoted = r'(server at |on socket )?"([^"]*)"'  # (text that marks an address, quoted text)
    return re.sub(quoted, lambda found: found[0] if found[1] or found[2] in known else '"***"', said)


def _suspects(said: str, fields: Mapping[str, object]) -> Iterator[str]:
    """Values, parts of values that are lists, and names that are no options."""
    for name, value in fields.items():
        text = str(value or "")
        proven = name == "host" and reached(said, text)
        if text and not proven and not is_port(value):
            yield from (part for part in (text, *re.split(r"[\s=,]+", text)) if part)
        if not _OPTION.fullmatch(name):
            yield name


def is_port(value: object) -> bool:
    """Whether a value can be a port number."""
    return isinstance(value, int) and 0 < value < 2**16


def _state(error: BaseException) -> str | None:
    """SQLSTATE, as psycopg or psycopg2 names it."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
