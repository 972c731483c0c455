"""The blocks of each page: a new figure is one entry here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a page.

    :param id: its name in the answer, of its element on the page, and of the attribute of a view
        that is its content.
    :param draw: how it is drawn: a function of static/blocks.js.
    :param title: its heading or its label for a screen reader; empty: it needs none.
    :param slow: it takes all runs of the job: a second request brings it.
    :param fold: the question that it answers, under which it is folded with others; empty: it is
        not.
    :param in_answer: no view has it: the answer holds it already.
    """

    id: str
    draw: str
    title: str = ""
    slow: bool = False
    fold: str = ""
    in_answer: bool = False


PAID = "Has it paid off, and what saved it?"
SIZES = "What does each batch size cost, and why does the next one run?"
OTHERWISE = "What would other weights choose, and what would another hour cost?"
EACH = "What did each run do?"
CONTROLS = "How do I pause exploration, pin a batch size or measure the default?"
MISSING = "What do these figures leave out, and where are they from?"

LEFT_OUT = Block("left_out", "text", in_answer=True)
STORE = Block("store", "text", "Run log", in_answer=True)
FACTS = Block("facts", "text")
SETTINGS = Block("settings", "list", "Live settings")
ROWS = Block("rows", "runs", fold=EACH)
GAPS = Block("gaps", "list", slow=True, fold=MISSING)
REMARKS = Block("remarks", "list", "What changed about the job")
ALERTS = Block("alerts", "alerts", "Alerts")
FIRST_LINES = (
    Block("sentence", "sentence", slow=True),
    LEFT_OUT,
    Block("state", "text", slow=True),
    Block("headline", "answers", slow=True),
    FACTS,
)

PAGES: Mapping[str, Sequence[Block]] = {
    "dag": [  # the slow ones read the whole log, so they come later
        *FIRST_LINES,
        SETTINGS,
        REMARKS,
        ALERTS,
        Block("cost", "chart", slow=True),
        Block("paid", "text", slow=True, fold=PAID),
        Block("levers", "table", "What saved it", slow=True, fold=PAID),
        Block("saved", "chart", slow=True, fold=PAID),
        Block("worth", "text", "What the last retrainings bought", slow=True, fold=PAID),
        Block("service", "chart", slow=True, fold=PAID),
        Block("why", "text", slow=True, fold=SIZES),
        Block("belief", "chart", slow=True, fold=SIZES),
        Block("shift", "text", slow=True, fold=OTHERWISE),
        Block("front", "chart", slow=True, fold=OTHERWISE),
        ROWS,
        Block("controls", "controls", fold=CONTROLS, in_answer=True),
        GAPS,
        Block("whose", "text", "Device", slow=True, fold=MISSING),
        Block("store", "text", "Run log", fold=MISSING, in_answer=True),
    ],
    "tasks": [  # several jobs have no common sum: a reader chooses one first
        LEFT_OUT,
        Block("tasks", "tasks", in_answer=True),
        STORE,
    ],
    "measured": [
        *FIRST_LINES,
        REMARKS,
        ALERTS,
        Block("cost", "chart", slow=True),
        Block("rung", "text", slow=True),
        ROWS,
        GAPS,
        Block("store", "text", "Run log", fold=MISSING, in_answer=True),
    ],
    "run": [  # the slow ones read traces, so they come later
        Block("progress", "progress"),
        Block("verdict", "verdict"),
        Block("headline", "answers"),
        Block("notes", "remarks"),
        FACTS,
        SETTINGS,
        Block("attempts", "attempts", "Its attempts, in order"),
        Block("power", "chart", slow=True),
        Block("metric", "chart", slow=True),
        Block("gpus", "openChart", slow=True),
        Block("curves", "openChart", slow=True),
    ],
    "overview": [
        LEFT_OUT,
        Block("month", "month", in_answer=True),
        Block("jobs", "jobs", "Jobs", in_answer=True),
        Block("dags", "dags", in_answer=True),
        STORE,
    ],
}


def content(page: str, view: object, *, slow: bool = False) -> dict[str, Any]:
    """The blocks of a page by their names: the quick ones, or the slow ones."""
    of_view = [block for block in PAGES[page] if not block.in_answer]
    return {block.id: getattr(view, block.id) for block in of_view if block.slow == slow}


def layout(page: str) -> list[dict[str, Any]]:
    """Which blocks a page shows and how, in order, for its script."""
    return [
        {
            "id": block.id,
            "title": block.title,
            "draw": block.draw,
            "slow": block.slow,
            "fold": block.fold,
        }
        for block in PAGES[page]
    ]
