"""The series of a Connection of type *Zeus signal*: a tariff, a file, or a service that is asked once.

The Connection's extra names one of them::

    {"preset": "energy-charts", "zone": "DE-LU"}
    {"url": "https://.../{zone}?from={start}", "times": "$.data[*].t", "values": "$.data[*].v", "unit": "g/kWh"}
    {"file": "/data/carbon.csv", "times": "time", "values": "value", "unit": "g/kWh"}
    {"tariff": {"timezone": "Europe/Berlin", "unit": "EUR/kWh", "default": 0.31, "rules": [...]}}

A preset is a known service (``signals/presets.py``), or a list of such: later ones count where two have a value. Its
key is the Connection's password, and ``host`` replaces its host, for a mirror. ``key_header``: that of a URL's key.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import fields
from functools import reduce
from typing import Any

from airflow_provider_zeus.errors import JobSpecError, NoSignalError, SignalError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.kept_series import FAULTS, Keeper, kept_series
from airflow_provider_zeus.signals.follow import AHEAD_S, Followed
from airflow_provider_zeus.signals.parse import MOST_CHARACTERS, Layout, parsed
from airflow_provider_zeus.signals.presets import Preset, preset
from airflow_provider_zeus.signals.prices import of_airflow
from airflow_provider_zeus.signals.series import Series, is_number
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.store.patience import bounded
from airflow_provider_zeus.untrusted_files import read_plain

CONNECTIONS = {"price": "zeus_price", "carbon": "zeus_carbon"}
BACK_S = 8 * 86_400.0  # a week to compare with, and a day more: series end late
ANSWER_S = 5.0  # of one request
ALL_S = 12.0  # of all of them, names and a slow body included
_LAYOUT = frozenset(f.name for f in fields(Layout))

log = logging.getLogger(__name__)


def followed(job: ZeusJob, keeper: Keeper | None = None) -> Followed | None:
    """The series that the power limit of a run follows; None where the job follows none, or none can be read.

    That is logged with the remedy; a ``strict`` job raises SignalError.

    :param keeper: keeps the series of services, as for :func:`signal_series`.
    """
    if job.follow is None:
        return None
    now_s = time.time()
    try:
        found = bounded(lambda: _followed(str(job.follow), now_s, keeper), ALL_S)
        if found is None:
            raise SignalError.of(str(job.follow), "the week before now has a gap, or its mean is not above 0")
        return found
    except Exception as error:  # of any kind: a signal never fails a training
        problem = error if isinstance(error, SignalError) else SignalError.of(str(job.follow), type(error).__name__)
        if job.strict:
            raise problem from None
        log.warning("Zeus: the power limit follows no signal in this run. %s", problem)
        return None


def _followed(signal: str, now_s: float, keeper: Keeper | None) -> Followed | None:
    return Followed.of(signal, signal_series(signal, now_s - BACK_S, now_s + AHEAD_S, keeper), now_s)


def signal_series(signal: str, start_s: float, end_s: float, keeper: Keeper | None = None) -> Series:
    """The series of a signal for a span [s since the epoch]: ``"price"``, ``"carbon"``, or the id of a Connection.

    ``"price"`` without a Connection ``zeus_price`` is ``[zeus] tariff``. Raises SignalError that names the remedy, and
    never what the Connection holds.

    :param keeper: keeps the series of services, so that one task asks for all, and the past is remembered. What is
        kept is asked for over the week before now and the days ahead, whatever part of that one caller needs.
    """
    from airflow.sdk import BaseHook

    conn_id = CONNECTIONS.get(signal, signal)
    try:
        try:
            conn = BaseHook.get_connection(conn_id)
        except Exception:  # Airflow's errors of a Connection that is not there differ by version
            tariff = of_airflow("tariff") if signal == "price" else ""
            if not tariff.strip():
                raise NoSignalError.of(signal, f"there is no Connection {conn_id!r} of type 'Zeus signal'") from None
            return Tariff.parse(json.loads(tariff)).series(start_s, end_s)
        extra, host, key = conn.extra_dejson, conn.host or "", conn.password or ""
        if "tariff" in extra or "file" in extra:
            return _series(extra, host, key, start_s, end_s)
        if keeper is not None:
            start_s, end_s = _span_of_all(start_s, end_s)
        what = hashlib.sha256(json.dumps([extra, host], sort_keys=True).encode()).hexdigest()[:16]
        return kept_series(keeper, f"{conn_id}.{what}", lambda: _series(extra, host, key, start_s, end_s))
    except JobSpecError as error:
        raise SignalError.of(signal, f"Connection {conn_id!r}: {error}") from None
    except FAULTS as error:  # an address may hold a key, and an error the address: neither is repeated
        raise SignalError.of(signal, f"Connection {conn_id!r} gave no answer ({type(error).__name__})") from None


def _span_of_all(start_s: float, end_s: float) -> tuple[float, float]:
    """A caller's span, widened to what the others need who get the same answer: the past week, and what is ahead."""
    now_s = time.time()
    return min(start_s, now_s - BACK_S), max(end_s, now_s + AHEAD_S)


def _series(extra: Mapping[str, Any], host: str, key: str, start_s: float, end_s: float) -> Series:
    """The series that a Connection's extra names. Raises JobSpecError, and :data:`FAULTS`."""
    zone = str(extra.get("zone", ""))
    if "tariff" in extra:
        return Tariff.parse(extra["tariff"]).series(start_s, end_s)
    if "preset" in extra:
        given = extra["preset"]
        names = given if isinstance(given, list) and given else [given]
        found = [_asked(preset(name), zone, host, key, start_s, end_s) for name in names]
        return reduce(Series.merged, found)
    if not extra.get("times") or not (extra.get("values") or extra.get("forecasts")):
        remedy = 'name "preset", "tariff", or "url" or "file" with "times", "values" (or "forecasts") and "unit"'
        raise JobSpecError.of("extra", sorted(map(str, extra)), "no signal", remedy)
    layout = _layout(extra)
    if "file" in extra:
        text = read_plain(str(extra["file"]), MOST_CHARACTERS).decode()
        return parsed(text, layout, zone=zone, source=os.path.basename(str(extra["file"])))  # pages show it: no path
    service = Preset(host="", path="", layout=layout, key_header=str(extra.get("key_header", "")))
    return _asked(service, zone, "", key, start_s, end_s, url=str(extra.get("url", "")))


def _layout(extra: Mapping[str, Any]) -> Layout:
    """Where the answer has what. Raises JobSpecError."""
    given = {name: value for name, value in extra.items() if name in _LAYOUT}
    for name, value in given.items():
        if name == "step_s" and not (is_number(value) and value > 0):
            raise JobSpecError.of(name, value, "no length of a step", 'write the seconds as a number: "step_s": 3600')
        if name != "step_s" and not isinstance(value, str):
            raise JobSpecError.of(name, value, "no text", 'write a path or a column: "$.data[*].from"')
    return Layout(**{"unit": "", **given})


def _asked(
    service: Preset, zone: str, host: str, key: str, start_s: float, end_s: float, *, url: str | None = None
) -> Series:
    """Ask a service once. ``url``: of the Connection, with {zone}, {start} and {end}."""
    address = service.url(zone, start_s, end_s, host) if url is None else _filled(service, url, zone, start_s, end_s)
    if not address.startswith(("https://", "http://")):
        raise JobSpecError.of("url", _scheme(address), "not http", 'write "https://..."')
    if not address.isprintable() or " " in address:
        raise JobSpecError.of("url", _scheme(address), "its address holds a space", 'write it as "%20"')
    headers = {"Accept": "application/json, text/csv", "User-Agent": "airflow-provider-zeus"}
    if service.key_header and key:
        headers[service.key_header] = key
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - checked above
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_S) as answer:
        text = answer.read(MOST_CHARACTERS + 1).decode("utf-8", "replace")
    return parsed(text, service.layout, zone=zone, source=address.split("/")[2])


def _scheme(address: str) -> str:
    """What may be said of an address: it may hold a key."""
    scheme, colon, _ = address.partition("://")
    return scheme + "://..." if colon and scheme.isalpha() else "..."


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key would go to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow none."""


def _filled(service: Preset, url: str, zone: str, start_s: float, end_s: float) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return Preset(host=f"{scheme}://{host}", path=slash + path, layout=service.layout).url(zone, start_s, end_s)
