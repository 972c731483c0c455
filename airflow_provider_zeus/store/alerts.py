"""Where the events of a job are kept: Variable ``zeus-alerts:<job>``, beside its live settings.

Variables have no locks. A change is written, read back, and made again on what is there then; that one event is not
sent twice by two tasks of a job is the store's work (:func:`claimed`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.reports.alert_book import AlertBook, Record
from airflow_provider_zeus.store.base import Store, VariablePort
from airflow_provider_zeus.store.live_settings import variable_key

ALERTS = "zeus-alerts"
_TRIES = 3

log = logging.getLogger(__name__)


def read_book(port: VariablePort, job_id: str) -> AlertBook:
    """The book of a job; an empty one where its Variable holds something else. Raises StoreError: it cannot be read."""
    text = port.get(variable_key(ALERTS, job_id))
    try:
        return AlertBook.from_json(text)
    except (ValueError, RecursionError) as error:
        log.warning("Variable %r holds no events and is written over: %s", variable_key(ALERTS, job_id), error)
        return AlertBook()


def change_book(port: VariablePort, job_id: str, change: Callable[[AlertBook], AlertBook]) -> AlertBook:
    """Change the book of a job and return it; nothing is written where nothing changes. Raises StoreError."""
    key = variable_key(ALERTS, job_id)
    for _ in range(_TRIES):
        before = read_book(port, job_id)
        after = change(before)
        if after == before:
            return after
        text = after.to_json()
        port.set(key, text)
        if port.get(key) == text:
            return after
    raise StoreError(f"Variable {key!r} does not keep what is written to it; is it defined in the environment?")


def claimed(store: Store, job_id: str, record: Record) -> bool:
    """Whether the caller is the one task of the job that sends this event now. Raises StoreError.

    It is a row of the kept series of signals: their lock gives each name to one caller in 15 minutes. What the row
    holds tells an event that began anew meanwhile.
    """
    mark = f"{record.name} {record.since or record.run_id}"
    kept, mine = store.signal(_claim(job_id, record))
    if not mine and kept == mark:
        return False
    store.keep_signal(_claim(job_id, record), mark)
    return True


def release(store: Store, job_id: str, record: Record) -> None:
    """Not every notifier took the event: the next task may try. Raises StoreError."""
    store.keep_signal(_claim(job_id, record), "")


def _claim(job_id: str, record: Record) -> str:
    name = record.name.rstrip("-0123456789")  # a budget's without its period: as many rows as kinds of event
    return f"alert {hashlib.sha256(f'{job_id} {name}'.encode(errors='replace')).hexdigest()[:40]}"
