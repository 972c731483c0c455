"""Attacks by a Connection *Zeus signal*: it reads no file and no inner service back,
and says nothing that it read.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus import untrusted_files
from airflow_provider_zeus.errors import JobSpecError, SignalError
from airflow_provider_zeus.hooks.zeus_signal import ZeusSignalHook
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.signals import service as module
from airflow_provider_zeus.signals.hours import read_signal
from airflow_provider_zeus.signals.reading import followed
from airflow_provider_zeus.signals.service import answer_of, judged
from tests.certificates import self_signed

SECRET = "s3cret-of-another"
JSON = {"times": "$.t", "values": "$.v", "unit": "g/kWh"}
GOOD = '{"t": [0, 3600], "v": [1, 2]}'


class Server:
    """A service of this host that gives one answer to all."""

    def __init__(self, answer: str = GOOD, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def serve(*arguments: Any, **keywords: Any) -> Server:
        started.append(Server(*arguments, **keywords))
        return started[-1]

    yield serve
    for each in started:
        each.http.shutdown()
        each.http.server_close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """The addresses of names, lookup by lookup; the last ones stay. Other names have none."""
    known: dict[str, list[list[str]]] = {}

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        try:
            found = [str(ip_address(host))]
        except ValueError:
            if host not in known:
                raise socket.gaierror(socket.EAI_NONAME, f"no such name: {host}") from None
            found = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [
            (
                socket.AF_INET6 if ":" in each else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (each, port),
            )
            for each in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.fixture
def allow_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__SIGNAL_ALLOW_LOCAL", "True")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``[zeus] signal_root``, beside a file that is not in it."""
    folder = tmp_path / "signals"
    folder.mkdir()
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "good.json").write_text(GOOD)
    monkeypatch.setenv("AIRFLOW__ZEUS__SIGNAL_ROOT", str(folder))
    return folder


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """All that is said of a Connection that gives no series: by its hook's test,
    as a trial's reason, in the log.
    """

    def said(**extra: Any) -> str:
        monkeypatch.setenv(
            "AIRFLOW_CONN_HOSTILE", json.dumps({"conn_type": "zeus_signal", "extra": extra})
        )
        good, text = ZeusSignalHook("hostile").test_connection()
        assert not good, text
        reason = read_signal("hostile", 0.0, 7200.0, None)
        return f"{text} {reason} {caplog.text}"

    return said


def read(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> Any:
    monkeypatch.setenv(
        "AIRFLOW_CONN_HONEST", json.dumps({"conn_type": "zeus_signal", "extra": extra})
    )
    return ZeusSignalHook("honest").series(0.0, 7200.0)


# --- files


@pytest.mark.parametrize("way", ["whole", "up", "link", "folder's link", "up again", "no file"])
@pytest.mark.parametrize("name", ["secret", "good.json"])
def test_no_file_outside_of_the_folder_is_read(
    root: Path, said: Callable[..., str], way: str, name: str
) -> None:
    target = root.parent / name
    (root / "link").symlink_to(target)
    (root / "out").symlink_to(root.parent)
    paths = {
        "whole": str(target),
        "up": f"../{name}",
        "link": "link",
        "folder's link": f"out/{name}",
        "up again": f"{root}/../{name}",
        # the same is said: whether a file is there is not told either
        "no file": "../no-such-file",
    }
    text = said(file=paths[way], **JSON)
    assert SECRET not in text
    assert "not below the folder" in text
    assert "put it below [zeus] signal_root" in text


@pytest.mark.parametrize("path", ["../current/../signals/it", "{root}/../current/../signals/it"])
def test_whether_a_link_is_elsewhere_changes_no_answer(root: Path, path: str) -> None:
    (root / "it").write_text("1")
    (root.parent / "deep" / "er").mkdir(parents=True)
    assert untrusted_files.read_below(root, path.format(root=root), 9) == b"1"
    (root.parent / "current").symlink_to("deep/er")
    assert untrusted_files.read_below(root, path.format(root=root), 9) == b"1"
    with pytest.raises(ValueError, match="not below"):
        untrusted_files.read_below(root, f"/proc/self/root{root}/it", 9)


def test_a_file_of_the_folder_is_read_also_by_a_link_that_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    (root / "grids").mkdir()
    (root / "grids" / "de.json").write_text(GOOD)
    (root / "today").symlink_to("grids/de.json")
    for name in ("grids/de.json", "today", str(root / "grids" / "de.json")):
        assert len(read(monkeypatch, file=name, **JSON).steps) == 2
    os.mkfifo(root / "pipe")
    assert "not a plain file" in said(file="pipe", **JSON)
    monkeypatch.delenv("AIRFLOW__ZEUS__SIGNAL_ROOT")
    monkeypatch.setenv("AIRFLOW_HOME", str(root.parent))  # its folder "signals" is this one
    assert len(read(monkeypatch, file="today", **JSON).steps) == 2


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "out").symlink_to(root.parent)
    # it was no link when it was looked at
    monkeypatch.setattr(os.path, "realpath", os.path.abspath)
    with pytest.raises(OSError, match="out"):
        untrusted_files.read_below(root, "out/secret", 1000)


@pytest.mark.parametrize("extra", [{"file": "../secret"}, {"url": "http://169.254.169.254/"}])
def test_a_run_trains_without_a_signal_that_is_refused(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extra: dict[str, str],
) -> None:
    conn = {"conn_type": "zeus_signal", "extra": {**extra, **JSON}}
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_CARBON", json.dumps(conn))
    job = ZeusJob(
        batch_sizes=[32], default_batch_size=32, target="acc >= 0.9", max_epochs=3, follow="carbon"
    )
    assert followed(job) is None
    assert "docs/levers/signals.md" in caplog.text
    with pytest.raises(SignalError, match=r"not below the folder|link-local"):
        followed(replace(job, strict=True))


# --- what was read


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        (SECRET, JSON),
        (f'{{"key": "{SECRET}", "t": [], "v": []}}', {**JSON, "zone_at": "$.key", "zone": "DE"}),
        (f'{{"t": ["{SECRET}"], "v": [], "key": "{SECRET}"}}', JSON),
        (f'{{"t": "{SECRET}", "v": {{"{SECRET}": 1}}}}', JSON),
        (f"{SECRET},b\n1,2\n", {"times": "time", "values": "value", "unit": "g/kWh"}),
        (
            f'time,value\n{SECRET},"{200_000 * "x"}"\n',
            {"times": "time", "values": "value", "unit": "g/kWh"},
        ),
        (f"\udcff{SECRET}", JSON),
    ],
    ids=["no JSON", "zone_at", "lengths", "kinds", "no column", "no CSV", "no text"],
)
def test_what_was_read_is_never_repeated(
    root: Path, said: Callable[..., str], content: str, layout: dict[str, Any]
) -> None:
    (root / "it").write_bytes(content.encode(errors="surrogateescape"))
    assert SECRET not in said(file="it", **layout)


def test_neither_an_answer_nor_an_address_is_repeated(
    said: Callable[..., str], allow_local: None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            for _ in range(2):
                client, _ = listener.accept()
                client.recv(4096)
                client.sendall(f"220 {SECRET} ESMTP\r\n".encode())
                client.close()

        threading.Thread(target=talk, daemon=True).start()
        text = said(url=f"http://127.0.0.1:{listener.getsockname()[1]}/", **JSON)
        assert SECRET not in text
        assert "gave no answer (BadStatusLine)" in text
    for address in (
        f"http://127.0.0.1:{SECRET}/",
        f"http://[{SECRET}]/",
        f"http://user:{SECRET}@127.0.0.1/",
    ):
        assert SECRET not in said(url=address, **JSON)


def test_the_source_of_a_series_is_a_host_and_no_key(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, allow_local: None
) -> None:
    server = serve()
    for rest in (f"?key={SECRET}", f"/?key={SECRET}", f"#{SECRET}"):
        series = read(monkeypatch, url=f"http://127.0.0.1:{server.port}{rest}", **JSON)
        assert series.source == "127.0.0.1"
    assert server.asked == [f"/?key={SECRET}", f"/?key={SECRET}", "/"]


CSV = {"times": "time", "values": "value", "unit": "g/kWh"}
TARIFF = {"timezone": "Europe/Berlin", "unit": "EUR/kWh", "default": 0.3, "rules": []}


@pytest.mark.parametrize(
    ("field", "extra"),
    [
        ("preset", {"preset": SECRET}),
        ("preset", {"preset": [SECRET]}),
        ("extra", {"url": SECRET}),
        ("url", {"url": SECRET, **JSON}),
        ("step_s", {"file": "it", **JSON, "step_s": SECRET}),
        ("times", {"file": "it", **JSON, "times": [SECRET]}),
        ("path", {"file": "it", **JSON, "times": f"$.{SECRET}"}),
        ("path", {"file": "it", **JSON, "values": f"$.t[*].{SECRET}"}),
        ("path", {"file": "it", **JSON, "values": f"$ {SECRET}"}),
        ("column", {"file": "table", **CSV, "times": SECRET}),
        ("values", {"file": "empty", **CSV, "values": "value"}),
        ("unit", {"file": "it", **JSON, "unit": SECRET}),
        ("unit", {"file": "it", **JSON, "unit": "EUR/kWh", "unit_at": "$.unit", "zone": SECRET}),
        ("zone", {"file": "it", **JSON, "zone_at": "$.zone", "zone": SECRET}),
        ("file", {"file": f"../{SECRET}", **JSON}),
        ("tariff", {"tariff": SECRET}),
        ("tariff: odd", {"tariff": {**TARIFF, "odd": SECRET}}),
        ("timezone", {"tariff": {**TARIFF, "timezone": SECRET}}),
        ("unit", {"tariff": {**TARIFF, "unit": SECRET}}),
        ("default", {"tariff": {**TARIFF, "default": SECRET}}),
        ("rules", {"tariff": {**TARIFF, "rules": SECRET}}),
        ("rule 1", {"tariff": {**TARIFF, "rules": [SECRET]}}),
        ("rule 1: hours", {"tariff": {**TARIFF, "rules": [{"value": 0.2, "hours": SECRET}]}}),
        ("rule 1: value", {"tariff": {**TARIFF, "rules": [{"value": SECRET}]}}),
    ],
)
def test_a_wrong_field_of_a_connection_is_named_and_its_value_is_not_printed(
    root: Path, said: Callable[..., str], field: str, extra: dict[str, Any]
) -> None:
    (root / "it").write_text(
        '{"t": ["2026-01-01T00:00Z"], "v": [1], "zone": "DE", "unit": "g/kWh"}'
    )
    (root / "table").write_text("time,value\n2026-01-01T00:00Z,1\n")
    (root / "empty").write_text("time,value\n2026-01-01T00:00Z,none\n")
    text = said(**extra)
    assert f"Connection 'hostile': {field}" in text
    assert SECRET not in text


# --- addresses

NEVER = [
    *("169.254.169.254", "169.254.170.2", "fe80::1", "fe80::a9fe:a9fe%1", "100.100.100.200"),
    *("fd00:ec2::254", "fd20:ce::254", "168.63.129.16"),
    *(
        "::ffff:169.254.169.254",
        "::ffff:0:169.254.169.254",
        "::169.254.169.254",
        "::ffff:100.100.100.200",
    ),
    *(
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:0:a9:fea9:fe00:0",
    ),
    *(
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::1",
        "2001:0:1:2:3:4:5601:5601",
        "2001:db8::5efe:a9fe:a9fe",
    ),
]
LOCAL = [
    *(
        "127.0.0.1",
        "127.8.9.10",
        "0.0.0.0",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:0.0.0.0",
        "64:ff9b::7f00:1",
    ),
    *("2002:7f00:1::", "::127.0.0.1"),
]
ALLOWED = [
    "10.1.2.3",
    "192.168.0.1",
    "172.16.0.1",
    "100.64.0.1",
    "fd12::1",
    "93.184.216.34",
    "2a00:1450:4001::200e",
]
ALLOWED += ["64:ff9b::5db8:d822", "64:ff9b:1::5db8:d822", "2002:5db8:d822::1", "::ffff:10.0.0.1"]


@pytest.mark.parametrize(
    ("address", "is_local_allowed"),
    [
        *((each, allowed) for each in NEVER for allowed in (False, True)),
        *((each, False) for each in LOCAL),
    ],
)
def test_of_a_name_each_address_is_judged(
    names: dict[str, list[list[str]]], address: str, is_local_allowed: bool
) -> None:
    names["prices.example"] = [["10.0.0.1", address, "10.0.0.2"]]
    with pytest.raises(JobSpecError, match="its host is") as error:
        judged("prices.example", 80, "http://...", allow_local=is_local_allowed)
    assert address not in str(error.value)
    assert ("signal_allow_local" in str(error.value)) == (address in LOCAL)


@pytest.mark.parametrize(
    ("address", "is_local_allowed"),
    [*((each, False) for each in ALLOWED), *((each, True) for each in LOCAL)],
)
def test_private_networks_stay_allowed_and_this_host_by_its_setting(
    names: dict[str, list[list[str]]], address: str, is_local_allowed: bool
) -> None:
    names["prices.example"] = [["10.0.0.1", address]]
    found = judged("prices.example", 80, "http://...", allow_local=is_local_allowed)
    assert found == ["10.0.0.1", address]


def test_the_default_of_a_preset_on_this_host_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.delenv("AIRFLOW__ZEUS__SIGNAL_ALLOW_LOCAL", raising=False)
    text = said(preset="carbon-aware-sdk", zone="westeurope")
    assert "set [zeus] signal_allow_local = True" in text


@pytest.mark.parametrize(
    "host", ["localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:7f00:1]", "0"]
)
def test_a_service_of_this_host_gets_no_request(
    serve: Callable[..., Server], said: Callable[..., str], host: str
) -> None:
    server = serve()
    assert "signal_allow_local" in said(url=f"http://{host}:{server.port}/", **JSON)
    assert server.asked == []


def test_an_address_of_this_host_in_its_network_is_its_own(
    names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process here sees it: to an address of another host it cannot bind."""
    names["lan.example"] = [["10.11.12.13"]] * 3
    assert judged("lan.example", 80, "http://...", allow_local=False) == ["10.11.12.13"]
    binds = socket.socket.bind
    own = {("10.11.12.13", 0): ("127.0.0.1", 0)}
    monkeypatch.setattr(
        socket.socket, "bind", lambda probe, to: binds(probe, own.get(to, to)), raising=False
    )
    with pytest.raises(JobSpecError, match=r"its host is the worker's own.*signal_allow_local"):
        judged("lan.example", 80, "http://...", allow_local=False)
    assert judged("lan.example", 80, "http://...", allow_local=True) == ["10.11.12.13"]


def test_a_service_at_this_hosts_own_address_gets_no_request(said: Callable[..., str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # sends nothing: the kernel chooses the address to send from
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host is in no network")
        address = probe.getsockname()[0]
    assert "signal_allow_local" in said(url=f"http://{address}:9/", **JSON)


def test_a_name_is_looked_up_once_and_the_judged_address_is_asked(
    serve: Callable[..., Server],
    names: dict[str, list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    allow_local: None,
) -> None:
    server = serve()
    names["prices.example"] = [["127.0.0.1"], ["169.254.169.254"]]
    assert len(read(monkeypatch, url=f"http://prices.example:{server.port}/x", **JSON).steps) == 2
    assert server.asked == ["/x"]
    assert names["prices.example"] == [["169.254.169.254"]], "looked up once"


def test_where_one_address_does_not_answer_the_next_is_asked(
    serve: Callable[..., Server],
    names: dict[str, list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    allow_local: None,
) -> None:
    server = serve()
    names["prices.example"] = [["127.0.0.9", "127.0.0.1"]]
    assert len(read(monkeypatch, url=f"http://prices.example:{server.port}/x", **JSON).steps) == 2


# --- a proxy


@pytest.fixture
def proxy(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    found = serve()
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{found.port}")
    return found


def test_a_proxy_is_asked_for_what_is_judged_here(
    proxy: Server, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["prices.example"] = [["10.9.9.9"]]
    for host in ("prices.example", "known-to-the-proxy.example"):
        assert len(read(monkeypatch, url=f"http://{host}/x", **JSON).steps) == 2
    assert proxy.asked == ["http://prices.example/x", "http://known-to-the-proxy.example/x"]


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "metadata.example", "[::ffff:a9fe:a9fe]", "127.0.0.1", "good\\@x"]
)
def test_a_proxy_is_asked_for_nothing_that_is_refused(
    proxy: Server, names: dict[str, list[list[str]]], said: Callable[..., str], host: str
) -> None:
    names["metadata.example"] = [["10.0.0.1", "169.254.169.254"]]
    assert "Connection 'hostile': url: " in said(url=f"http://{host}/latest", **JSON)
    assert proxy.asked == []


@pytest.mark.parametrize(
    "host", ["169%2e254%2e169%2e254", "169.254.169.254.", "0xa9.254.43518", "a.0xa9fea9fe"]
)
def test_a_proxy_is_asked_for_no_address_that_is_none_here(
    proxy: Server, names: dict[str, list[list[str]]], said: Callable[..., str], host: str
) -> None:
    assert "gave no answer (gaierror)" in said(url=f"http://{host}/latest", **JSON)
    assert proxy.asked == []


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of ``prices.example``, which signs itself."""
    return self_signed(tmp_path_factory.mktemp("tls") / "both.pem", "prices.example")


def test_tls_verifies_the_name_of_the_host(
    serve: Callable[..., Server],
    names: dict[str, list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[..., str],
    certificate: Path,
    allow_local: None,
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    server = serve(tls=tls)
    names |= {"prices.example": [["127.0.0.1"]], "other.example": [["127.0.0.1"]]}
    assert "SSLCertVerificationError" in said(
        url=f"https://prices.example:{server.port}/", **JSON
    ), "not known yet"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert len(read(monkeypatch, url=f"https://prices.example:{server.port}/", **JSON).steps) == 2
    assert "SSLCertVerificationError" in said(url=f"https://other.example:{server.port}/", **JSON)
    assert len(server.asked) == 1


def test_the_time_of_one_request_is_bounded(
    monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__SIGNAL_ALLOW_LOCAL", "True")
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "TimeoutError" in said(url=f"http://127.0.0.1:{silent.getsockname()[1]}/", **JSON)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
    ],
    ids=["body", "continue", "trailers"],
)
def test_an_answer_without_end_is_left(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, more: bytes
) -> None:
    monkeypatch.setattr(module, "WHOLE_S", 0.2)
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(begin)
                try:
                    while not left.wait(0.01):
                        client.sendall(more)
                except OSError:
                    left.set()

        def ask() -> None:
            with suppress(OSError):  # what came until then is no answer either
                answers.append(
                    answer_of(
                        f"http://127.0.0.1:{listener.getsockname()[1]}/",
                        {},
                        10**6,
                        allow_local=True,
                    )
                )
            ended.set()

        answers: list[bytes] = []
        ended = threading.Event()
        for each in (talk, ask):
            threading.Thread(target=each, daemon=True).start()
        try:
            assert ended.wait(60.0)
            assert answers == []
        finally:
            left.set()
