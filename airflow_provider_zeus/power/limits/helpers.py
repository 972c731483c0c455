"""Helpers: processes on a Unix socket that set power limits for a process that may not.

Our own is the sidecar (:mod:`.sidecar_server`); when its client's connection or process ends, it
gives the limit found back. The other is ``zeusd``, the Zeus project's daemon (zeusd of zeus 0.16).
That one identifies GPUs by index and restores nothing itself: the guardian does. The guardian opens
the same helper from the record of a limit: standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from airflow_provider_zeus.errors import DeviceError

# Two daemons speak two protocols: this prefix tells a zeusd's socket from a sidecar's.
ZEUSD = "zeusd:"
TOKEN = "ZEUSD_TOKEN"  # noqa: S105  an environment variable, of zeusd's own client too
ANSWER_S = 5.0  # for a whole request: the driver's own call takes up to some 100 ms
AGAIN_S = 0.01  # a sidecar with too many clients frees a place within moments

_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
# In a forked child they are closed: to a sidecar that cannot see processes, their end ends the
# training.
os.register_at_fork(after_in_child=lambda: [*map(socket.socket.close, list(_connections))])


class SidecarClient:
    """Client of the sidecar at this socket, for these GPUs.

    Every method raises OSError with the reason.
    """

    def __init__(self, path: str, uuids: Sequence[str]) -> None:
        self._path = path
        self._uuids = list(uuids)
        self._connection: socket.socket | None = None
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise OSError if it does not serve these GPUs."""
        # Any program may listen at a path.
        served = self._ask({"do": "limits"}).get("gpus")
        if not isinstance(served, dict):
            raise OSError(
                f"what listens at {self._path} is no power limit sidecar: it names no GPUs"
            )
        missing = [uuid for uuid in self._uuids if uuid not in served]
        if missing:
            raise OSError(
                f"the sidecar at {self._path} does not serve {', '.join(missing)}; start it with "
                "--gpus all"
            )

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W].

        This process holds the GPUs until it ends or closes the connection.
        """
        self._ask({"do": "set", "gpus": self._uuids, "limit_w": limit_w})

    def restore_w(self, limit_w: float) -> None:
        """Have the limit found restored; ``limit_w`` is ignored, since the sidecar knows it."""
        self._ask({"do": "restore", "gpus": self._uuids})

    def close(self) -> None:
        """Close the connection; the sidecar then gives back the limits that it still holds."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer, with a new connection if the sidecar closed the old
        one.
        """
        try:
            end_s = time.monotonic() + ANSWER_S
            text: bytes | None = None
            # A sidecar that restarts closes its connections: the request is sent again until its
            # time is over.
            while text is None:
                try:
                    text = self._exchange(json.dumps(request).encode() + b"\n", end_s)
                except (ConnectionResetError, BrokenPipeError):
                    # It restarted, or gave this place to another client: neither is a refusal.
                    self.close()
                    time.sleep(min(AGAIN_S, left_s(end_s)))
            answer = _parsed(text)
        except OSError as error:
            self.close()
            raise OSError(f"the sidecar at {self._path} cannot be reached: {error}") from error
        except (ValueError, RecursionError) as error:
            self.close()
            raise OSError(
                f"what listens at {self._path} is no power limit sidecar: {error}"
            ) from error
        # Whatever else it says, only this counts as granted.
        if answer.get("ok") is not True:
            raise OSError(f"the sidecar at {self._path} refused: {answer.get('error', answer)}")
        return answer

    def _exchange(self, line: bytes, end_s: float) -> bytes:
        """Send a line and return the answer's, over a connection that is made if there is none."""
        if self._pid != os.getpid():
            self._connection = None  # a forked child must not speak on its parent's connection
            self._pid = os.getpid()
        if self._connection is None:
            self._connection = self._connected(end_s)
        connection = self._connection
        connection.settimeout(left_s(end_s))
        connection.sendall(line)
        answer = b""
        most = 1024 * 1024  # bytes: whatever listens there must not fill this process's memory
        while not answer.endswith(b"\n"):
            connection.settimeout(left_s(end_s))
            part = connection.recv(65536)
            if not part:
                raise ConnectionResetError("it closed the connection")
            answer += part
            if len(answer) > most:
                raise ValueError(f"its answer is longer than {most} bytes")
        return answer

    def _connected(self, end_s: float) -> socket.socket:
        """A new connection. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_S)
        try:
            while True:
                try:
                    connection.connect(self._path)
                    _connections.add(connection)
                    return connection
                except BlockingIOError:  # too many clients wait to be accepted, which soon passes
                    time.sleep(min(AGAIN_S, left_s(end_s)))
        except BaseException:
            connection.close()
            raise


@dataclass
class ZeusdClient:
    """Client of the zeusd at this socket, for GPUs with these indices.

    :param models: of all GPUs, as this process's driver lists them; empty: they are not compared.

    Every method raises OSError with the reason.
    """

    path: str
    indices: Sequence[int]
    models: Sequence[str] = ()

    def check(self) -> None:
        """Raise OSError if it may not set limits for this process, or has other GPUs than this
        process's driver.
        """
        answer = self._json("GET", "/discover")
        groups = answer.get("enabled_api_groups", [])
        gpus = answer.get("gpus", [])
        is_list = isinstance(gpus, list) and all(isinstance(gpu, dict) for gpu in gpus)
        if not is_list or not isinstance(groups, list):
            raise OSError(
                f"what listens at {self.path} is no zeusd: it names no API groups or GPUs"
            )
        # zeusd may be started to measure alone.
        if "gpu-control" not in groups:
            raise OSError(
                f"zeusd at {self.path} does not set limits: start it with the API group gpu-control"
            )
        # zeusd counts GPUs by index, which a container may renumber.
        models = [str(gpu.get("name")) for gpu in gpus]
        # With other GPUs, or in another order, an index would change the limit of a stranger.
        if self.models and models != list(self.models):
            raise OSError(
                f"zeusd at {self.path} has the GPUs {models}, this process {list(self.models)}: "
                "not the same"
            )
        if answer.get("auth_required"):
            self._json("GET", "/auth/whoami")

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W]."""
        gpus = ",".join(map(str, self.indices))
        query = urlencode(
            {"gpu_ids": gpus, "power_limit_mw": str(round(limit_w * 1000)), "block": "true"}
        )
        self._call("POST", f"/gpu/set_power_limit?{query}")

    restore_w = set_limit_w  # it knows no limit found: that is set like any other

    def close(self) -> None:
        """Do nothing: there is no connection between requests."""

    def _json(self, method: str, path: str) -> Mapping[str, Any]:
        text = self._call(method, path)
        try:
            return _parsed(text)
        except (ValueError, RecursionError) as error:
            raise OSError(f"what listens at {self.path} is no zeusd: {error}") from error

    def _call(self, method: str, path: str) -> bytes:
        """Make one HTTP request and return the body of the answer."""
        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The name fills the Host header alone: the socket below is connected to zeusd.
        client = http.client.HTTPConnection("localhost")
        try:
            with _TimedSocket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_S)
                connection.end_s = time.monotonic() + ANSWER_S
                connection.connect(self.path)
                client.sock = connection
                client.request(method, path, headers=headers)
                response = client.getresponse()
                body = response.read(65536)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(
                f"zeusd at {self.path} cannot be reached: {error or type(error).__name__}"
            ) from error
        finally:
            client.close()
        # The usual mistake, for which the status alone would not name the variable to set.
        if response.status == http.client.UNAUTHORIZED:
            raise OSError(
                f"zeusd at {self.path} takes no request without a valid token: set {TOKEN}"
            )
        if response.status != http.client.OK:
            reason = body.decode("utf-8", "replace").strip()[:300] or "no reason"
            raise OSError(
                f"zeusd at {self.path} refused with HTTP status {response.status}: {reason}"
            )
        return body


class _TimedSocket(socket.socket):
    """A socket with one time limit for everything that is read from it."""

    end_s = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive with the time that is left. Raises TimeoutError."""
        self.settimeout(left_s(self.end_s))
        return super().recv_into(buffer, nbytes, flags)


LimitHelper = SidecarClient | ZeusdClient


def helper_at(power_socket: str, uuids: Sequence[str]) -> tuple[dict[str, Any], LimitHelper]:
    """Open the helper for the GPUs with these UUIDs and check that it sets their limits.

    :param power_socket: ``[zeus] power_socket``.

    Returns its description (plain JSON, for :func:`open_helper` in any process) and its client.
    Raises DeviceError with the reason.
    """
    # Here: the guardian imports this module too, and starts sooner without it.
    from airflow_provider_zeus.power.nvml.visible import all_gpus

    gpus = all_gpus()
    description: dict[str, Any] = {"kind": "sidecar", "path": power_socket, "uuids": list(uuids)}
    if power_socket.startswith(ZEUSD):
        indices = [index for index, gpu in enumerate(gpus) if gpu.uuid in uuids]
        models = [gpu.model for gpu in gpus]
        path = power_socket.removeprefix(ZEUSD)
        description = {"kind": "zeusd", "path": path, "indices": indices, "models": models}
    helper = open_helper(description)
    try:
        helper.check()
    except OSError as error:
        raise DeviceError(f"{error} ([zeus] power_socket)") from error
    return description, helper


def open_helper(description: Mapping[str, Any]) -> LimitHelper:
    """Make the client that a description names, without a request.

    Raises ValueError, KeyError: not a description.
    """
    if description["kind"] == "sidecar":
        return SidecarClient(description["path"], description["uuids"])
    if description["kind"] == "zeusd":
        return ZeusdClient(description["path"], description["indices"], description["models"])
    raise ValueError(f"unknown kind of helper {description['kind']!r} in a limit record")


def left_s(end_s: float) -> float:
    """Seconds left of a request until ``end_s``, by ``time.monotonic()``.

    Raises TimeoutError: they have passed.
    """
    seconds = end_s - time.monotonic()
    if seconds <= 0:
        raise TimeoutError(f"no answer within {ANSWER_S:g} s")
    return seconds


def _parsed(text: bytes) -> dict[str, Any]:
    """The JSON object of an answer. Raises ValueError, RecursionError."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("not a JSON object")
    return answer
