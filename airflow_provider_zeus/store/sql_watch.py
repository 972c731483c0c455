"""A bound for calls of a PostgreSQL driver that holds where the server is stopped and its host still acknowledges.

libpq waits without an end for an answer. TCP's own time limits do not help there: the kernel of the server's host
answers for it. So each connection has a watch, a thread that shuts the connection's socket down when nothing has
happened over it for :data:`CALL_S`. The call that waits then returns with an error.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

CALL_S = 10.0  # without a sign of life of the server

_WATCH = "zeus_watch"  # where a connection's watch lies in its ``info``


class Watch:
    """Shuts a connection's socket down once it was not :meth:`alive` for :data:`CALL_S` seconds.

    It holds a descriptor of its own, so it never touches another connection that got the number of a closed one. Where
    no thread can be started there is no watch, and nothing fails.
    """

    def __init__(self, fileno: int) -> None:
        self.cut = False
        self._socket = socket.socket(fileno=os.dup(fileno))
        self._over = threading.Event()
        self.alive()
        try:
            threading.Thread(target=self._run, name="zeus-watch", daemon=True).start()
        except RuntimeError:
            self._socket.close()

    def alive(self) -> None:
        """Something has happened: a statement begins or ends, a row has come."""
        self._until_s = time.monotonic() + CALL_S

    def end(self) -> None:
        """Watch no longer."""
        self._over.set()

    def _run(self) -> None:
        with self._socket:
            while (left_s := self._until_s - time.monotonic()) > 0:
                if self._over.wait(left_s):
                    return
            self.cut = True
            with suppress(OSError):  # the server has closed it already
                self._socket.shutdown(socket.SHUT_RDWR)


def watch_all(engine: sa.Engine) -> None:
    """Give each connection of an engine its watch, from the moment it is made."""
    sa.event.listen(engine, "connect", _begin, insert=True)  # before SQLAlchemy asks the new connection something
    sa.event.listen(engine, "close", _end)
    for name in ("begin", "commit", "rollback", "before_cursor_execute", "after_cursor_execute"):
        sa.event.listen(engine, name, _alive)
    sa.event.listen(engine, "handle_error", _say_why)


def alive(connection: sa.Connection) -> None:
    """A row has come over a connection; nothing where it has no watch."""
    if (watch := _watch_of(connection)) is not None:
        watch.alive()


def be_patient(connection: sa.Connection) -> None:
    """Let this transaction's statements last as long as they like: a migration may have much to move."""
    if (watch := _watch_of(connection)) is not None:
        watch.end()
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)"
        )


def _begin(connection: Any, record: Any) -> None:
    record.info[_WATCH] = Watch(connection.fileno())


def _end(_connection: Any, record: Any) -> None:
    if _WATCH in record.info:
        record.info.pop(_WATCH).end()


def _alive(connection: sa.Connection, *_: Any) -> None:
    alive(connection)


def _say_why(context: Any) -> None:
    """In place of the driver's guess at what may have cut the connection."""
    if context.connection is not None and (watch := _watch_of(context.connection)) is not None and watch.cut:
        context.original_exception.args = (f"no answer for {CALL_S:g} s",)


def _watch_of(connection: sa.Connection) -> Watch | None:
    watch: Watch | None = None if connection.invalidated or connection.closed else connection.info.get(_WATCH)
    return watch
