"""The client of Airflow's REST API, against a server that answers as Airflow's does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from demo.api import PAUSE_S, TRIES, Api
from demo.settings import DemoError

BUSY = (
    500,
    {"detail": {"reason": "Database error", "statement": "hidden", "message": "Serious error"}},
)
BROKEN = (500, {"detail": "An error occurred while trying to deserialize Dag"})
EXPIRED = (401, {"detail": "Invalid JWT token"})
MADE = (200, {"dag_run_id": "manual__1"})


class Server:
    """Answers calls below ``/api/v2`` with ``answers``, one after the other,
    the last one for good.
    """

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.calls: list[str] = []
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                self.calls.append(handler.path)
                token = handler.path == "/auth/token"
                code, body = (
                    (200, {"access_token": "t"})
                    if token
                    else left.pop(0)
                    if len(left) > 1
                    else left[0]
                )
                data = json.dumps(body).encode()
                handler.send_response(code)
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data)

            def do_POST(handler) -> None:
                handler.rfile.read(int(handler.headers["Content-Length"]))
                handler.do_GET()

            def log_message(self, *_: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Server] = []

    def start(*answers: tuple[int, Any]) -> Server:
        servers.append(Server(*answers))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def test_a_call_that_met_another_writer_is_made_again(serve: Any) -> None:
    server = serve(BUSY, BUSY, MADE)
    slept = []
    assert Api(server.url, slept.append).post("dags/d/dagRuns", {})["dag_run_id"] == "manual__1"
    assert slept == [PAUSE_S, PAUSE_S]


def test_a_database_that_stays_busy_is_said(serve: Any) -> None:
    server = serve(BUSY)
    slept = []
    with pytest.raises(DemoError, match=r"POST dags/d/dagRuns was refused: 500 .*Database error"):
        Api(server.url, slept.append).post("dags/d/dagRuns", {})
    assert len(slept) == TRIES - 1


def test_any_other_fault_of_the_server_is_said_at_once(serve: Any) -> None:
    server = serve(BROKEN)
    slept = []
    with pytest.raises(DemoError, match=r"500 .*deserialize"):
        Api(server.url, slept.append).get("dags/d")
    assert not slept


def test_an_expired_token_is_fetched_anew_once(serve: Any) -> None:
    server = serve(MADE, EXPIRED, MADE, EXPIRED)
    api = Api(server.url)
    api.get("a")
    assert api.get("b") == MADE[1]
    assert server.calls.count("/auth/token") == 2
    with pytest.raises(DemoError, match="401"):
        api.get("c")


def test_what_is_not_there_is_none(serve: Any) -> None:
    assert Api(serve((404, {"detail": "no"})).url).get("dags/d") is None
