"""Markdown as a code host shows it, made ready for the site. Pure: text to text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# before a code block that no test executes, with the reason
NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_FENCE = re.compile(r"^ *(```+)")
_LINK = re.compile(r"(?<!`)(!?\[[^\]]*\])\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(?:.(?!\1))*.?\1")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def prepared(text: str, link: Callable[[str], str]) -> str:
    """The page for the site's builder, which wants an empty line before lists and tables.

    :param link: gives the new target of each link of the page that is relative.
    """
    lines: list[str] = []
    for inside, line in _with_fences(text):
        if not inside and NOT_RUN.match(line):
            continue
        if not inside and lines and _begins_block(lines[-1], line):
            lines.append("")
        lines.append(line if inside else _linked(line, link))
    return "\n".join(lines) + "\n"


def _with_fences(text: str) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it belongs to a fenced code block."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield True, line
        elif found and found[1] == fence:
            fence = ""
            yield True, line
        else:
            yield bool(fence), line


def _begins_block(before: str, line: str) -> bool:
    if not before.strip() or before.startswith("#"):
        return False
    if line.startswith("|"):
        return not before.startswith("|")
    return bool(_ITEM.match(line)) and not _ITEM.match(before) and not before.startswith((" ", "|"))


def _linked(line: str, link: Callable[[str], str]) -> str:
    """The line with its relative links replaced, those within code left alone."""
    parts = []
    end = 0
    for code in _CODE.finditer(line):
        if "](" in line[end : code.start()] or not _inside_label(line, code.start(), code.end()):
            parts += [_replaced(line[end : code.start()], link), code[0]]
            end = code.end()
    return "".join([*parts, _replaced(line[end:], link)])


def _inside_label(line: str, start: int, end: int) -> bool:
    """Whether the code is a part of a link's label, as in [`name`](page.md)."""
    opened = line.rfind("[", 0, start)
    closed = line.rfind("]", 0, start)
    return opened > closed and re.match(r"[^\[\]]*\]\(", line[end:]) is not None


def _replaced(text: str, link: Callable[[str], str]) -> str:
    def new(found: re.Match[str]) -> str:
        target = found[2]
        outside = re.match(r"[a-z]+:|#", target)
        return f"{found[1]}({target if outside else link(target)})"

    return _LINK.sub(new, text)
