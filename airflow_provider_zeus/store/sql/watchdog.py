"""A time limit for calls of a PostgreSQL driver that also works if the server is stopped but its
host still answers.

libpq waits for an answer without a limit, and TCP's time limits do not help while the server's
kernel acknowledges packets. So each connection has a watch: a thread that shuts the connection's
socket down after :data:`CALL_S` without activity. The waiting call then returns with an error.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

CALL_S = 10.0  # a server that says nothing for so long is gone

_WATCH = "zeus_watch"  # kept by the pool's record, so that it ends with the connection


class Watch:
    """Shuts a connection's socket down after :data:`CALL_S` seconds without :func:`alive`.

    It duplicates the descriptor, so it never closes another connection that reuses the number.
    If no thread can be started there is no watch, and nothing fails.
    """

    def __init__(self, fileno: int) -> None:
        self.cut = False
        self._socket = socket.socket(fileno=os.dup(fileno))
        self.over = threading.Event()
        self.until_s = time.monotonic() + CALL_S
        try:
            threading.Thread(target=self._run, name="zeus-watch", daemon=True).start()
        except RuntimeError:
            self._socket.close()

    def _run(self) -> None:
        with self._socket:
            left_s = CALL_S
            while left_s > 0:
                if self.over.wait(left_s):
                    return
                left_s = self.until_s - time.monotonic()
            self.cut = True
            with suppress(OSError):  # the server has already closed it
                self._socket.shutdown(socket.SHUT_RDWR)


def watch_all(engine: sa.Engine) -> None:
    """Give each new connection of an engine a watch."""
    # Before SQLAlchemy's own first statements, which may hang, too.
    sa.event.listen(engine, "connect", _begin, insert=True)
    sa.event.listen(engine, "close", _end)
    for name in ("begin", "commit", "rollback", "before_cursor_execute", "after_cursor_execute"):
        sa.event.listen(engine, name, lambda connection, *_: alive(connection))
    sa.event.listen(engine, "handle_error", _explain)


def alive(connection: sa.Connection) -> None:
    """Restart the time limit of a watched connection: a statement begins or ends, or a row has
    arrived.
    """
    watch = _watch_of(connection)
    if watch is not None:
        watch.until_s = time.monotonic() + CALL_S


def remove_time_limits(connection: sa.Connection) -> None:
    """Remove the time limits of this transaction on PostgreSQL: a migration may take long."""
    watch = _watch_of(connection)
    if watch is not None:
        watch.over.set()
    connection.exec_driver_sql(
        "SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)"
    )


def _begin(connection: Any, record: Any) -> None:
    record.info[_WATCH] = Watch(connection.fileno())


def _end(_connection: Any, record: Any) -> None:
    if _WATCH in record.info:
        record.info.pop(_WATCH).over.set()


def _explain(context: Any) -> None:
    """Replace the driver's guess about why the connection was closed."""
    watch = None if context.connection is None else _watch_of(context.connection)
    if watch is not None and watch.cut:
        context.original_exception.args = (f"no answer for {CALL_S:g} s",)


def _watch_of(connection: sa.Connection) -> Watch | None:
    if connection.invalidated or connection.closed:
        return None
    watch: Watch | None = connection.info.get(_WATCH)
    return watch
