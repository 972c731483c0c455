"""OpenLineage's real provider sends the facet ``zeus_cost`` of every operator to a receiver on 127.0.0.1."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "airflow.providers.openlineage", reason="OpenLineage's provider is not installed"
)

from jsonschema import Draft202012Validator

import airflow_provider_zeus

SCHEMA = json.loads(
    (Path(airflow_provider_zeus.__file__).parent / "schemas/1-0-0/ZeusRunFacet.json").read_text()
)
ROOT = Path(__file__).parents[2]


class Receiver:
    """Takes events as a lineage server does."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        took = self.events

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = (
                    gzip.decompress(body)
                    if self.headers.get("Content-Encoding") == "gzip"
                    else body
                )
                took.append(json.loads(body))
                self.send_response(201)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def transport(self) -> str:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return json.dumps({"type": "http", "url": url, "endpoint": "api/v1/lineage", "timeout": 60})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.slow
def test_the_events_of_every_operator_carry_the_facet(
    airflow_home: Path, receiver: Receiver, tmp_path: Path
) -> None:
    own = {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": receiver.transport,
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "120",
    }
    command = [sys.executable, "-m", "tests.integration.lineage_dags", str(tmp_path)]
    env = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert "state failed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    ended = {
        event["job"]["name"].removeprefix("zeus_lineage."): (
            event["eventType"],
            event["run"]["facets"],
        )
        for event in receiver.events
        if event["eventType"] in ("COMPLETE", "FAIL")
        and event["job"]["name"].startswith("zeus_lineage.")
    }
    facets = {
        name: facets["zeus_cost"] for name, (_, facets) in ended.items() if "zeus_cost" in facets
    }
    assert set(facets) == {"decorated", "mapped", "fails", "command", "zeus_tell"}
    assert ended["fails"][0] == "FAIL"
    for name, facet in facets.items():
        Draft202012Validator(SCHEMA).validate(facet)
        assert facet["energySource"] == "simulated", name
        assert facet["energyJ"] > 0, name
    kept = {name: facet.get("batchSize") for name, facet in facets.items()}
    assert kept == {"decorated": 32, "mapped": 32, "fails": None, "command": 32, "zeus_tell": 32}
    assert facets["decorated"]["savedSource"] == "measured", "the default itself trained"
    assert facets["decorated"]["defaultBatchSize"] == 32
