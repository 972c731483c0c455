"""Client of the sidecar (:mod:`.sidecar_server`), which sets power limits as root for a process that is not root.

When its client's connection or process ends, the sidecar gives the limit found back. Standard library only: the
guardian uses it.
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
AGAIN_S = 0.01  # between attempts while the sidecar has too many clients
MOST_BYTES = 1024 * 1024  # of an answer

_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_connections() -> None:
    """Close the connections in a forked child: to a sidecar that cannot see processes, their end ends the training."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_connections)


class Sidecar:
    """Client of the sidecar at this socket, for these GPUs. Every method raises OSError with the reason."""

    def __init__(self, path: str, uuids: Sequence[str]) -> None:
        self._path, self._uuids = path, list(uuids)
        self._connection: socket.socket | None = None
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise OSError where it does not serve these GPUs."""
        served = self._ask({"do": "limits"}).get("gpus")
        if not isinstance(served, dict):
            raise OSError(f"what listens at {self._path} is no power limit sidecar: it names no GPUs")
        missing = [uuid for uuid in self._uuids if uuid not in served]
        if missing:
            raise OSError(f"the sidecar at {self._path} does not serve {', '.join(missing)}; start it with --gpus all")

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W]. This process holds the GPUs until it ends or closes the connection."""
        self._ask({"do": "set", "gpus": self._uuids, "limit_w": limit_w})

    def restore_w(self, limit_w: float) -> None:
        """Have the limit found restored; ``limit_w`` is ignored, since the sidecar knows it."""
        self._ask({"do": "restore", "gpus": self._uuids})

    def close(self) -> None:
        """Close the connection; the sidecar then gives back what is not given back yet."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer, with a new connection where the sidecar closed the old one."""
        try:
            end_s = time.monotonic() + ANSWER_S
            text: bytes | None = None
            while text is None:
                try:
                    text = self._exchange(json.dumps(request).encode() + b"\n", end_s)
                except (ConnectionResetError, BrokenPipeError):  # restarted, or it gave this place to another client
                    self.close()
                    time.sleep(min(AGAIN_S, left_s(end_s, ANSWER_S)))
            answer = json.loads(text)
            if not isinstance(answer, dict):
                raise ValueError("not a JSON object")
        except OSError as error:
            self.close()
            raise OSError(f"the sidecar at {self._path} cannot be reached: {error}") from error
        except (ValueError, RecursionError) as error:
            self.close()
            raise OSError(f"what listens at {self._path} is no power limit sidecar: {error}") from error
        if answer.get("ok") is not True:
            raise OSError(f"the sidecar at {self._path} refused: {answer.get('error', answer)}")
        return answer

    def _exchange(self, line: bytes, end_s: float) -> bytes:
        connection = self._connected(end_s)
        connection.settimeout(left_s(end_s, ANSWER_S))
        connection.sendall(line)
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
        if self._connection is not None:
            return self._connection
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(ANSWER_S)
            while True:
                try:
                    connection.connect(self._path)
                    break
                except BlockingIOError:  # too many other clients wait to be accepted
                    time.sleep(min(AGAIN_S, left_s(end_s, ANSWER_S)))
            undo.pop_all()
        _connections.add(connection)
        self._connection = connection
        return connection


def left_s(end_s: float, of_s: float) -> float:
    """Seconds left until ``end_s``, by ``time.monotonic()``. Raises TimeoutError: all ``of_s`` seconds have passed."""
    seconds = end_s - time.monotonic()
    if seconds <= 0:
        raise TimeoutError(f"no answer within {of_s:g} s")
    return seconds
