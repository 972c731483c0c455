"""What each page shows, block by block: a new figure is one entry here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.plugin.charts import metric_chart, run_charts
from airflow_provider_zeus.plugin.charts.dag_saved import saved_chart
from airflow_provider_zeus.plugin.text import headline, saved_text, words
from airflow_provider_zeus.plugin.views import compare_view
from airflow_provider_zeus.plugin.views.dag_view import shifts


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a page.

    :param id: its name in the answer, and of its element on the page.
    :param title: its heading or its label for a screen reader; empty: it needs none.
    :param draw: how it is drawn: a function of static/blocks.js.
    :param make: its content, from what the page is made of (``None``: the answer holds it already).
    :param slow: it takes all runs of the job: a second request brings it.
    """

    id: str
    title: str
    draw: str
    make: Callable[[Any], Any] | None = None
    slow: bool = False


PAGES: Mapping[str, Sequence[Block]] = {
    "dag": [  # of a view.JobRuns; the slow ones of a view.JobLog
        Block(
            "headline",
            "",
            "answers",
            lambda of: headline.of_job(
                of.known.saving, of.known.next_run, of.known.source, of.factors, all_of=not of.more
            ),
            slow=True,
        ),
        Block("budgets", "Budgets", "answers", lambda of: of.budgets),
        Block("alerts", "Alerts", "alerts", lambda of: of.alerts),
        Block("shift", "", "text", lambda of: shifts(of.known.log.of_target().here(), of.factors, of.hours), slow=True),
        Block("left_out", "", "text"),
        Block("facts", "Target and weights of the job", "facts", lambda of: of.facts),
        Block("settings", "Live settings", "live", lambda of: words.settings(of.live)),
        Block("controls", "Pause exploration or pin a batch size", "controls"),
        Block("remarks", "What changed about the job", "list", lambda of: of.remarks),
        Block("verdict", "", "verdict", lambda of: saved_text.job_verdict(of.known.saving, all_of=not of.more), True),
        Block(
            "tiles",
            "What was saved",
            "tiles",
            lambda of: saved_text.job_tiles(of.known.saving, of.known.source, all_of=not of.more),
            slow=True,
        ),
        Block("levers", "What saved it", "unfolded", lambda of: of.levers, slow=True),
        Block("whose", "Figures of", "device", lambda of: {"text": of.known.device, "source": of.known.source}, True),
        Block("gaps", "What these runs are, and what the figures leave out", "list", lambda of: of.gaps, slow=True),
        Block("cost", "", "chart", lambda of: of.cost, slow=True),
        Block(
            "saved",
            "",
            "chart",
            lambda of: words.badged(saved_chart(of.known.saving, of.rows), of.known.source),
            slow=True,
        ),
        Block("belief", "", "chart", lambda of: of.belief, slow=True),
        Block("front", "", "chart", lambda of: of.front, slow=True),
        Block("what_if", "What if", "whatIf"),
        Block("rows", "Runs", "runs", lambda of: of.rows),
        Block("store", "Trial log", "text"),
    ],
    "measured": [  # of a view.JobRuns whose job chooses no batch size; the slow ones of a MeasuredLog
        Block("headline", "", "answers", lambda of: of.headline, slow=True),
        Block("budgets", "Budgets", "answers", lambda of: of.budgets),
        Block("alerts", "Alerts", "alerts", lambda of: of.alerts),
        Block("left_out", "", "text"),
        Block("remarks", "What changed about the job", "list", lambda of: of.remarks),
        Block("gaps", "What these runs are", "list", lambda of: of.gaps, slow=True),
        Block("cost", "", "chart", lambda of: of.cost, slow=True),
        Block("rows", "Runs", "runs", lambda of: of.rows),
        Block("store", "Trial log", "text"),
    ],
    "run": [  # of one part, a view.RunPart; the slow ones of a view.RunTraces
        Block("progress", "", "progress", lambda of: of.progress),
        Block("headline", "", "answers", lambda of: of.headline),
        Block("verdict", "", "verdict", lambda of: of.verdict),
        Block("tiles", "What this run cost", "tiles", lambda of: of.tiles),
        Block("notes", "", "remarks", lambda of: of.notes),
        Block("facts", "Target and weights of the job", "facts", lambda of: of.facts),
        Block("settings", "Live settings", "live", lambda of: words.settings(of.live)),
        Block("attempts", "Its attempts, in order", "attempts", lambda of: of.attempts),
        Block("power", "", "chart", lambda of: words.badged(run_charts.power(of.drawn), of.source), slow=True),
        Block("metric", "", "chart", lambda of: metric_chart.attempts(of.trials), slow=True),
        Block("gpus", "", "openChart", lambda of: of.gpus, slow=True),
        Block("curves", "", "openChart", lambda of: of.curves, slow=True),
    ],
    "compare": [  # of a view.Comparison
        Block("remarks", "Why the figures may not compare", "list", lambda of: of.remarks),
        Block("costs", "What they cost", "compared", lambda of: of.table("What they cost", compare_view.costs_of)),
        Block(
            "decisions",
            "What was decided, and why",
            "compared",
            lambda of: of.table("What was decided, and why", compare_view.decisions_of),
        ),
        Block("compared", "Charts", "chart", lambda of: of.charts),
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
    return [{"id": b.id, "title": b.title, "draw": b.draw, "slow": b.slow} for b in PAGES[page]]
