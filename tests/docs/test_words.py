"""Pages of the documentation speak of runs and attempts,
as commands and pages do (tests/words.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.words import found

# the contract and a glossary for those who change the code; figures whose regimes have names of
# their own
OF_THE_CODE = ("docs/architecture.md", "docs/evidence/choosing.md", "docs/evidence/pollux.md")
NAMES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docker/README.md")
PAGES = [
    *(ROOT / name for name in NAMES),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not str(page).endswith(OF_THE_CODE)
    ),
]
OTHERS = ("A published trial of such a rule",)  # that are no word of ours


def prose(text: str) -> str:
    """A page without names of code: what stands in backticks, in links, and in blocks of Python."""
    for other in OTHERS:
        text = text.replace(other, "")
    text = re.sub(r"```(?:python|json|promql|yaml|sql).*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^.*(?:zeus\.trials?\b|--trials\b).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*(?:\n[^`\n]+)?`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_speak_of_runs_and_attempts(page: Path) -> None:
    text = prose(page.read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if found(line)] == []
