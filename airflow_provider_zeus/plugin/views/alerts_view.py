"""What the tab of a DAG tells of the events of a job, and of its budgets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from airflow_provider_zeus.model.budget import STOPS
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import AlertRow, Alerts, Answer, Figure, SilencedKind, Tile
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
from airflow_provider_zeus.reports.budget_figures import BudgetFigures, budget_figures
from airflow_provider_zeus.signals.prices import Prices

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


def budget_answers(
    trials: Sequence[Trial], job: ZeusJob, prices: Prices, now_s: float, *, reader: str | None = None
) -> list[Answer]:
    """One answer for each budget of the job.

    :param trials: of the job in all DAGs, by number; ``now_s``: seconds since the epoch.
    :param reader: DAG whose readers see the texts, which name no run of another DAG; None: they name all.
    """
    answers = []
    for budget in job.budgets:
        allowance = prices.allowance(budget, now_s)
        if isinstance(allowance, str):
            answers.append(Answer(question="Budget", about=budget.text, note=f"Not known: {allowance}."))
            continue
        until = f"{datetime.fromtimestamp(allowance.end_s, UTC):%Y-%m-%d} (UTC)"
        found = budget_figures(trials, allowance, now_s)
        if isinstance(found, str):
            answers.append(
                Answer(question="Budget", about=f"{budget.text}, until {until}", note=f"Not known: {found}.")
            )
        else:
            answers.append(_answer(found, job, until, reader))
    return answers


def _answer(found: BudgetFigures, job: ZeusJob, until: str, reader: str | None) -> Answer:
    budget, used = found.use.allowance.budget, found.use
    share = used.spent / budget.amount
    spent = f"{budget.amount_text(used.spent)} ({words.share(share).text})"
    running = f"open runs are expected to take {budget.amount_text(used.committed)}" if used.committed else ""
    no_forecast = "a forecast needs three runs whose figures are known"
    forecast = Figure(exact=no_forecast)
    if found.forecast is not None:
        exact = "what is spent, and the mean of the newest runs until the period ends"
        forecast = Figure(value=found.forecast, text=f"{budget.amount_text(found.forecast)}", exact=exact)
    over = found.forecast is not None and found.forecast > budget.amount
    events = []
    for passed in found.passed:
        origin, day = passed.trial.origin, f"{datetime.fromtimestamp(passed.trial.opened_at, UTC):%Y-%m-%d}"
        run = f"run {origin.run_id}" if reader in (None, origin.dag_id) else "a run of another DAG"
        events.append(f"{words.share(passed.share).text} passed on {day} by {run}.")
    if used.share >= 1 and (stops := STOPS.get(job.on_budget)):
        events.append(f"{stops} until {until}.")
    return Answer(
        question="Budget",
        about=f"{budget.text}, until {until}",
        share=share,
        figures=[
            Tile(
                name="Spent",
                figure=Figure(value=used.spent, text=spent, exact=budget.text),
                note=running,
                kind="bad" if share >= 1 else "",
            ),
            Tile(
                name="Forecast",
                figure=forecast,
                note=no_forecast if found.forecast is None else "more than the budget" if over else "",
                kind="warn" if over else "",
            ),
        ],
        note=" ".join(events),
    )
