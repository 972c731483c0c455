"""Tables of Markdown, and what all generated pages begin with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a bar within a cell is escaped."""
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(cell: object) -> str:
    text = " ".join(str("" if cell is None else cell).split())
    return text.replace("|", "\\|")


def code(text: object) -> str:
    """The text as code; empty text stays empty."""
    return f"`{text}`" if str(text) else ""


def sentence(text: str) -> str:
    """The text of a docstring as Markdown: double backticks and Sphinx's roles become code."""
    return re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", " ".join(text.split()).replace("``", "`"))
