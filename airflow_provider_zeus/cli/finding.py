"""Result of one check of ``airflow zeus doctor`` or ``airflow zeus check``, and how it is
printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from airflow_provider_zeus.cli.shell import print_json, say
from airflow_provider_zeus.units import counted


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check. ``remedy`` None: nothing to do, or the finding names it."""

    check: str
    status: Literal["ok", "warning", "error", "undecided"]
    finding: str
    remedy: str | None = None


def ok(check: str, finding: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check, "ok", finding)


def warning(check: str, finding: str, remedy: str) -> Finding:
    """A finding that limits Zeus."""
    return Finding(check, "warning", finding, remedy)


def error(check: str, finding: str, remedy: str | None = None) -> Finding:
    """A finding that keeps Zeus from working."""
    return Finding(check, "error", finding, remedy)


def undecided(check: str, why: str) -> Finding:
    """A check that could not be made. ``why``: the value that was missing."""
    return Finding(check, "undecided", why)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings for people: a line for each with its remedy below, and their count."""
    names = max(len(f.check) for f in findings)
    # as wide as "warning", so that outputs of several commands align
    kinds = max(7, *(len(f.status) for f in findings))
    for f in findings:
        status = f.status.replace("ok", "OK")
        yield f"{status:<{kinds}}  {f.check:<{names}}  {f.finding}"
        if f.remedy:
            yield f"{'':<{kinds}}  {'':<{names}}  -> {f.remedy}"
    count = Counter(f.status for f in findings)
    warnings = counted(count["warning"], "warning")
    errors = counted(count["error"], "error")
    text = f"{counted(len(findings), 'check')}: {count['ok']} OK, {warnings}, {errors}"
    if count["undecided"]:
        text += f", {count['undecided']} undecided"
    yield f"{text}."


def show(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print the findings of a command; its exit status, 1 if one is an error."""
    if as_json:
        print_json([asdict(f) for f in findings])
    else:
        for line in lines(findings):
            say(line)
    return int(any(f.status == "error" for f in findings))
