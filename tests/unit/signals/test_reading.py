"""Series behind Connections: services that answer, that lie and that hang, files, tariffs; and what a run follows."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.hooks.zeus_signal import ZeusSignalHook
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.signals import reading as module
from airflow_provider_zeus.signals import service as service_module
from airflow_provider_zeus.signals.hours import read_signal
from airflow_provider_zeus.signals.reading import BACK_S, followed, signal_series
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import Clock, DictPort

HOUR_S = 3600.0
DAY_S = 86_400.0
TARIFF = {
    "timezone": "UTC",
    "unit": "EUR/kWh",
    "default": 0.3,
    "rules": [{"hours": "22-06", "value": 0.2}],
}


class Service:
    """A service on 127.0.0.1. ``answer``: what it says, or how it fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answer: Any = self.hourly
        self.is_cut = False  # its answer ends too early
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                said = service.answer(self.path)
                status, body = said if isinstance(said, tuple) else (200, said)
                self.send_response(status)
                if service.is_cut:
                    self.send_header("Content-Length", str(2 * len(body)))
                if status in (301, 302):
                    self.send_header("Location", body)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def hourly(path: str) -> str:
        """As energy-charts answers: EUR/MWh by the hour, of the span that was asked for."""
        asked = parse_qs(urlsplit(path).query)
        from datetime import datetime

        start, end = (
            datetime.fromisoformat(asked[k][0].replace("Z", "+00:00")).timestamp()
            for k in ("start", "end")
        )
        times = [start + i * HOUR_S for i in range(round((end - start) / HOUR_S))]
        return json.dumps(
            {"unix_seconds": times, "price": [100.0 + i % 24 for i, _ in enumerate(times)]}
        )


@pytest.fixture(autouse=True)
def services_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__SIGNAL_ALLOW_LOCAL", "True")


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.server.shutdown()
    found.server.server_close()


def define(
    monkeypatch: pytest.MonkeyPatch, conn_id: str, host: str = "", password: str = "", **extra: Any
) -> None:
    conn = {"conn_type": "zeus_signal", "host": host, "password": password, "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(conn))


def job(**changes: Any) -> ZeusJob:
    given = {
        "batch_sizes": [32],
        "default_batch_size": 32,
        "target": "acc >= 0.9",
        "max_epochs": 3,
        "follow": "price",
    }
    return ZeusJob(**{**given, **changes})


NOW_S = time.time()


def test_a_preset_is_asked_once_for_the_span_with_its_zone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    series = signal_series("price", NOW_S - DAY_S, NOW_S)
    ((path, _),) = service.asked
    assert path.startswith("/price?bzn=DE-LU&start=2")
    assert (len(series.steps), series.unit.name) == (24, "EUR/kWh")
    assert series.steps[0].value == pytest.approx(0.1), "EUR/MWh became EUR/kWh"


def test_a_key_is_sent_in_its_header_and_never_said(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout = {
        "times": "$.unix_seconds",
        "values": "$.price",
        "unit": "g/kWh",
        "key_header": "auth-token",
    }
    url = service.url + "/{zone}?start={start}&end={end}&key=in-the-address"
    define(monkeypatch, "my_signal", password="s3cret", url=url, zone="DE", **layout)
    assert len(signal_series("my_signal", NOW_S - DAY_S, NOW_S).steps) == 24
    assert service.asked[0][1]["auth-token"] == "s3cret"
    service.answer = lambda path: (403, "no")
    assert followed(job(follow="my_signal")) is None
    assert "my_signal" in caplog.text
    assert "docs/levers/signals.md" in caplog.text
    assert "s3cret" not in caplog.text
    assert "in-the-address" not in caplog.text


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (301, "it redirects"),
        (400, "its zone, span or path"),
        (401, "the key is refused"),
        (403, "the key does not cover"),
        (404, "nothing at its address"),
        (422, "its zone, span or path"),
        (429, "too many requests"),
        (503, "the service itself is at fault"),
    ],
)
@pytest.mark.parametrize("by_proxy", [False, True])
def test_how_a_service_refuses_is_told_apart(
    service: Service, monkeypatch: pytest.MonkeyPatch, status: int, named: str, by_proxy: bool
) -> None:
    define(monkeypatch, "zeus_carbon", service.url, "s3cret", preset="electricity-maps", zone="DE")
    if by_proxy:
        monkeypatch.setenv("http_proxy", service.url)
        monkeypatch.setenv("no_proxy", "")
    service.answer = lambda path: (status, "http://elsewhere/s3cret")
    with pytest.raises(SignalError, match=rf"gave no answer \(HTTP {status}: .*{named}") as error:
        signal_series("carbon", NOW_S - DAY_S, NOW_S)
    assert "s3cret" not in str(error.value)
    assert "elsewhere" not in str(error.value)


@pytest.mark.parametrize("by_proxy", [False, True])
def test_an_answer_that_was_cut_is_none(
    service: Service, monkeypatch: pytest.MonkeyPatch, by_proxy: bool
) -> None:
    """Half a CSV file would be a series as well."""
    define(monkeypatch, "my_signal", url=service.url, times="time", values="value", unit="g/kWh")
    if by_proxy:
        monkeypatch.setenv("http_proxy", service.url)
        monkeypatch.setenv("no_proxy", "")
    service.answer = lambda path: "time,value\n2026-01-05T00:00Z,1\n2026-01-05T01:00Z,1\n"
    assert len(signal_series("my_signal", NOW_S - DAY_S, NOW_S).steps) == 2
    service.is_cut = True
    with pytest.raises(SignalError, match=r"gave no answer \(IncompleteRead\)"):
        signal_series("my_signal", NOW_S - DAY_S, NOW_S)


def test_what_a_service_stops_telling_is_said_while_what_is_kept_counts(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    clock = Clock(NOW_S)
    keeper = VariableStore(DictPort(), now=clock)
    first = signal_series("price", NOW_S - DAY_S, NOW_S, keeper)
    for answer, named in (
        ('{"unix_seconds": [], "price": []}', "an empty list"),
        ((429, ""), "too many requests"),
    ):
        clock.t += HOUR_S
        service.answer = lambda path, answer=answer: answer
        assert signal_series("price", NOW_S - DAY_S, NOW_S, keeper).steps[-1] == first.steps[-1]
        assert named in caplog.text


def test_a_redirect_takes_the_key_nowhere(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, "zeus_carbon", service.url, "s3cret", preset="electricity-maps", zone="DE")
    service.answer = lambda path: (302, service.url + "/elsewhere")
    with pytest.raises(SignalError, match="gave no answer"):
        signal_series("carbon", NOW_S - DAY_S, NOW_S)
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("<html>", "no JSON"),
        ("{}", "leads nowhere"),
        ('{"unix_seconds": [1, 2], "price": [1]}', "different lengths"),
        ('{"unix_seconds": [], "price": []}', "an empty list"),
        ('{"unix_seconds": [1, 2], "price": [3, 4]}', "of the week before now is missing"),
        ("9" * 9_000_000, "too long"),
    ],
)
def test_nonsense_is_named_and_the_run_trains_without(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: str,
    problem: str,
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    service.answer = lambda path: answer
    with caplog.at_level(logging.WARNING):
        assert followed(job()) is None
    assert problem in caplog.text
    with pytest.raises(SignalError, match=problem):
        followed(job(strict=True))


def test_a_service_that_hangs_is_not_waited_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    monkeypatch.setattr(module, "ALL_S", 0.3)
    over = threading.Event()
    service.answer = lambda path: "{}" if over.wait(60) else ""
    begun_s = time.monotonic()
    try:
        assert followed(job()) is None
    finally:
        over.set()
    assert time.monotonic() - begun_s < 30.0


def test_what_takes_long_to_follow_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", json.dumps(TARIFF))
    monkeypatch.setattr(module, "ALL_S", 0.3)
    over = threading.Event()
    monkeypatch.setattr(module.Followed, "of", lambda *_: over.wait(60))
    begun_s = time.monotonic()
    try:
        with pytest.raises(SignalError, match="TimeoutError"):
            followed(job(strict=True))
    finally:
        over.set()
    assert time.monotonic() - begun_s < 30.0


def test_who_needs_the_past_alone_asks_for_what_the_others_need(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    clock = Clock(NOW_S)
    keeper = VariableStore(DictPort(), now=clock)
    assert isinstance(read_signal("price", NOW_S - DAY_S, NOW_S, keeper), Series)
    clock.t += 300.0
    series = signal_series("price", NOW_S - BACK_S, NOW_S + DAY_S, keeper)
    assert series.at(NOW_S + HOUR_S) is not None, "a start is planned by it"
    ended = read_signal("price", NOW_S - HOUR_S, NOW_S + 300.0, keeper)
    assert isinstance(ended, Series)
    assert ended.mean(NOW_S - HOUR_S, NOW_S + 300.0) is not None, (
        "a run that ends minutes later has its price"
    )
    assert len(service.asked) == 1


def test_a_run_of_more_than_a_week_has_the_prices_of_all_its_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", json.dumps(TARIFF))
    start_s = NOW_S - BACK_S - 3 * DAY_S
    series = read_signal("price", start_s, NOW_S, None)
    assert isinstance(series, Series)
    assert series.mean(start_s, NOW_S) is not None


def test_a_service_is_asked_for_a_week_at_least_and_for_all_of_a_longer_run(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    for since_s in (NOW_S - HOUR_S, NOW_S - BACK_S - DAY_S):
        keeper = VariableStore(DictPort(), now=Clock(NOW_S))
        series = signal_series("price", since_s, NOW_S, keeper)
        assert series.at(NOW_S - 7 * DAY_S) is not None, "a run that follows it needs a week"
        assert series.mean(since_s, NOW_S) is not None


def test_what_a_run_follows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    found = followed(job())
    assert found is not None
    assert (found.signal, found.mean) == ("price", pytest.approx(0.1115, rel=0.01))
    assert found.ratio(time.time()) == pytest.approx(1.0, rel=0.2)
    assert followed(job(follow=None)) is None


def test_the_tariff_serves_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", json.dumps(TARIFF))
    found = followed(job())
    assert found is not None
    assert found.mean == pytest.approx((16 * 0.3 + 8 * 0.2) / 24)
    assert followed(job(follow="carbon")) is None, "a tariff is a price"
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", "{")
    assert followed(job()) is None


def test_a_file_and_a_tariff_of_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_s = NOW_S // HOUR_S * HOUR_S - 9 * DAY_S
    rows = [f"{begin_s + i * HOUR_S},{300 + i % 24}" for i in range(9 * 24 + 4)]
    file = tmp_path / "carbon.csv"
    file.write_text("\n".join(["time,value", *rows]))
    monkeypatch.setenv("AIRFLOW__ZEUS__SIGNAL_ROOT", str(tmp_path))
    define(
        monkeypatch, "zeus_carbon", file="carbon.csv", times="time", values="value", unit="g/kWh"
    )
    found = followed(job(follow="carbon"))
    assert found is not None
    assert found.mean == pytest.approx(311.5, rel=0.01)
    file.unlink()
    assert followed(job(follow="carbon")) is None
    define(monkeypatch, "zeus_carbon", tariff={**TARIFF, "unit": "g/kWh"})
    assert followed(job(follow="carbon")) is not None


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({}, "no signal"),
        ({"preset": "weather"}, "use one of"),
        (
            {"url": "file:///etc/passwd", "times": "$.t", "values": "$.v", "unit": "g/kWh"},
            "not http",
        ),
        ({"url": "http://x", "times": "$.t", "unit": "g/kWh"}, "no signal"),
        ({"url": "http://x", "values": "$.v", "unit": "g/kWh"}, "no signal"),
        ({"url": "http://x", "times": "$.t", "values": "$.v"}, "unit = ''"),
    ],
)
def test_a_connection_that_names_no_signal_is_corrected(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], problem: str
) -> None:
    define(monkeypatch, "zeus_price", **extra)
    monkeypatch.setattr(service_module, "ANSWER_S", 0.2)
    if "unit = ''" not in problem:
        with pytest.raises(SignalError, match=problem):
            signal_series("price", NOW_S - DAY_S, NOW_S)


PATHS = {"times": "$.t", "values": "$.v", "unit": "g/kWh"}


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"url": "http://127.0.0.1:1/x?key=s3cret &a={start}", **PATHS}, "holds a space"),
        ({"url": "127.0.0.1/x?key=s3cret", **PATHS}, "not http"),
        ({"url": "http://127.0.0.1:1/{zone?key=s3cret", **PATHS}, "gave no answer"),
        ({"url": "http://127.0.0.1:1/{0.__class__}?key=s3cret", **PATHS}, "gave no answer"),
        ({"url": "http://127.0.0.1:1/", **PATHS, "step_s": "3600"}, "step_s: no length"),
        ({"url": "http://127.0.0.1:1/", **PATHS, "ends": 5}, "ends: no text"),
        ({"preset": []}, "use one of"),
        ({"preset": {"a": 1}}, "use one of"),
    ],
)
def test_what_is_wrong_with_a_connection_is_a_signal_error_that_says_no_key(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], problem: str
) -> None:
    define(monkeypatch, "my_signal", **extra)
    with pytest.raises(SignalError, match=problem) as error:
        ZeusSignalHook("my_signal").series(NOW_S - DAY_S, NOW_S)
    good, said = ZeusSignalHook("my_signal").test_connection()
    assert not good
    assert "docs/levers/signals.md" in said
    assert "s3cret" not in said + str(error.value)


def test_an_extra_nested_without_end_is_a_signal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection

    connection = Connection(conn_id="my_signal", conn_type="zeus_signal", extra='{"zone":' * 50_000)
    monkeypatch.setattr("airflow.sdk.BaseHook.get_connection", lambda _: connection)
    with pytest.raises(SignalError, match="gave no answer"):
        signal_series("my_signal", 0.0, DAY_S)


def test_braces_of_an_address_that_are_no_field_are_its_own(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answer = lambda path: '{"t": [0, 3600], "v": [1, 2]}'
    define(monkeypatch, "my_signal", url=service.url + '/x?f={"a":1}&z={zone}', zone="D E", **PATHS)
    assert len(signal_series("my_signal", 0.0, DAY_S).steps) == 2
    assert service.asked[0][0] == '/x?f={"a":1}&z=D%20E'


def test_an_answer_that_is_no_http_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                client.recv(4096)
                client.sendall(b"220 smtp.example ESMTP\r\n")
                client.close()

    threading.Thread(target=talk, daemon=True).start()
    define(monkeypatch, "my_signal", url=f"http://127.0.0.1:{server.getsockname()[1]}/", **PATHS)
    try:
        with pytest.raises(SignalError, match="gave no answer"):
            signal_series("my_signal", NOW_S - DAY_S, NOW_S)
    finally:
        server.close()


def test_the_button_of_the_connection_says_the_present_value(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, "zeus_price", service.url, preset="energy-charts", zone="DE-LU")
    good, said = ZeusSignalHook("zeus_price").test_connection()
    assert (good, "EUR/kWh" in said, "at present 0.1" in said) == (True, True, True)
    good, said = ZeusSignalHook("no_such").test_connection()
    assert (good, "there is no Connection 'no_such'" in said) == (False, True)


def test_the_button_of_the_connection_reads_from_two_days_ago_until_tomorrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans: list[tuple[float, float]] = []

    def unread(_: ZeusSignalHook, start_s: float, end_s: float) -> Series:
        spans.append((start_s, end_s))
        raise SignalError("no answer")

    monkeypatch.setattr(ZeusSignalHook, "series", unread)
    begun_s = time.time()
    assert not ZeusSignalHook("zeus_price").test_connection()[0]
    ((start_s, end_s),) = spans
    assert end_s - start_s == 3 * DAY_S
    assert begun_s <= end_s - DAY_S <= time.time()
