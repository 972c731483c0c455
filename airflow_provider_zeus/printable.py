"""Makes texts from a training safe to print, to log and to write into a CSV file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from typing import Any

MOST_NAME = 60  # characters of a plain name

# Where a spreadsheet would see a formula: at the beginning of a cell, or after what separates cells in some countries,
# also behind quotes: a spreadsheet that splits there drops them.
_FORMULA = re.compile("(^|[;|\\t])([\\s\"]*)('*)([=+\\-@\uff1d\uff0b\uff0d\uff20])")


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

    An apostrophe goes before each character with which a formula could begin. Numbers are not changed.
    """
    if isinstance(value, dict | list | tuple):  # in JSON such a character stands within a text, and has an escape
        return _FORMULA.sub(lambda m: f"{m[1]}{m[2]}{m[3]}\\u{ord(m[4]):04x}", json.dumps(value))
    return _FORMULA.sub(r"\1\2'\3\4", visible(value)) if isinstance(value, str) else value


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
