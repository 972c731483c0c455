"""What each page shows, block by block: a new figure is one entry here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.plugin.charts import metric_chart, run_charts
from airflow_provider_zeus.plugin.charts.dag_charts import cost_chart
from airflow_provider_zeus.plugin.charts.dag_saved import saved_chart
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.headline import odd_state
from airflow_provider_zeus.plugin.text.saved_text import paid_off
from airflow_provider_zeus.plugin.views.dag_view import shifts
from airflow_provider_zeus.reports.next_run import next_rung


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a page.

    :param id: its name in the answer, and of its element on the page.
    :param title: its heading or its label for a screen reader; empty: it needs none.
    :param draw: how it is drawn: a function of static/blocks.js.
    :param make: its content, from what the page is made of (``None``: the answer holds it already).
    :param slow: it takes all runs of the job: a second request brings it.
    :param fold: the question that it answers, under which it is folded with others; empty: it is not.
    """

    id: str
    title: str
    draw: str
    make: Callable[[Any], Any] | None = None
    slow: bool = False
    fold: str = ""


PAID, SIZES = "Has it paid off, and what saved it?", "What does each batch size cost, and why does the next one run?"
OTHERWISE, EACH = "What would other weights choose, and what would another hour cost?", "What did each run do?"
MISSING = "What do these figures leave out, and where are they from?"

PAGES: Mapping[str, Sequence[Block]] = {
    "dag": [  # of a view.JobRuns; the slow ones of a view.JobLog
        Block("sentence", "", "sentence", lambda of: of.sentence, slow=True),
        Block("left_out", "", "text"),
        Block("state", "", "text", lambda of: odd_state(of.known.saving, of.known.next_run, of.known.source), True),
        Block("headline", "", "answers", lambda of: of.headline, slow=True),
        Block("facts", "", "text", lambda of: of.facts),
        Block("settings", "Live settings", "list", lambda of: [f"Live setting: {s}" for s in words.settings(of.live)]),
        Block("remarks", "What changed about the job", "list", lambda of: of.remarks),
        Block("alerts", "Alerts", "alerts", lambda of: of.alerts),
        Block("cost", "", "chart", lambda of: of.cost, slow=True),
        Block("paid", "", "text", lambda of: paid_off(of.known.saving, all_of=not of.more), True, PAID),
        Block("levers", "What saved it", "table", lambda of: of.levers, slow=True, fold=PAID),
        Block("saved", "", "chart", lambda of: saved_chart(of.known.saving, of.rows, of.known.weights), True, PAID),
        Block("worth", "What the last retrainings bought", "text", lambda of: of.worth, slow=True, fold=PAID),
        Block("service", "", "chart", lambda of: of.service, slow=True, fold=PAID),
        Block("why", "", "text", lambda of: f"The next run: {of.known.next_run.attempts[0].why}", True, SIZES),
        Block("belief", "", "chart", lambda of: of.belief, slow=True, fold=SIZES),
        Block(
            "shift",
            "",
            "text",
            lambda of: shifts(of.known.log.of_target().here(), of.factors, of.hours),
            slow=True,
            fold=OTHERWISE,
        ),
        Block("front", "", "chart", lambda of: of.front, slow=True, fold=OTHERWISE),
        Block("rows", "", "runs", lambda of: of.rows, fold=EACH),
        Block("controls", "", "controls", fold="How do I pause exploration, pin a batch size or measure the default?"),
        Block("gaps", "", "list", lambda of: of.gaps, slow=True, fold=MISSING),
        Block("whose", "Device", "text", lambda of: of.known.device, slow=True, fold=MISSING),
        Block("store", "Trial log", "text", fold=MISSING),
    ],
    "measured": [  # of a view.JobRuns whose job chooses no batch size; the slow ones of a MeasuredLog
        Block("sentence", "", "sentence", lambda of: of.sentence, slow=True),
        Block("left_out", "", "text"),
        Block("state", "", "text", lambda of: of.state, slow=True),
        Block("headline", "", "answers", lambda of: of.headline, slow=True),
        Block("facts", "", "text", lambda of: of.facts),
        Block("remarks", "What changed about the job", "list", lambda of: of.remarks),
        Block("alerts", "Alerts", "alerts", lambda of: of.alerts),
        Block("cost", "", "chart", lambda of: cost_chart(of.rows, of.weights), slow=True),
        # where nothing measures energy the state says what comes first
        Block("rung", "", "text", lambda of: "" if of.state else next_rung(of.job), slow=True),
        Block("rows", "", "runs", lambda of: of.rows, fold=EACH),
        Block("gaps", "", "list", lambda of: of.gaps, slow=True, fold=MISSING),
        Block("store", "Trial log", "text", fold=MISSING),
    ],
    "run": [  # of one part, a view.RunPart; the slow ones of a view.RunTraces
        Block("progress", "", "progress", lambda of: of.progress),
        Block("verdict", "", "verdict", lambda of: of.verdict),
        Block("headline", "", "answers", lambda of: of.headline),
        Block("notes", "", "remarks", lambda of: of.notes),
        Block("facts", "", "text", lambda of: of.facts),
        Block("settings", "Live settings", "list", lambda of: [f"Live setting: {s}" for s in words.settings(of.live)]),
        Block("attempts", "Its attempts, in order", "attempts", lambda of: of.attempts),
        Block("power", "", "chart", lambda of: of.power, slow=True),
        Block("metric", "", "chart", lambda of: metric_chart.attempts(of.trials), slow=True),
        Block("gpus", "", "openChart", lambda of: run_charts.gpus(of.trials), slow=True),
        Block("curves", "", "openChart", lambda of: of.curves, slow=True),
    ],
    "overview": [
        Block("left_out", "", "text"),
        Block("month", "", "month"),
        Block("jobs", "Jobs", "jobs"),
        Block("store", "Trial log", "text"),
    ],
}


def content(page: str, of: object, *, slow: bool = False) -> dict[str, Any]:
    """The blocks of a page by their names: the quick ones, or the slow ones. ``of``: what they are made of."""
    return {block.id: block.make(of) for block in PAGES[page] if block.make and block.slow == slow}


def layout(page: str) -> list[dict[str, Any]]:
    """Which blocks a page shows and how, in order, for its script."""
    return [{n: getattr(b, n) for n in ("id", "title", "draw", "slow", "fold")} for b in PAGES[page]]
