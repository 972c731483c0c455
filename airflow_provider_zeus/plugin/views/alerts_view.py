"""What the tab of a DAG tells of the budgets of a job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from airflow_provider_zeus.model.budget import STOPS
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Answer, Figure, Tile
from airflow_provider_zeus.reports.budget_figures import BudgetFigures, budget_figures
from airflow_provider_zeus.signals.prices import Prices


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
