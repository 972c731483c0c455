"""Services: those that are known, and how one is asked.

A service may be hostile, and so may be who names it.

Addresses, limits and licences of the known ones change: compare them with the service's own
documents. ``{zone}``, ``{start}`` and ``{end}`` (UTC) are filled in; a key stays in the Connection.

A service is asked over HTTP, at addresses that are judged first. A name is resolved once, every
address of it is judged, and one of these is connected to: a name that leads elsewhere a moment
later is not asked again. TLS verifies the name all the same. Redirects are not followed: a key
would go along.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPSConnection, IncompleteRead
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NamedTuple, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.parse import Layout

ANSWER_S = 5.0  # a service that hangs must not hold up a task
WHOLE_S = 12.0  # a slow drip of bytes never runs into the other limit
# Services that tell any process of a host its secrets, beside the link-local ones such as
# 169.254.169.254: a Connection must not read there. They are Amazon's, Amazon's for pods of EKS,
# Google's, Azure's, Alibaba's, Oracle's and Scaleway's.
METADATA = frozenset(
    map(
        ip_address,
        (
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "168.63.129.16",  # looks public: no rule for private addresses finds it
            "100.100.100.200",  # alone of its range (RFC 6598), which other networks use, too
            "192.0.0.192",
            "fd00:42::42",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One service. ``key_header``: the header of its key; empty: it needs none.

    ``path`` has the query too, with {zone}, {start} and {end}.
    """

    host: str
    path: str
    layout: Layout
    key_header: str = ""
    # Services disagree about times; "ms": milliseconds since the epoch.
    time_format: str = "%Y-%m-%dT%H:%MZ"

    def url(self, zone: str, start_s: float, end_s: float, host: str = "") -> str:
        """The address for a zone and a span.

        ``host``: another one, such as a mirror of one's own.
        """
        path = self.path
        values = {"zone": zone, "start": self._time(start_s), "end": self._time(end_s)}
        for name, value in values.items():
            # Other braces are the address's own: format() would refuse them.
            # Quoted in full, since a zone must not lead to another path or add to the query.
            path = path.replace("{" + name + "}", quote(value, safe=""))
        return (host or self.host).rstrip("/") + path

    def _time(self, time_s: float) -> str:
        if self.time_format == "ms":
            return str(round(time_s * 1000))
        return datetime.fromtimestamp(time_s, UTC).strftime(self.time_format)


_ELECTRICITY_MAPS = Preset(
    host="https://api.electricitymaps.com",
    path="/v3/carbon-intensity/history?zone={zone}",
    layout=Layout(
        times="$.history[*].datetime",
        values="$.history[*].carbonIntensity",
        estimated="$.history[*].isEstimated",
        step_at="$.temporalGranularity",
        step_s=3600.0,
        zone_at="$.zone",
        unit="g/kWh",
    ),
    key_header="auth-token",
)
PRESETS = {
    "energy-charts": Preset(
        host="https://api.energy-charts.info",
        path="/price?bzn={zone}&start={start}&end={end}",
        layout=Layout(times="$.unix_seconds", values="$.price", unit="EUR/MWh", unit_at="$.unit"),
    ),
    "uk-carbon-intensity": Preset(
        host="https://api.carbonintensity.org.uk",
        path="/intensity/{start}/{end}",
        layout=Layout(
            times="$.data[*].from",
            values="$.data[*].intensity.actual",
            forecasts="$.data[*].intensity.forecast",
            ends="$.data[*].to",
            unit="g/kWh",
        ),
    ),
    "electricity-maps": _ELECTRICITY_MAPS,
    "electricity-maps-forecast": replace(
        _ELECTRICITY_MAPS,
        path="/v3/carbon-intensity/forecast?zone={zone}",
        layout=replace(
            _ELECTRICITY_MAPS.layout,
            times="$.forecast[*].datetime",
            values="",
            forecasts="$.forecast[*].carbonIntensity",
            estimated="",
        ),
    ),
    "awattar": Preset(
        host="https://api.awattar.de",
        path="/v1/marketdata?start={start}&end={end}",
        layout=Layout(
            times="$.data[*].start_timestamp",
            ends="$.data[*].end_timestamp",
            values="$.data[*].marketprice",
            unit="EUR/MWh",
            unit_at="$.data[*].unit",
        ),
        time_format="ms",
    ),
    "carbon-aware-sdk": Preset(
        host="http://127.0.0.1:5073",
        # Of all that is forecast: it refuses times outside of it.
        path="/emissions/forecasts/current?location={zone}",
        layout=Layout(
            times="$[*].forecastData[*].timestamp",
            forecasts="$[*].forecastData[*].value",
            unit="g/kWh",
        ),
    ),
}
# v4 answers with the same names as v3, so that one layout reads both.
for _name in ("electricity-maps", "electricity-maps-forecast"):
    PRESETS[f"{_name}-v4"] = replace(
        PRESETS[_name], path=PRESETS[_name].path.replace("/v3/", "/v4/")
    )


def preset(name: object) -> Preset:
    """The preset of a name. Raises JobSpecError that lists the known ones."""
    if isinstance(name, str) and name in PRESETS:
        return PRESETS[name]
    raise JobSpecError.of("preset", name, "not known", f"use one of {', '.join(sorted(PRESETS))}")


def _shut(peer: socket.socket) -> None:
    """End a connection that another thread reads from."""
    # The service may have hung up in this moment.
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def answer_of(
    address: str, headers: dict[str, str], most_bytes: int, *, allow_local: bool
) -> bytes:
    """The answer of a service, up to ``most_bytes`` and one more.

    Raises JobSpecError: no address of HTTP, or one that is not to be asked; of the address it
    repeats the scheme alone. Raises OSError, ValueError, HTTPException: there is no answer; their
    texts may hold parts of the address.

    :param allow_local: whether a service of this host may be asked.
    """
    place = _Place.of(address)
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - checked above
    proxies = urllib.request.getproxies()
    if place.scheme in proxies and not urllib.request.proxy_bypass(request.host):
        return _answer_of_proxy(request, place, most_bytes, allow_local=allow_local)
    is_secure = place.scheme == "https"
    connection_class = _SecureConnection if is_secure else _Connection
    connection = connection_class(place.host, place.port, timeout=ANSWER_S)
    connection.addresses = judged(place.host, place.port, place.shown, allow_local=allow_local)
    # A timeout of the socket bounds each wait, not all of them: a slow body would last for ever.
    late = threading.Timer(WHOLE_S, lambda: _shut(peer))
    late.daemon = True  # a timer must not hold up the end of a task
    try:
        connection.connect()
        peer = connection.sock  # kept here: the connection forgets it once the answer has begun
        begun_s = time.monotonic()
        # Not before: it shuts the socket that connect() makes.
        late.start()
        connection.request("GET", place.target, headers={**headers, "Connection": "close"})
        with connection.getresponse() as answer:
            # A redirect, too: it would take the key to an address that was not judged.
            if not 200 <= answer.status < 300:
                raise HTTPError(place.shown, answer.status, answer.reason, answer.headers, None)
            body = _body(answer, most_bytes)
        if time.monotonic() >= begun_s + WHOLE_S:
            raise TimeoutError  # it may have been cut
        return body
    finally:
        late.cancel()
        connection.close()


class _Place(NamedTuple):
    """The target of an address."""

    scheme: str
    host: str
    port: int
    target: str
    shown: str  # an address may hold a key, so errors repeat this alone

    @classmethod
    def of(cls, address: str) -> Self:
        """The parts of an address.

        Raises JobSpecError if it is none of HTTP, or readers may differ about its host.
        """
        scheme, colon, _ = address.partition("://")
        # An address may hold a key: errors show its scheme at most.
        shown = "..."
        if colon and scheme.isalpha():
            shown = f"{scheme}://..."
        if not address.startswith(("https://", "http://")):
            raise JobSpecError.of("url", shown, "not http", 'write "https://..."')
        if not address.isprintable() or " " in address:
            raise JobSpecError.of("url", shown, "its address holds a space", 'write it as "%20"')
        parts = urlsplit(address)
        # Two parsers that differ about the host would let a judged address lead elsewhere.
        has_other_readings = "@" in parts.netloc or "\\" in address
        if not parts.hostname or has_other_readings:
            raise JobSpecError.of(
                "url", shown, "no plain host", 'write "https://host/path", with the key as password'
            )
        usual_port = 443 if scheme == "https" else 80
        target = parts.path or "/"
        if parts.query:
            target += f"?{parts.query}"
        return cls(scheme, parts.hostname, parts.port or usual_port, target, shown)


def _answer_of_proxy(
    request: urllib.request.Request, place: _Place, most_bytes: int, *, allow_local: bool
) -> bytes:
    """The answer of a service by the proxy of this host."""
    try:
        judged(place.host, place.port, place.shown, allow_local=allow_local)
    except OSError:
        # The proxy alone may know a name. Any other way to write an address is refused.
        if not patterns.fullmatch(r"([a-z0-9_-]+\.)*[a-z][a-z0-9_-]*", place.host):
            raise
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_S) as answer:
        return _body(answer, most_bytes)


def _body(answer: Any, most_bytes: int) -> bytes:
    """The body of an answer, up to ``most_bytes`` and one more.

    Raises IncompleteRead if less came than announced.
    """
    body = bytes(answer.read(most_bytes + 1))
    # A cut answer may still be JSON that can be read, with fewer hours.
    if len(body) <= most_bytes and answer.length:
        raise IncompleteRead(body, answer.length)
    return body


def problem_of(error: BaseException) -> str:
    """Why a service gave no answer, without anything that it said and without its address."""
    if not isinstance(error, HTTPError):
        return type(error).__name__
    kinds = {
        400: "the request is refused: its zone, span or path",
        401: "the key is refused: it is the Connection's password, its header key_header",
        402: "the key does not cover this request",
        403: "the key does not cover this request, or is refused",
        404: "there is nothing at its address",
        407: "the proxy wants a login",
        410: "there is nothing at its address any more",
        422: "the request is refused: its zone, span or path",
        429: "too many requests: ask less often, by one Connection for all jobs",
    }
    kind = "the request is refused"
    if error.code in kinds:
        kind = kinds[error.code]
    elif error.code >= 500:
        kind = "the service itself is at fault"
    elif 300 <= error.code < 400:
        kind = (
            "it redirects, which is not followed, since the key would go along: name where it "
            "leads to"
        )
    return f"HTTP {error.code}: {kind}"


def judged(host: str, port: int, shown: str, *, allow_local: bool) -> list[str]:
    """All addresses of a host.

    Raises OSError if it has none, JobSpecError if one of them is not to be asked.
    """
    # The name is looked up once, and these addresses are connected to: a second look could differ.
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in entries))
    for text in addresses:
        without_scope = text.partition("%")[0]
        for address in meant(ip_address(without_scope)):
            # Metadata services of clouds hand out keys to whoever asks from the host.
            if address.is_link_local or address in METADATA:
                problem = (
                    "its host is link-local, or a metadata service of a cloud, which no signal may "
                    "ask"
                )
                raise JobSpecError.of(
                    "url", shown, problem, "name the service that has the prices or intensities"
                )
            # Services of the host itself often trust their own host without a password.
            if not allow_local and is_of_this_host(address):
                remedy = (
                    "set [zeus] signal_allow_local = True where such a service is meant, or name "
                    "another host"
                )
                raise JobSpecError.of("url", shown, "its host is the worker's own", remedy)
    return addresses


def is_of_this_host(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address leads to this host: a loopback one, or one of its networks, to which
    this process can bind.
    """
    if address.is_loopback or address.is_unspecified:
        return True
    # Python has no list of a host's addresses, but only those can be bound to.
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def meant(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """An address, and the IPv4 ones to which traffic for it may be taken."""
    # An IPv6 address may wrap an IPv4 one, which a router unwraps: both are judged.
    if isinstance(address, IPv4Address):
        return [address]
    packed = address.packed
    within: list[bytes] = []
    mapped = bytes(10) + b"\xff\xff"
    translated = bytes(8) + b"\xff\xff\0\0"
    nat64 = b"\0\x64\xff\x9b"
    isatap = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")
    if packed[:12] in (bytes(12), mapped, translated, nat64 + bytes(8)) or packed[8:12] in isatap:
        within.append(packed[12:])
    if packed[:2] == b"\x20\x02":  # 6to4 (RFC 3056), which any router may unwrap
        within.append(packed[2:6])
    # Teredo (RFC 4380) wraps two, either of which may get it: its server, and its client, inverted.
    if packed[:4] == b"\x20\x01\0\0":
        within += [packed[4:8], bytes(byte ^ 0xFF for byte in packed[12:])]
    # A NAT64 of one's own puts it behind prefixes of 48, 56, 64 or 96 bits (RFC 6052).
    if packed[:6] == nat64 + b"\0\1":
        spread = packed[:8] + packed[9:]
        within += filter(any, [packed[12:], *(spread[at : at + 4] for at in (6, 7, 8))])
    return [address, *map(IPv4Address, within)]


class _Connection(HTTPConnection):
    """Connects to addresses that were judged, not to those that the name has by then."""

    addresses: Sequence[str] = ()

    def connect(self) -> None:
        """Connect to the first address that answers. Raises OSError."""
        refused: OSError = OSError("no address")
        # A host may have IPv6 addresses to which this network has no way: the next one may do.
        for address in self.addresses:
            try:
                self.sock = socket.create_connection((address, self.port), self.timeout)
            except OSError as error:
                refused = error
            else:
                return
        raise refused


class _SecureConnection(HTTPSConnection, _Connection):
    """The same with TLS: ``HTTPSConnection.connect`` calls the one above, then verifies the
    host's name.
    """


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key would go to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow none."""
