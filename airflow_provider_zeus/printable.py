"""Makes texts from a training safe to print, to log and to write into a CSV file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from typing import Any

MOST_NAME = 60  # characters of a plain name


def visible(text: str | os.PathLike[str]) -> str:
    r"""A text or path in one line, with an escape (``\x1b``, ``\n``, ``\u202e``) for each unprintable character.

    Such characters change a terminal's colours, clear it, forge a line, or reverse its direction.
    """
    text = os.fspath(text)
    if text.isprintable():
        return text
    shown = []
    for character in text:
        if character.isprintable() or unicodedata.category(character) == "Zs":  # Zs: spaces of any width
            shown.append(character)
        elif "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8, as in the name of a file
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        else:
            shown.append(repr(character)[1:-1])
    return "".join(shown)


def cell(value: Any) -> Any:
    """A cell of a CSV file: text in one line that no spreadsheet takes for a formula; JSON for nested values.

    Numbers are not changed.
    """
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    formula = ("=", "+", "-", "@")  # a spreadsheet would take such a text for a formula
    return f"'{visible(value)}" if value.startswith(formula) else visible(value)


def plain_name(text: str) -> str:
    """A text as a name of at most 60 characters: letters, digits, ``.``, ``_`` and ``-`` stay.

    Where another character is replaced, or a long text is cut, a hash of the text follows: no two texts become one
    name.
    """
    unsafe = re.compile(r"[^A-Za-z0-9._-]")
    plain = unsafe.sub("_", text)
    if plain == text and len(text) <= MOST_NAME:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: MOST_NAME - len(digest) - 1]}-{digest}"
