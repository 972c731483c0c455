"""Where the events of a job are kept: Variable ``zeus-alerts:<job>``, beside its live settings.

Variables have no locks. A change is written, read back, and made again on what is there then; still the change of
another task may be lost. So that one event is not sent twice by two tasks of a job is the store's work: it says who
sends an event now (:func:`claimed`), and remembers who has taken it (:func:`keep_taken`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.reports.alert_book import AlertBook, Record
from airflow_provider_zeus.store.live_settings import variable_key

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

ALERTS = "zeus-alerts"

log = logging.getLogger(__name__)


def read_book(port: AirflowVariables, job_id: str) -> AlertBook:
    """The book of a job; an empty one where its Variable holds something else. Raises StoreError: it cannot be read."""
    text = port.get(variable_key(ALERTS, job_id))
    try:
        return AlertBook.from_json(text)
    except (ValueError, RecursionError) as error:
        log.warning("Variable %r holds no events and is overwritten: %s", variable_key(ALERTS, job_id), error)
        return AlertBook()


def change_book(port: AirflowVariables, job_id: str, change: Callable[[AlertBook], AlertBook]) -> AlertBook:
    """Change the book of a job and return it; nothing is written where nothing changes. Raises StoreError."""
    key = variable_key(ALERTS, job_id)
    for _ in range(3):
        before = read_book(port, job_id)
        after = change(before)
        if after == before:
            return after
        text = after.to_json()
        port.set(key, text)
        if port.get(key) == text:
            return after
    raise StoreError(f"Variable {key!r} does not keep what is written to it; is it defined in the environment?")


def claimed(store: Store, job_id: str, record: Record) -> tuple[bool, list[str]]:
    """Whether the caller is the one task of the job that sends this event now, and which notifiers took it already.

    It is a row of the kept series of signals, whose lock gives each name to one caller in a minute. An event that
    began anew and one that is tried again have another row; rows are used again, so that a job has few. Raises
    StoreError.
    """
    kept, mine = store.signal(_row(job_id, record))
    name, _, taken = (kept or "").partition("\n")
    return mine, taken.splitlines() if name == _identity(record) else []


def keep_taken(store: Store, job_id: str, record: Record, taken_by: Sequence[str]) -> None:
    """Remember who took an event. Raises StoreError."""
    if taken_by and record.since is not None:  # without a trial an event cannot be told from one that began anew
        store.keep_signal(_row(job_id, record), "\n".join((_identity(record), *taken_by)))


def _identity(record: Record) -> str:
    return f"{record.name} since {record.since}"


def _row(job_id: str, record: Record) -> str:
    row = ((record.since or 0) + record.tries) % 16  # of each kind of event of a job
    digest = hashlib.sha256(f"{job_id} {record.dag_id} {record.name} {row}".encode(errors="replace")).hexdigest()
    return f"alert {digest[:40]}"
