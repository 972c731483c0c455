"""The fenced code blocks of the pages that people wrote, and what each is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs_site.prose import NOT_RUN

ROOT = Path(__file__).parents[2]
PAGES = [
    *("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]


@dataclass(frozen=True)
class Block:
    """A block of a page; ``reason``: why nothing runs it, as the marker before it says."""

    page: str
    line: int
    language: str
    title: str
    text: str
    reason: str = ""

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """What it is: python, commands, script, ini, json, yaml, dockerfile, or shown (output,
        a drawing, data).
        """
        if self.text.startswith("#!"):
            return "script"
        if self.language:
            return {"bash": "commands", "text": "shown"}.get(self.language, self.language)
        if self.commands:
            return "commands"
        return "json" if _is_json(self.text) else "shown"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell, without their output."""
        text = self.text.replace("\\\n", " ")
        lines = [
            line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
        ]
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        if prompted or not (self.language == "bash" or (lines and lines[0].startswith("airflow "))):
            return prompted
        return lines


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    return list(_found(page, (ROOT / page).read_text(encoding="utf-8")))


def _found(page: str, text: str) -> Iterator[Block]:
    before = ""
    inside = []
    begun = 0
    opened = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if opened and line.rstrip() == "```":
            title = re.search(r'title="([^"]+)"', opened)
            marker = NOT_RUN.match(before)
            language = re.match(r"\w*", opened[3:])
            yield Block(
                page,
                begun,
                language[0] if language else "",
                title[1] if title else "",
                "".join(inside),
                marker[1] if marker else "",
            )
            opened = ""
            before = line
        elif opened:
            inside.append(f"{line}\n")
        elif line.startswith("```"):
            inside = []
            begun = number
            opened = line
        else:
            before = line


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
