"""Airflow's app with our plugin, asked by many at once: inside one event loop,
or over real sockets.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.kit import ran

PATIENCE_S = 60.0  # of a test on a busy host


def client_of(app: Any, token: str) -> httpx.AsyncClient:
    """A logged-in client inside this event loop."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://testserver",
        headers={"Authorization": f"Bearer {token}"},
        timeout=PATIENCE_S,
    )


def in_one_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine."""
    asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so. Raises AssertionError after :data:`PATIENCE_S`."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s, "it never came true"
        await asyncio.sleep(0.02)


def filled(store: Store, path: Path, runs: int, **changes: Any) -> None:
    """So many runs of DAG ``d``: the first through the store, the rest copies of its row.

    ``changes``: of columns.
    """
    first = ran(store, 1, state=State.FAILED, reason="it died")
    rows = [
        flat(replace(first, number=n))
        | {
            "ti_id": f"ti-{n}",
            "run_id": f"run{n}",
            "told_seq": n,
            "asked_after_seq": n - 1,
            **changes,
        }
        for n in range(2, runs + 1)
    ]
    with transaction(engine_of(read_url(f"sqlite:///{path}")), write=True) as connection:
        connection.execute(sa.insert(schema.trial), rows)
        connection.execute(sa.update(schema.job).values(told_seq=runs, last_number=runs))


@contextmanager
def served(app: Any) -> Iterator[int]:
    """The app on a port of 127.0.0.1, by the server that Airflow uses."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="critical")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end_s = time.monotonic() + PATIENCE_S
    while not server.started:
        assert time.monotonic() < end_s, "the server did not start"
        time.sleep(0.02)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_S)


@contextmanager
def connected(port: int, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    """A connection to it.

    ``receive_bytes``: how much the kernel takes for a client that does not read.
    """
    with socket.socket() as sock:
        sock.settimeout(PATIENCE_S)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.connect(("127.0.0.1", port))
        yield sock


def head(method: str, path: str, **headers: str) -> bytes:
    """The first lines of a request; ``_`` in a header's name stands for ``-``."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: testserver\r\n{named}\r\n".encode()


def status_of(sock: socket.socket) -> int:
    """Status of the answer that comes next."""
    text = b""
    while b"\r\n" not in text:
        piece = sock.recv(4096)
        assert piece, f"no answer but {text!r}"
        text += piece
    return int(text.split()[1])
