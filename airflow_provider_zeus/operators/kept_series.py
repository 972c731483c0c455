"""The series of a service, kept in the trial log: asked for once for all jobs, and remembered for a week and more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Protocol

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.signals.series import Series

KEPT_S = 10 * 86_400.0  # of the past: a week to compare with, and what a service tells late
OTHERS_S, PAUSE_S = 6.0, 0.5  # wait for the one that asks; between two looks
FAULTS = (OSError, ValueError, HTTPException, LookupError, TypeError, AttributeError)  # of a service or its Connection

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """The part of a :class:`~airflow_provider_zeus.store.sql.store.Store` that keeps series."""

    def signal(self, name: str) -> tuple[str | None, bool]:
        """The series kept under a name, and whether the caller is to ask the service now."""

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer."""


def kept_series(
    keeper: Keeper | None,
    name: str,
    ask: Callable[[], Series],
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Series:
    """The kept series with the service's newest values; of several callers at once one asks.

    Without a keeper, or where it fails, the service is asked. Where the service gives no answer, what is kept counts.
    Raises what ``ask`` raises where nothing is kept, and TimeoutError where another caller got no answer.

    :param name: of the service, the zone and all else that the values depend on.
    """
    if keeper is None:
        return ask()
    try:
        text, is_mine = keeper.signal(name)
        begun_s = clock()
        while text is None and not is_mine and clock() < begun_s + OTHERS_S:
            sleep(PAUSE_S)
            text, is_mine = keeper.signal(name)
    except StoreError as error:
        log.debug("Zeus keeps no series: %s", error)
        return ask()
    held = _read(text)
    if is_mine:
        return _renewed(keeper, name, ask, held, clock() - KEPT_S)
    if held is None:
        raise TimeoutError
    return held


def _renewed(keeper: Keeper, name: str, ask: Callable[[], Series], held: Series | None, since_s: float) -> Series:
    try:
        found = ask()
    except Exception as error:
        _keep(keeper, name, None)
        if held is None or not isinstance(error, FAULTS):
            raise
        return held
    if held is not None and held.unit[:2] == found.unit[:2]:
        found = held.merged(found).since(since_s)
    _keep(keeper, name, found.to_json())
    return found


def _read(text: str | None) -> Series | None:
    try:
        return None if text is None else Series.from_json(text)
    except ValueError as error:
        log.warning("Zeus: a series in the trial log is %s, and is asked for anew.", error)
        return None


def _keep(keeper: Keeper, name: str, text: str | None) -> None:
    try:
        keeper.keep_signal(name, text)
    except StoreError as error:
        log.debug("Zeus keeps no series: %s", error)
