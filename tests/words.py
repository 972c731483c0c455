"""The words that no person should read in what the package says: rendered texts are read,
not the code.
"""

from __future__ import annotations

import re
from typing import Any

FORBIDDEN = re.compile(
    r"\btrials?\b|\brecurrences?\b|\bweighed Wh\b|\bknowledge gradient:|/tmp/zeus\.json"
    r"|\b(?:a|the|an earlier|a later|each|failed|cleared|worth the|worth a) (?:try|tries)\b(?!"
    r" again)"
    r"|\b\d+ (?:try|tries)\b",
    re.IGNORECASE,
)
WRONG_PLURAL = re.compile(
    r"(?<![\d.,:/-])\b1 (?:runs(?! batch"
    r" size)|attempts|jobs|errors|warnings|checks|epochs|samples|values|files)\b"
)


def found(text: str) -> list[str]:
    """The forbidden words and wrong plurals of a text, with what stands around them."""
    hits = [*FORBIDDEN.finditer(text), *WRONG_PLURAL.finditer(text)]
    return [text[max(hit.start() - 40, 0) : hit.end() + 40] for hit in hits]


def texts(answer: Any) -> str:
    """All texts of a JSON answer, without the names of its fields."""
    if isinstance(answer, dict):
        return "\n".join(map(texts, answer.values()))
    if isinstance(answer, list):
        return "\n".join(map(texts, answer))
    return answer if isinstance(answer, str) else ""
