"""Client of ``zeusd``, the Zeus project's daemon, by its HTTP routes on a Unix socket (zeusd of zeus 0.16).

It identifies GPUs by index and restores nothing itself: the guardian does. Standard library only: the guardian uses it.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from airflow_provider_zeus.power.limits.sidecar import left_s

ANSWER_S = 5.0  # for a whole request
TOKEN = "ZEUSD_TOKEN"  # noqa: S105  name of the environment variable that zeusd's own client reads too


class Zeusd:
    """The daemon at this socket, for the GPUs with these indices. Every method raises OSError with the reason."""

    def __init__(self, path: str, indices: Sequence[int], models: Sequence[str] = ()) -> None:
        self._path, self._indices, self._models = path, list(indices), list(models)

    def check(self) -> None:
        """Raise OSError where it may not set limits for this process, or has other GPUs than this process's driver."""
        found = self._json("GET", "/discover")
        groups, gpus = found.get("enabled_api_groups", []), found.get("gpus", [])
        if not isinstance(groups, list) or not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
            raise OSError(f"what listens at {self._path} is no zeusd: it names no API groups or GPUs")
        if "gpu-control" not in groups:
            raise OSError(f"zeusd at {self._path} does not set limits: start it with the API group gpu-control")
        models = [str(gpu.get("name")) for gpu in gpus]
        if self._models and models != self._models:  # a container that shows other GPUs, or in another order
            raise OSError(f"zeusd at {self._path} has the GPUs {models}, this process {self._models}: not the same")
        if found.get("auth_required"):
            self._json("GET", "/auth/whoami")

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W]."""
        gpus = ",".join(map(str, self._indices))
        query = urlencode({"gpu_ids": gpus, "power_limit_mw": str(round(limit_w * 1000)), "block": "true"})
        self._call("POST", f"/gpu/set_power_limit?{query}")

    def restore_w(self, limit_w: float) -> None:
        """Set the limit found [W] again."""
        self.set_limit_w(limit_w)

    def close(self) -> None:
        """Do nothing: there is no connection between requests."""

    def _json(self, method: str, path: str) -> Mapping[str, Any]:
        text = self._call(method, path)
        try:
            answer = json.loads(text)
            if not isinstance(answer, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            raise OSError(f"what listens at {self._path} is no zeusd: {error}") from error
        return answer

    def _call(self, method: str, path: str) -> bytes:
        """Make one HTTP request and return the body of the answer."""
        token = os.environ.get(TOKEN)
        client = http.client.HTTPConnection("localhost")
        try:
            with _TimedSocket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_S)
                connection.end_s = time.monotonic() + ANSWER_S
                connection.connect(self._path)
                client.sock = connection
                client.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
                response = client.getresponse()
                body = response.read(65536)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"zeusd at {self._path} cannot be reached: {error or type(error).__name__}") from error
        finally:
            client.close()
        if response.status == http.client.UNAUTHORIZED:
            raise OSError(f"zeusd at {self._path} takes no request without a valid token: set {TOKEN}")
        if response.status != http.client.OK:
            reason = body.decode("utf-8", "replace").strip()[:300] or "no reason"
            raise OSError(f"zeusd at {self._path} refused with HTTP status {response.status}: {reason}")
        return body


class _TimedSocket(socket.socket):
    """A socket with one time limit for everything that is read from it."""

    end_s = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive with the time that is left. Raises TimeoutError."""
        self.settimeout(left_s(self.end_s, ANSWER_S))
        return super().recv_into(buffer, nbytes, flags)
