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
_ROWS = 16  # of each kind of event of a job

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

    It is a row of the kept series of signals, whose lock gives each name to one caller in 15 minutes. An event that
    began anew and one that is tried again have another row; rows are used again, so that a job has few.
    """
    name = record.name.rstrip("-0123456789")  # of a budget without its period
    row = ((record.since or 0) + record.tries) % _ROWS
    digest = hashlib.sha256(f"{job_id} {name} {row}".encode(errors="replace")).hexdigest()
    return store.signal(f"alert {digest[:40]}")[1]
