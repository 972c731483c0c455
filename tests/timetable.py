"""``pytest -m slow``: what may take longest begins first; at the end how long each part took, and its command."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Put what may take longest first, so that no core is idle at the end: with ``--no-loadscope-reorder``."""
    if config.option.markexpr == "slow":
        items.sort(key=lambda item: -max((m.args[0] for m in item.iter_markers("timeout")), default=0))


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
