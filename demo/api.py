"""A small client of Airflow's REST API. Standard library only."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from demo.settings import DemoError

TIMEOUT_S = 60.0
# SQLite takes one writer at a time: a call that met another one changed nothing
TRIES = 10
PAUSE_S = 1.0
# 127.0.0.1 is never behind a proxy
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Api:
    """Calls to one api-server; a token is fetched at the first call and whenever it has expired."""

    def __init__(self, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = url
        self._sleep = sleep
        self._token: str | None = None

    def get(self, path: str, **query: Any) -> Any:
        """GET a path below ``/api/v2`` as JSON; None for status 404."""
        return self._call("GET", path + ("?" + urlencode(query) if query else ""))

    def post(self, path: str, body: Any) -> Any:
        """POST JSON to a path below ``/api/v2``."""
        return self._call("POST", path, body)

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG."""
        self._call("PATCH", f"dags/{dag_id}", {"is_paused": False})

    def healthy(self) -> dict[str, str]:
        """Return the status of each part of Airflow (``scheduler``, ...);
        empty while the server does not answer.
        """
        try:
            answer = self._send("GET", "/api/v2/monitor/health", None, None)
        except (urllib.error.URLError, OSError):
            return {}
        return {
            part: state["status"] for part, state in answer.items() if state and state.get("status")
        }

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        for left in reversed(range(TRIES)):
            try:
                return self._send(method, f"/api/v2/{path}", body, self._token or self._login())
            except urllib.error.HTTPError as error:
                said = error.read()
                if error.code == 404 and method == "GET":
                    return None
                if error.code == 401 and left == TRIES - 1:
                    self._token = None
                elif error.code == 500 and b'"Database error"' in said and left:
                    self._sleep(PAUSE_S)
                else:
                    raise DemoError(
                        f"{method} {path} was refused: {error.code} {said[:300]!r}"
                    ) from None
            except (urllib.error.URLError, OSError) as error:
                raise DemoError(
                    f"The api-server at {self.url} does not answer ({error})."
                ) from None
        return None

    def _login(self) -> str:
        self._token = str(self._send("GET", "/auth/token", None, None)["access_token"])
        return self._token

    def _send(self, method: str, path: str, body: Any, token: str | None) -> Any:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)


def part(text: str) -> str:
    """Quote a run id as one segment of a path."""
    return quote(text, safe="")
