"""What the tab of a DAG tells of the events of a job. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_zeus.plugin.views.models import AlertRow, Alerts, SilencedKind
from airflow_provider_zeus.reports.alert_book import AlertBook, Record
from airflow_provider_zeus.reports.alerts import (
    DEADLINE,
    DRIFTED,
    FAILING,
    LIMITS,
    LOST,
    NO_DATA,
    NO_METRIC,
    STORE,
)

NAMES = {
    FAILING: "Failing",
    DRIFTED: "Drifted",
    LOST: "Lost",
    LIMITS: "Limit not set",
    STORE: "Store away",
    DEADLINE: "Deadline at risk",
    NO_DATA: "No data",
    NO_METRIC: "No metric reported",
}


def alerts_of(book: AlertBook, dag_id: str, *, may_edit: bool, named: bool) -> Alerts:
    """The open events and the past ones, newest first. Those that runs of another DAG showed are left out.

    :param named: whether it is shown who silenced a kind.
    """
    rows = [(r, _row(r, book)) for r in reversed(book.records) if r.dag_id == dag_id]
    return Alerts(
        open=[row for record, row in rows if record.ended_s is None],
        past=[row for record, row in rows if record.ended_s is not None],
        silenced=[
            SilencedKind(
                kind=kind, text=f"{NAMES.get(kind, kind)}: silenced{f' by {s.by}' * named} on {_time(s.at_s)}."
            )
            for kind, s in book.silenced.items()
        ],
        may_edit=may_edit,
    )


def _row(record: Record, book: AlertBook) -> AlertRow:
    until = "" if record.ended_s is None else f" until {_time(record.ended_s)}"
    silenced, is_open = record.kind in book.silenced, record.ended_s is None
    if record.sent_to and record.sent_s is not None:
        others = f" Not sent: {record.not_sent}." if record.not_sent else ""
        sent = f"Sent to {', '.join(record.sent_to)} on {_time(record.sent_s)}.{others}"
    elif silenced:
        sent = "Not sent: silenced."
    elif record.not_sent:
        sent = f"Not sent: {record.not_sent}.{' The next run tries again.' * is_open}"
    else:
        reached = "was reached yet" if is_open else "was reached"
        sent = f"Not sent: neither [zeus] notifiers nor ZeusJob(notify=...) names a notifier, or none {reached}."
    return AlertRow(
        kind=record.kind,
        name=NAMES.get(record.kind, record.kind),
        sentence=record.sentence,
        remedy=record.remedy,
        run_id=record.run_id,
        when=f"{'since' if is_open else 'from'} {_time(record.began_s)}{until}",
        sent=sent,
        not_sent=not record.sent_to and not silenced,
        silenced=silenced,
    )


def _time(time_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # a person wrote the Variable
        return "an unknown time"
