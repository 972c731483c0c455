"""The series of a Connection of type *Zeus signal*: a tariff, a file, or a service that is asked once for all jobs.

The Connection's extra names one of them::

    {"preset": "energy-charts", "zone": "DE-LU"}
    {"url": "https://.../{zone}?from={start}", "times": "$.data[*].t", "values": "$.data[*].v", "unit": "g/kWh"}
    {"file": "carbon.csv", "times": "time", "values": "value", "unit": "g/kWh"}
    {"tariff": {"timezone": "Europe/Berlin", "unit": "EUR/kWh", "default": 0.31, "rules": [...]}}

A preset is a known service (``service.py``), or a list of such: later ones count where two have a value. Its key is the
Connection's password, and ``host`` replaces its host, for a mirror. ``key_header``: that of a URL's key. A
file lies below ``[zeus] signal_root``.

The trial log keeps what services answered, for a week and more, so that one task asks for all.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import reduce
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_zeus.airflow_compat import airflow_home
from airflow_provider_zeus.errors import JobSpecError, NoSignalError, SignalError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.signals.forecast import AHEAD_S, NO_FORECAST, NO_VALUES, Followed, Start, plan_start
from airflow_provider_zeus.signals.parse import MOST_CHARACTERS, Layout, parsed, text_of
from airflow_provider_zeus.signals.prices import of_airflow
from airflow_provider_zeus.signals.series import Series, is_number
from airflow_provider_zeus.signals.service import Preset, answer_of, preset, problem_of
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.untrusted_files import read_below

CONNECTIONS = {"price": "zeus_price", "carbon": "zeus_carbon"}
BACK_S = 8 * 86_400.0  # a week to compare with, and a day more: series end late
KEPT_S = 10 * 86_400.0  # of the past: a week to compare with, and what a service publishes late
ALL_S = 12.0  # of all requests, names and a slow body included
# of a service or its Connection
FAULTS = (OSError, ValueError, HTTPException, LookupError, TypeError, AttributeError, RecursionError)

log = guarded_log(__name__)


class Keeper(Protocol):
    """The part of a trial log that keeps the series of services."""

    def signal(self, name: str) -> tuple[str | None, bool]:
        """The series kept under a name, and whether the caller is to ask the service now."""

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer."""


class ReadOnlyKeeper:
    """A :class:`Keeper` for pages and commands: no service is asked, and nothing is changed.

    :param kept: gives the series that the trial log keeps under a name. Raises StoreError.
    """

    def __init__(self, kept: Callable[[str], str | None]) -> None:
        self._kept = kept

    def signal(self, name: str) -> tuple[str, bool]:
        """The series kept under a name. Raises OSError where there is none."""
        try:
            text = self._kept(name)
        except StoreError as error:
            raise OSError(str(error)) from None
        if text is None:
            raise FileNotFoundError(name)
        return text, False

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep nothing."""


def followed(job: ZeusJob, keeper: Keeper | None = None) -> Followed | None:
    """The series that the power limit of a run follows; None where the job follows none, or none can be read.

    That is logged with the remedy; a ``strict`` job raises SignalError.

    :param keeper: keeps the series of services, as for :func:`signal_series`.
    """
    if job.follow is None:
        return None
    name, now_s = str(job.follow), time.time()
    try:
        found = bounded(
            lambda: Followed.of(name, signal_series(name, now_s - BACK_S, now_s + AHEAD_S, keeper), now_s), ALL_S
        )
        if found is None:
            raise SignalError.of(name, "over a day of the week before now is missing, or its mean is not above 0")
        return found
    except Exception as error:  # of any kind: a signal never fails a training
        problem = error if isinstance(error, SignalError) else SignalError.of(name, type(error).__name__)
        if job.strict:
            raise problem from None
        log.warning("Zeus: the power limit follows no signal in this run. %s", problem)
        return None


def planned_start(
    signal: str, now_s: float, latest_s: float, duration_s: float, keeper: Keeper | None = None
) -> tuple[Start, str]:
    """(the cheapest start up to ``latest_s`` of a run of that length, unit of the signal).

    Raises SignalError where the signal cannot tell.

    :param signal: ``"carbon"``, ``"price"`` or the id of a Connection of type *Zeus signal*.
    :param keeper: keeps the series of services.
    """

    def plan() -> tuple[Start, str]:
        series = signal_series(signal, now_s - BACK_S, latest_s + duration_s, keeper)
        return plan_start(series, series, now_s=now_s, latest_s=latest_s, duration_s=duration_s), series.unit.name

    try:
        start, unit = bounded(plan, ALL_S)
    except SignalError:
        raise
    except Exception as error:  # of any kind: a signal never fails a training
        raise SignalError.of(signal, type(error).__name__) from None
    if start.reason in (NO_VALUES, NO_FORECAST):
        raise SignalError.of(signal, start.reason)
    return start, unit


def signal_series(signal: str, start_s: float, end_s: float, keeper: Keeper | None = None) -> Series:
    """The series of a signal for a span [s since the epoch]: ``"price"``, ``"carbon"``, or the id of a Connection.

    ``"price"`` without a Connection ``zeus_price`` is ``[zeus] tariff``. Raises SignalError that names the remedy, and
    never what the Connection holds.

    :param keeper: keeps the series of services, so that one task asks for all, and the past is remembered. What is
        kept is asked for over the week before now and the days ahead, also where one caller needs a part of that.
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
            now_s = time.time()
            start_s, end_s = min(start_s, now_s - BACK_S), max(end_s, now_s + AHEAD_S)
        what = hashlib.sha256(json.dumps([extra, host], sort_keys=True).encode()).hexdigest()[:16]
        return kept_series(keeper, f"{conn_id}.{what}", lambda: _series(extra, host, key, start_s, end_s))
    except JobSpecError as error:
        raise SignalError.of(signal, f"Connection {conn_id!r}: {error.without_value.rstrip('.')}") from None
    except FAULTS as error:  # an address may hold a key, and an error the address: neither is repeated
        raise SignalError.of(signal, f"Connection {conn_id!r} gave no answer ({problem_of(error)})") from None


def kept_series(
    keeper: Keeper | None,
    name: str,
    ask: Callable[[], Series],
    *,
    others_s: float = 6.0,
    pause_s: float = 0.5,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Series:
    """The kept series with the service's newest values; of several callers at once one asks.

    Without a keeper, or where it fails, the service is asked. Where the service gives no answer, what is kept counts.
    Raises what ``ask`` raises where nothing is kept, and TimeoutError where another caller got no answer.

    :param name: of the service, the zone and all else that the values depend on.
    :param others_s: wait for the caller that asks; it is looked for every ``pause_s`` seconds.
    """
    if keeper is None:
        return ask()
    begun_s = clock()
    try:
        text, is_mine = keeper.signal(name)
        while text is None and not is_mine and clock() < begun_s + others_s:
            sleep(pause_s)
            text, is_mine = keeper.signal(name)
    except StoreError as error:
        log.debug("Zeus keeps no series: %s", error)
        return ask()
    held = None
    try:
        held = None if text is None else Series.from_json(text)
    except ValueError as error:
        log.warning("Zeus: a series in the trial log is %s, and is asked for again.", error)
    if is_mine:
        return _renewed(keeper, name, ask, held, clock() - KEPT_S)
    if held is None:
        raise TimeoutError
    return held


def _renewed(keeper: Keeper, name: str, ask: Callable[[], Series], held: Series | None, since_s: float) -> Series:
    """What the service answers, after what is held, kept from ``since_s`` on; what is held where it gives nothing."""

    def keep(series: str | None) -> None:
        try:
            keeper.keep_signal(name, series)
        except StoreError as error:
            log.debug("Zeus keeps no series: %s", error)

    try:
        found = ask()
    except Exception as error:
        keep(None)
        if held is None or not isinstance(error, FAULTS):
            raise
        problem = error.without_value if isinstance(error, JobSpecError) else f"no answer ({problem_of(error)})"
        log.warning("Zeus: the service of a signal gives nothing new; what it gave before counts. %s", problem)
        return held
    if held is not None and held.unit[:2] == found.unit[:2]:
        found = held.merged(found)
        found = replace(found, steps=tuple(step for step in found.steps if step.end_s > since_s))
    keep(found.to_json())
    return found


def _series(extra: Mapping[str, Any], host: str, key: str, start_s: float, end_s: float) -> Series:
    """The series that a Connection's extra names. Raises JobSpecError, and :data:`FAULTS`."""
    zone = str(extra.get("zone", ""))
    if "tariff" in extra:
        return Tariff.parse(extra["tariff"]).series(start_s, end_s)
    if "preset" in extra:
        given = extra["preset"]
        services = [preset(name) for name in (given if isinstance(given, list) and given else [given])]
        return reduce(Series.merged, [_asked(each, zone, host, key, start_s, end_s) for each in services])
    if not extra.get("times") or not (extra.get("values") or extra.get("forecasts")):
        remedy = 'name "preset", "tariff", or "url" or "file" with "times", "values" (or "forecasts") and "unit"'
        raise JobSpecError.of("extra", sorted(map(str, extra)), "no signal", remedy)
    named = {each.name: extra[each.name] for each in fields(Layout) if each.name in extra}
    for name, value in named.items():
        if name == "step_s" and not (is_number(value) and value > 0):
            raise JobSpecError.of(name, value, "no length of a step", 'write the seconds as a number: "step_s": 3600')
        if name != "step_s" and not isinstance(value, str):
            raise JobSpecError.of(name, value, "no text", 'write a path or a column: "$.data[*].from"')
    layout = Layout(**{"unit": "", **named})
    if "file" in extra:
        name = str(extra["file"])
        return parsed(_file(name), layout, zone=zone, source=os.path.basename(name))  # pages show it: no path
    key_header = str(extra.get("key_header", ""))
    service = Preset(host="", path=str(extra.get("url", "")), layout=layout, key_header=key_header)
    return _asked(service, zone, "", key, start_s, end_s)


def _asked(service: Preset, zone: str, host: str, key: str, start_s: float, end_s: float) -> Series:
    """Ask a service once. Its source is its host alone: a key may stand in the rest of its address."""
    address = service.url(zone, start_s, end_s, host)
    headers = {"Accept": "application/json, text/csv", "User-Agent": "airflow-provider-zeus"}
    if service.key_header and key:
        headers[service.key_header] = key
    is_local = of_airflow("signal_allow_local").strip().lower() in ("true", "t", "1")
    text = text_of(answer_of(address, headers, MOST_CHARACTERS, allow_local=is_local))
    return parsed(text, service.layout, zone=zone, source=urlsplit(address).hostname or "")


def _file(name: str) -> str:
    """The text of a file below ``[zeus] signal_root``. Raises JobSpecError: it is elsewhere, or no plain file."""
    root = of_airflow("signal_root").strip() or airflow_home() / "signals"
    try:
        data = read_below(root, name, MOST_CHARACTERS)
    except ValueError as error:
        remedy = "put it below [zeus] signal_root (empty: $AIRFLOW_HOME/signals), or set that to its folder"
        raise JobSpecError.of("file", os.path.basename(name), str(error), remedy) from None
    return text_of(data)
