"""Texts that came from a training, as they may be printed, logged and written into a table."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_FORMULA = ("=", "+", "-", "@")  # a spreadsheet would compute such a text


def visible(text: str) -> str:
    r"""``text`` in one line, with an escape (``\x1b``, ``\n``, ``\u202e``) for each character that has no picture.

    Such characters colour or clear a terminal, begin a line that looks like another one, or turn a line around.
    """
    if text.isprintable():
        return text
    return "".join(each if _has_picture(each) else repr(each)[1:-1] for each in text)


def cell(value: Any) -> Any:
    """A cell of a CSV file: text in one line that no spreadsheet takes for a formula, JSON for what is nested.

    A number is no text and stays as it is.
    """
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(_FORMULA) else visible(value)


def _has_picture(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of any width
