"""What one check of ``airflow zeus doctor`` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. ``remedy`` None: nothing is to be done, or the finding names it."""

    check: str
    status: Literal["ok", "warning", "error"]
    finding: str
    remedy: str | None = None


def ok(check: str, finding: str) -> Finding:
    """Nothing to do."""
    return Finding(check, "ok", finding)


def warning(check: str, finding: str, remedy: str) -> Finding:
    """Works, but less well than it could."""
    return Finding(check, "warning", finding, remedy)


def error(check: str, finding: str, remedy: str | None = None) -> Finding:
    """Does not work."""
    return Finding(check, "error", finding, remedy)
