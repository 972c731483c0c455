"""Which test process runs what, and what took long.

A file's tests run in one process of pytest-xdist, so that what they share is made once; those of
the browser are one part, since a browser and an api-server take longer to start than a page to
test. ``make test-slow`` and ``make nightly-tests`` begin with what may take longest, and say at the
end how long each part took, with its command.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

BROWSER = ("tests/ui/", "tests/docs/test_browser.py")
LONG = {"slow and not nightly": "test-slow", "nightly": "nightly-tests"}


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is not installed nobody asks for it
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """A process takes a part as a whole, in the order in which they come: a random one."""
    from xdist.scheduler import LoadFileScheduling

    class Parts(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "browser" if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Parts(config, log)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Put what may take longest first, so that no core is idle at the end."""
    if config.option.markexpr in LONG:
        items.sort(
            key=lambda item: -max((m.args[0] for m in item.iter_markers("timeout")), default=0)
        )


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """One line for each file, the longest first; set-up and tear-down count in."""
    target = LONG.get(config.option.markexpr)
    if target is None:
        return
    seconds = Counter[str]()
    tests = Counter[str]()
    for report in (
        r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "duration")
    ):
        part = report.nodeid.partition("::")[0]
        seconds[part] += report.duration
        tests[part] += report.when == "call" or report.outcome == "skipped"
    terminalreporter.section(f"timetable: {_clock(sum(seconds.values()))}")
    for part, took_s in seconds.most_common():
        terminalreporter.line(
            f"{_clock(took_s):>9}  {tests[part]:>4} tests   make {target} PART={part}"
        )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
