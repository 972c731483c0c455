"""Result of one check of ``airflow zeus doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check. ``remedy`` None: nothing to do, or the finding names it."""

    check: str
    status: Literal["ok", "warning", "error"]
    finding: str
    remedy: str | None = None


def ok(check: str, finding: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check, "ok", finding)


def warning(check: str, finding: str, remedy: str) -> Finding:
    """A finding that limits what Zeus can do."""
    return Finding(check, "warning", finding, remedy)


def error(check: str, finding: str, remedy: str | None = None) -> Finding:
    """A finding that keeps Zeus from working."""
    return Finding(check, "error", finding, remedy)
