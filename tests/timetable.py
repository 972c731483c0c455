"""At the end of ``pytest -m slow``: how long each part took, and the command that runs it alone."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """One line for each file, the longest first; set-up and tear-down count in."""
    if config.option.markexpr != "slow":
        return
    seconds, tests = Counter[str](), Counter[str]()
    for report in (r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "duration")):
        part = report.nodeid.partition("::")[0]
        seconds[part] += report.duration
        tests[part] += report.when == "call" or report.outcome == "skipped"
    terminalreporter.section(f"timetable: {_clock(sum(seconds.values()))}")
    for part, took_s in seconds.most_common():
        terminalreporter.line(f"{_clock(took_s):>9}  {tests[part]:>4} tests   make test-slow PART={part}")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
