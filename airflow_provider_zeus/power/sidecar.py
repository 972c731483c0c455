"""Client of ``docker/power_limit_sidecar.py``, which sets power limits as root for a process that is not.

The sidecar takes its client's connection and process for the training: when either ends it gives the limit found back.
Standard library only: the guardian uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

ANSWER_S = 5.0  # for a whole request: the driver's own call takes up to some 100 ms
AGAIN_S = 0.01  # between attempts, where it has too many clients
MOST_BYTES = 1024 * 1024  # of an answer

_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_connections() -> None:
    """In a forked child: where the sidecar sees no process behind it, the connection's end is the training's end."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_connections)


class Sidecar:
    """The sidecar at this socket, for these GPUs. Every method raises OSError: out of reach, or refused, and why."""

    def __init__(self, path: str, uuids: Sequence[str]) -> None:
        self._path, self._uuids = path, list(uuids)
        self._connection: socket.socket | None = None
        self._pid = os.getpid()

    def check(self) -> None:
        """Raises OSError where it does not serve these GPUs."""
        served = self._ask({"do": "limits"}).get("gpus")
        if not isinstance(served, dict):
            raise OSError(f"what listens at {self._path} is no power limit sidecar: it names no GPUs")
        missing = [uuid for uuid in self._uuids if uuid not in served]
        if missing:
            raise OSError(f"the sidecar at {self._path} does not serve {', '.join(missing)}; start it with --gpus all")

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W]; from here on they are this process's until it ends or closes."""
        self._ask({"do": "set", "gpus": self._uuids, "limit_w": limit_w})

    def restore_w(self, limit_w: float) -> None:
        """Give back what the sidecar found; it knows that limit itself."""
        self._ask({"do": "restore", "gpus": self._uuids})

    def close(self) -> None:
        """Let go: the sidecar gives back what is not given back yet."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            end_s = time.monotonic() + ANSWER_S
            while (answer := self._exchange(request, end_s)) is None:
                time.sleep(min(AGAIN_S, left_s(end_s, ANSWER_S)))
            said = json.loads(answer)
            if not isinstance(said, dict):
                raise ValueError("not a JSON object")
        except OSError as error:
            self.close()
            raise OSError(f"the sidecar at {self._path} cannot be reached: {error}") from error
        except (ValueError, RecursionError) as error:
            self.close()
            raise OSError(f"what listens at {self._path} is no power limit sidecar: {error}") from error
        if said.get("ok") is not True:
            raise OSError(f"the sidecar at {self._path} refused: {said.get('error', said)}")
        return said

    def _exchange(self, request: Mapping[str, Any], end_s: float) -> bytes | None:
        """Its answer; None where it closed the connection: restarted since, or it needed our place for another."""
        try:
            return self._answer(request, end_s)
        except (ConnectionResetError, BrokenPipeError):
            self.close()
            return None

    def _answer(self, request: Mapping[str, Any], end_s: float) -> bytes:
        connection = self._connected(end_s)
        connection.settimeout(left_s(end_s, ANSWER_S))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            connection.settimeout(left_s(end_s, ANSWER_S))
            part = connection.recv(65536)
            if not part:
                raise ConnectionResetError("it closed the connection")
            answer += part
            if len(answer) > MOST_BYTES:
                raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
        return answer

    def _connected(self, end_s: float) -> socket.socket:
        if self._pid != os.getpid():
            self._connection, self._pid = None, os.getpid()  # the parent's
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(ANSWER_S)
            with contextlib.ExitStack() as undo:
                undo.callback(connection.close)
                while not is_connected(connection, self._path):
                    time.sleep(min(AGAIN_S, left_s(end_s, ANSWER_S)))
                undo.pop_all()
            _connections.add(connection)
            self._connection = connection
        return self._connection


def is_connected(connection: socket.socket, path: str) -> bool:
    """Connect; False where too many others wait for the sidecar to take them, as in a flood of connections."""
    try:
        connection.connect(path)
    except BlockingIOError:
        return False
    return True


def left_s(end_s: float, of_s: float) -> float:
    """Seconds left until ``end_s``, by ``time.monotonic()``. Raises TimeoutError where all ``of_s`` are over."""
    seconds = end_s - time.monotonic()
    if seconds <= 0:
        raise TimeoutError(f"no answer within {of_s:g} s")
    return seconds
