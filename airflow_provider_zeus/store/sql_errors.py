"""What an error of a database or of its driver means: whether the same call may succeed some seconds later."""

from __future__ import annotations

import re

_PASSING = re.compile(  # SQLSTATE: connection lost; no memory or slot; shutting down; timeouts; locks; deadlocks
    "08...|53200|53300|57P0[123]|57014|25P0[34]|55P03|40001|40P01"
)
_NO_SLOT = re.compile("too many (clients|connections)|connection slots are reserved")
_SERVER_PASSING = re.compile("starting up|shutting down|recovery mode|not yet accepting|terminating connection")
_CLIENT_REFUSED = re.compile(r"could not translate host name.*not known|SSL was required|certificate|does not support")
_BUSY = re.compile("database( table)? is locked")


def may_pass(error: Exception) -> bool:
    """Whether an error is one of no connection, no free slot, a lock or a timeout: not of a name, a right, a schema.

    libpq gives no SQLSTATE for a connection that could not be made, only its text: of the server (FATAL) or its own.
    """
    cause = getattr(error, "orig", None) or error
    said, kinds = str(cause), {kind.__name__ for kind in type(cause).__mro__}
    if _state(cause) is None and kinds.isdisjoint(("OperationalError", "InterfaceError")):
        return False
    if type(cause).__module__.startswith("sqlite3"):
        return _BUSY.search(said) is not None
    if (state := _state(cause)) is not None:
        return _PASSING.fullmatch(state) is not None
    if "FATAL" in said:
        return no_slot(cause) or _SERVER_PASSING.search(said) is not None
    return _CLIENT_REFUSED.search(said) is None


def no_slot(error: Exception) -> bool:
    """Whether the server has no connection left for this user (SQLSTATE 53300)."""
    return _state(error) == "53300" or _NO_SLOT.search(str(error)) is not None


def _state(error: BaseException) -> str | None:
    """SQLSTATE, as psycopg or psycopg2 names it."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
