"""What a monitoring system listens with: a UDP socket for StatsD,
OTLP over HTTP for OpenTelemetry; on 127.0.0.1.
"""

from __future__ import annotations

import atexit
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

PREFIX = "airflow."
LINE = re.compile(
    r"(?P<name>[^,:]+)(?P<influx>[^:]*):(?P<value>[^|]+)\|(?P<kind>\w+)(\|#(?P<datadog>.*))?"
)


@dataclass(frozen=True)
class Point:
    """One figure as it came.

    ``kind``: gauge or counter; ``delta``: of a counter, that it is to be added.
    """

    name: str
    value: float
    kind: str
    tags: dict[str, str]
    unit: str = ""
    delta: bool = True


@dataclass
class Received:
    """What has come so far, of names that begin with ``zeus.``,
    and OpenTelemetry's for hardware.
    """

    port: int
    points: list[Point] = field(default_factory=list)
    caught_up: Callable[[], None] = lambda: None  # returns once all that was sent is here
    raw: list[str] = field(default_factory=list)  # StatsD: every line

    def add(self, point: Point) -> None:
        if point.name.startswith((f"{PREFIX}zeus.", "hw.")):
            self.points.append(point)

    def wait_for(self, name: str, most_s: float = 60.0) -> list[Point]:
        """The points of a name, once all that was sent is here, and one of them at least."""
        self.caught_up()
        until_s = time.monotonic() + most_s
        while not (found := self.of(name)):
            assert time.monotonic() < until_s, (
                f"no {name} came; there is {sorted({p.name for p in self.points})}"
            )
            time.sleep(0.02)
        return found

    def of(self, name: str) -> list[Point]:
        return [p for p in self.points if p.name == PREFIX + name]


@contextmanager
def statsd() -> Iterator[Received]:
    """Receives StatsD: plain, with tags after the name (InfluxDB), or at the end (Datadog)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        heard = threading.Event()

        def caught_up() -> None:
            heard.clear()
            ear.sendto(b"all", ear.getsockname())  # it comes after what came before
            assert heard.wait(60)

        received = Received(ear.getsockname()[1], caught_up=caught_up)

        def listen() -> None:
            while packet := ear.recv(65536):
                if packet == b"all":
                    heard.set()
                    continue
                for line in packet.decode().splitlines():
                    if line == "end":
                        return
                    received.raw.append(line)
                    if match := LINE.fullmatch(line):
                        received.add(_point(match))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield received
        finally:
            ear.sendto(b"end", ear.getsockname())
            thread.join(10)


def _point(match: re.Match[str]) -> Point:
    pairs = [pair.split("=", 1) for pair in match["influx"].split(",") if pair]
    pairs += [pair.split(":", 1) for pair in (match["datadog"] or "").split(",") if pair]
    kind = {"g": "gauge", "c": "counter"}.get(match["kind"], match["kind"])
    return Point(match["name"], float(match["value"]), kind, dict(pairs))


@contextmanager
def otlp() -> Iterator[Received]:
    """Receives OTLP over HTTP: what a collector's receiver gets,
    decoded by OpenTelemetry's own messages.
    """
    received = Received(0)

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = decompress(body)
            for point in _points(ExportMetricsServiceRequest.FromString(body)):
                received.add(point)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with serving(Collector) as port:
        received.port = port
        yield received


def _points(request: ExportMetricsServiceRequest) -> Iterator[Point]:
    for resource in request.resource_metrics:
        for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
            kind = metric.WhichOneof("data")
            if kind not in ("gauge", "sum"):
                continue
            data = getattr(metric, kind)
            delta = kind == "sum" and data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
            for p in data.data_points:
                tags = {a.key: a.value.string_value for a in p.attributes}
                value = float(getattr(p, str(p.WhichOneof("value"))))
                name = "gauge" if kind == "gauge" else "counter"
                yield Point(metric.name, value, name, tags, metric.unit, delta)


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """An HTTP server on 127.0.0.1; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def airflow_sends(kind: str, port: int, setenv: Callable[[str, str], None]) -> Iterator[None]:
    """This process's Stats as Airflow makes them in a task: ``kind`` is off, statsd,
    influx, datadog or otel.
    """
    from airflow.sdk._shared.observability.metrics.otel_logger import flush_otel_metrics
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils
    from opentelemetry import metrics

    on = {
        "statsd": ["statsd_on"],
        "influx": ["statsd_on", "statsd_influxdb_enabled"],
        "otel": ["otel_on"],
    }
    on |= {"datadog": ["statsd_datadog_enabled"], "off": []}
    for name in on[kind]:
        setenv(f"AIRFLOW__METRICS__{name.upper()}", "True")
    for name in ("STATSD_PORT", "OTEL_PORT"):
        setenv(f"AIRFLOW__METRICS__{name}", str(port))
    for name in ("STATSD_HOST", "OTEL_HOST"):
        setenv(f"AIRFLOW__METRICS__{name}", "127.0.0.1")
    setenv("AIRFLOW__METRICS__OTEL_INTERVAL_MILLISECONDS", "600000")
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    try:
        yield
    finally:
        if kind == "otel":
            flush()
            atexit.unregister(flush_otel_metrics)
            metrics.get_meter_provider().shutdown()  # type: ignore[attr-defined]
        stats.initialize(factory=_nothing(), export_legacy_names=True)


def _nothing() -> Any:
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    return NoStatsLogger


def flush() -> None:
    """What Airflow does at the end of a task's process:
    the OpenTelemetry SDK sends what it holds.
    """
    from opentelemetry import metrics

    provider: Any = metrics.get_meter_provider()
    if hasattr(provider, "force_flush"):
        provider.force_flush()
