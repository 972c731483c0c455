"""Regular expressions over texts of bounded length: the one module of the package that imports
``re``.

While a regular expression backtracks it holds the interpreter's lock. No other thread runs then, so
no time limit ends it: one long text would stop a task, an api-server or the triggerer. Longer texts
are read by string methods.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

MOST_CELL = 200  # matching takes time that grows with the text, and anybody may write it
MOST_LINE = 10_000  # matching takes time that grows with the text, and anybody may write it


def fullmatch(pattern: str, text: str, most: int = MOST_CELL) -> re.Match[str] | None:
    """Match the whole text; None for a text of over ``most`` characters."""
    return re.fullmatch(pattern, text) if len(text) <= most else None


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Find the first match in the first ``MOST_LINE`` characters."""
    return re.search(pattern, text[:MOST_LINE])


def findall(pattern: str, text: str) -> list[Any]:
    """Find all matches in the first ``MOST_LINE`` characters, as ``re.findall`` returns them."""
    return re.findall(pattern, text[:MOST_LINE])


def sub(pattern: str, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    """Replace all matches in a text, of which the first ``MOST_LINE`` characters are kept."""
    return re.sub(pattern, replacement, text[:MOST_LINE])
