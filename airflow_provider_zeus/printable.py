"""Makes texts from a training safe to print, to log and to write into a CSV file."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from typing import Any

MOST_NAME = 60  # a name may be of any length, and a line is not

# a spreadsheet would compute a cell that begins so
_SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# A spreadsheet drops these before it looks for a formula: quotes, and blanks of any kind.
_BLANKS = '"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000'
_BLANKS += "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"


def visible(text: str | os.PathLike[str]) -> str:
    r"""A text or path in one line, with an escape such as ``\x1b`` for each unprintable character.

    Such characters change a terminal's colours, clear it, forge a line, or reverse its direction.
    """
    text = os.fspath(text)
    # Nearly every text is: no loop over its characters.
    if text.isprintable():
        return text
    shown = []
    for character in text:
        # Spaces of other widths (Zs) forge no line, though Python calls them unprintable.
        if character.isprintable() or unicodedata.category(character) == "Zs":
            shown.append(character)
        elif "\udc80" <= character <= "\udcff":
            # So Python decodes a byte that is not UTF-8, as in the name of a file.
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        else:
            shown.append(repr(character)[1:-1])
    return "".join(shown)


def cell(value: Any) -> Any:
    """A cell of a CSV file: text in one line that no spreadsheet takes for a formula.

    An apostrophe goes before each text with which a formula could begin. Numbers are not changed.
    """
    if not isinstance(value, str):
        return value
    text = visible(value)
    shown = list(text)
    for begin in _formulas(text):
        shown[begin] = f"'{text[begin]}"
    return "".join(shown)


def _formulas(text: str) -> Iterator[int]:
    """The places in which a spreadsheet would see a formula: at the beginning of a cell, also
    behind blanks, quotes and apostrophes.

    A spreadsheet that splits a cell drops its quotes.
    """
    begin = 0
    # In some countries a spreadsheet splits cells at these.
    for part in text.replace("|", ";").replace("\t", ";").split(";"):
        quoted = part.lstrip(_BLANKS)
        if quoted.lstrip("'").startswith(_SIGNS):
            yield begin + len(part) - len(quoted)
        begin += len(part) + 1


def plain_name(text: str) -> str:
    """A text as a name of at most 60 characters: letters, digits, ``.``, ``_`` and ``-`` stay.

    If another character is replaced, or a long text is cut, a hash of the text follows: no two
    texts become one name.
    """
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text)
    if plain == text and len(text) <= MOST_NAME:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: MOST_NAME - len(digest) - 1]}-{digest}"
