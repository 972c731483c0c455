"""The series of a Connection of type *Zeus signal*: a tariff, a file, or a service that is asked
once for all jobs.

The Connection's extra names one of them::

    {"preset": "energy-charts", "zone": "DE-LU"} {"url": "https://.../{zone}?from={start}", "times":
    "$.data[*].t", "values": "$.data[*].v", "unit": "g/kWh"} {"file": "carbon.csv", "times": "time",
    "values": "value", "unit": "g/kWh"} {"tariff": {"timezone": "Europe/Berlin", "unit": "EUR/kWh",
    "default": 0.31, "rules": [...]}}

A preset is a known service (``service.py``), or a list of such: if two have a value, the later one
counts. Its key is the Connection's password, and ``host`` replaces its host, for a mirror.
``key_header`` is the header of a URL's key. A file lies below ``[zeus] signal_root``.

The run log keeps the answers of services for a week and more, so that one task asks for all.
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
from airflow_provider_zeus.signals.forecast import (
    AHEAD_S,
    NO_FORECAST,
    NO_VALUES,
    Followed,
    Start,
    plan_start,
)
from airflow_provider_zeus.signals.parse import MOST_CHARACTERS, Layout, parsed, text_of
from airflow_provider_zeus.signals.prices import of_airflow
from airflow_provider_zeus.signals.series import Series, is_number
from airflow_provider_zeus.signals.service import Preset, answer_of, preset, problem_of
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.untrusted_files import read_below

CONNECTIONS = {"price": "zeus_price", "carbon": "zeus_carbon"}
BACK_S = 8 * 86_400.0  # a week to compare with, and a day more: series end late
KEPT_S = 10 * 86_400.0  # a week to compare with, and what a service publishes late
ALL_S = 12.0  # a task waits for so long at most, whatever hangs: names, a request or a slow body
# What a service, or a mistake in its Connection, may raise: none of it fails a training.
FAULTS = (
    OSError,
    ValueError,
    HTTPException,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)

log = guarded_log(__name__)


class Keeper(Protocol):
    """The part of a run log that keeps the series of services."""

    def signal(self, name: str) -> tuple[str | None, bool]:
        """The series kept under a name, and whether the caller is to ask the service now."""

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer."""


class ReadOnlyKeeper:
    """A :class:`Keeper` for pages and commands: no service is asked, and nothing is changed.

    :param kept: gives the series that the run log keeps under a name. Raises StoreError.
    """

    def __init__(self, kept: Callable[[str], str | None]) -> None:
        self._kept = kept

    def signal(self, name: str) -> tuple[str, bool]:
        """The series kept under a name. Raises OSError if there is none."""
        try:
            text = self._kept(name)
        except StoreError as error:
            raise OSError(str(error)) from None
        if text is None:
            raise FileNotFoundError(name)  # one of FAULTS, so readers get the usual SignalError
        return text, False

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep nothing."""


def followed(job: ZeusJob, keeper: Keeper | None = None) -> Followed | None:
    """The series that the power limit of a run follows; None if the job follows none, or none can
    be read.

    The second is logged with the remedy; a ``strict`` job raises SignalError.

    :param keeper: keeps the series of services, as for :func:`signal_series`.
    """
    # Most jobs follow nothing: no Connection is looked up for them.
    if job.follow is None:
        return None
    name = str(job.follow)
    now_s = time.time()

    def read() -> Followed | None:
        series = signal_series(name, now_s - BACK_S, now_s + AHEAD_S, keeper)
        return Followed.of(name, series, now_s)

    try:
        signal = bounded(read, ALL_S)
        if signal is not None:
            return signal
        problem = SignalError.of(
            name, "over a day of the week before now is missing, or its mean is not above 0"
        )
    except SignalError as error:
        problem = error
    except Exception as error:  # of any kind: a signal never fails a training
        problem = SignalError.of(name, type(error).__name__)
    # A strict job would rather not train than train at a limit that nobody meant.
    if job.strict:
        raise problem from None
    log.warning("Zeus: the power limit follows no signal in this run. %s", problem)
    return None


def planned_start(
    signal: str, now_s: float, latest_s: float, duration_s: float, keeper: Keeper | None = None
) -> tuple[Start, str]:
    """(the cheapest start up to ``latest_s`` of a run of that length, unit of the signal).

    Raises SignalError if the signal cannot tell.

    :param signal: ``"carbon"``, ``"price"`` or the id of a Connection of type *Zeus signal*.
    :param keeper: keeps the series of services.
    """

    def plan() -> tuple[Start, str]:
        series = signal_series(signal, now_s - BACK_S, latest_s + duration_s, keeper)
        start = plan_start(series, series, now_s=now_s, latest_s=latest_s, duration_s=duration_s)
        return start, series.unit.name

    try:
        start, unit = bounded(plan, ALL_S)
    except SignalError:
        raise
    except Exception as error:  # of any kind: a signal never fails a training
        raise SignalError.of(signal, type(error).__name__) from None
    # Without a forecast nobody knows whether a wait pays, and the author should hear why.
    if start.reason in (NO_VALUES, NO_FORECAST):
        raise SignalError.of(signal, start.reason)
    return start, unit


def signal_series(
    signal: str, start_s: float, end_s: float, keeper: Keeper | None = None
) -> Series:
    """The series of a signal for a span [s since the epoch]: ``"price"``, ``"carbon"``, or the id
    of a Connection.

    ``"price"`` without a Connection ``zeus_price`` is ``[zeus] tariff``. Raises SignalError that
    names the remedy, and never the fields of the Connection.

    :param keeper: keeps the series of services, so that one task asks for all, and the past is
        remembered. What is kept is asked for over the week before now and the days ahead, even if
        one caller needs a part of that.
    """
    from airflow.sdk import BaseHook

    conn_id = CONNECTIONS.get(signal, signal)
    try:
        try:
            conn = BaseHook.get_connection(conn_id)
        except Exception:  # Airflow's errors of a Connection that is not there differ by version
            # A Connection comes before the option, since it has real prices.
            tariff = of_airflow("tariff").strip() if signal == "price" else ""
            if tariff:
                return Tariff.parse(json.loads(tariff)).series(start_s, end_s)
            raise NoSignalError.of(
                signal, f"there is no Connection {conn_id!r} of type 'Zeus signal'"
            ) from None
        extra = conn.extra_dejson
        # Airflow gives None for an empty field of a form.
        host = conn.host or ""
        key = conn.password or ""
        # They cost no request, so nothing has to be kept.
        if "tariff" in extra or "file" in extra:
            return _series(extra, host, key, start_s, end_s)
        if keeper is not None:
            now_s = time.time()
            start_s = min(start_s, now_s - BACK_S)
            end_s = max(end_s, now_s + AHEAD_S)
        # A changed Connection must not get the values kept for the old one; a new key changes none.
        content = json.dumps([extra, host], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return kept_series(
            keeper, f"{conn_id}.{digest}", lambda: _series(extra, host, key, start_s, end_s)
        )
    except JobSpecError as error:
        raise SignalError.of(
            signal, f"Connection {conn_id!r}: {error.without_value.rstrip('.')}"
        ) from None
    except FAULTS as error:
        # An address may hold a key, and an error the address: neither is repeated.
        raise SignalError.of(
            signal, f"Connection {conn_id!r} gave no answer ({problem_of(error)})"
        ) from None


def kept_series(
    keeper: Keeper | None,
    name: str,
    ask: Callable[[], Series],
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Series:
    """The kept series with the service's newest values; of several callers at once one asks.

    Without a keeper, or if it fails, the service is asked. If the service gives no answer, the kept
    series counts. Raises the errors of ``ask`` if nothing is kept, and TimeoutError if another
    caller got no answer.

    :param name: of the service, the zone and all else that the values depend on.
    """
    if keeper is None:
        return ask()
    # The caller that asks needs a moment, and a second request would cost as much.
    until_s = clock() + 6.0
    try:
        text, is_mine = keeper.signal(name)
        # The caller that asks may have died: then another one is to ask.
        while (text, is_mine) == (None, False) and clock() < until_s:
            sleep(0.5)
            text, is_mine = keeper.signal(name)
    except StoreError as error:
        log.debug("Zeus keeps no series: %s", error)
        return ask()
    kept = None
    if text is not None:
        try:
            kept = Series.from_json(text)
        except ValueError as error:
            log.warning("Zeus: a series in the run log is %s, and is asked for again.", error)
    # The others take what is kept: one request serves all jobs.
    if is_mine:
        return _renewed(keeper, name, ask, kept, since_s=clock() - KEPT_S)
    if kept is None:
        raise TimeoutError
    return kept


def _renewed(
    keeper: Keeper, name: str, ask: Callable[[], Series], kept: Series | None, since_s: float
) -> Series:
    """The kept series with the answer of the service, which is then kept from ``since_s`` on.

    The kept series alone if the service gives no answer.
    """

    def keep(series: str | None) -> None:
        try:
            keeper.keep_signal(name, series)
        except StoreError as error:
            log.debug("Zeus keeps no series: %s", error)

    try:
        answer = ask()
    except Exception as error:
        keep(None)
        # A mistake in the Connection is told at once; a service that is down is not.
        if kept is None or not isinstance(error, FAULTS):
            raise
        problem = f"no answer ({problem_of(error)})"
        if isinstance(error, JobSpecError):
            problem = error.without_value
        log.warning(
            "Zeus: the service of a signal gives nothing new; what it gave before counts. %s",
            problem,
        )
        return kept
    if kept is not None and kept.unit.is_like(answer.unit):
        both = kept.merged(answer)
        # The past beyond a week is compared with nothing: kept, it would grow for ever.
        answer = replace(both, steps=tuple(step for step in both.steps if step.end_s > since_s))
    keep(answer.to_json())
    return answer


def _series(extra: Mapping[str, Any], host: str, key: str, start_s: float, end_s: float) -> Series:
    """The series that a Connection's extra names. Raises JobSpecError, and :data:`FAULTS`."""
    zone = str(extra.get("zone", ""))
    if "tariff" in extra:
        return Tariff.parse(extra["tariff"]).series(start_s, end_s)
    if "preset" in extra:
        names = extra["preset"]
        # A list, since one service may lack hours that another has; one name is the usual case.
        if not isinstance(names, list) or not names:
            names = [names]
        services = [preset(name) for name in names]
        answers = [
            _asked(service, zone, host, key=key, start_s=start_s, end_s=end_s)
            for service in services
        ]
        return reduce(Series.merged, answers)
    layout = _layout(extra)
    if "file" in extra:
        name = str(extra["file"])
        # Pages show it to readers who may not know the folders of a host.
        return parsed(_file(name), layout, zone=zone, source=os.path.basename(name))
    key_header = str(extra.get("key_header", ""))
    service = Preset(host="", path=str(extra.get("url", "")), layout=layout, key_header=key_header)
    return _asked(service, zone, "", key=key, start_s=start_s, end_s=end_s)


def _layout(extra: Mapping[str, Any]) -> Layout:
    """The places of times and values in the answer of a URL or a file. Raises JobSpecError."""
    has_values = extra.get("values") or extra.get("forecasts")
    if not extra.get("times") or not has_values:
        remedy = (
            'name "preset", "tariff", or "url" or "file" with "times", "values" (or "forecasts") '
            'and "unit"'
        )
        raise JobSpecError.of("extra", sorted(map(str, extra)), "no signal", remedy)
    named = {field.name: extra[field.name] for field in fields(Layout) if field.name in extra}
    for name, value in named.items():
        if name == "step_s":
            if not is_number(value) or value <= 0:
                remedy = 'write the seconds as a number: "step_s": 3600'
                raise JobSpecError.of(name, value, "no length of a step", remedy)
        elif not isinstance(value, str):
            remedy = 'write a path or a column: "$.data[*].from"'
            raise JobSpecError.of(name, value, "no text", remedy)
    return Layout(**{"unit": "", **named})


def _asked(
    service: Preset, zone: str, host: str, *, key: str, start_s: float, end_s: float
) -> Series:
    """Ask a service once.

    Its source is its host alone: a key may stand in the rest of its address.
    """
    address = service.url(zone, start_s, end_s, host)
    # Some services refuse a client without a name.
    headers = {"Accept": "application/json, text/csv", "User-Agent": "airflow-provider-zeus"}
    if service.key_header and key:
        headers[service.key_header] = key
    # Services of the host itself often ask for no password: its administrator has to allow them.
    is_local = of_airflow("signal_allow_local").strip().lower() in ("true", "t", "1")
    text = text_of(answer_of(address, headers, MOST_CHARACTERS, allow_local=is_local))
    return parsed(text, service.layout, zone=zone, source=urlsplit(address).hostname or "")


def _file(name: str) -> str:
    """The text of a file below ``[zeus] signal_root``.

    Raises JobSpecError: it is elsewhere, or no plain file.
    """
    root = of_airflow("signal_root").strip() or airflow_home() / "signals"
    try:
        data = read_below(root, name, MOST_CHARACTERS)
    except ValueError as error:
        remedy = (
            "put it below [zeus] signal_root (empty: $AIRFLOW_HOME/signals), or set that to its "
            "folder"
        )
        raise JobSpecError.of("file", os.path.basename(name), str(error), remedy) from None
    return text_of(data)
