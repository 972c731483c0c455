"""A pytest plugin that names the running test to coverage,
in this process and in those that the test starts.

Where the environment names a file by ``ZEUS_MUTANTS_TIMES`` it gets the outcome and the seconds of
each test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest
from coverage.config import CoverageConfig

TIMES = "ZEUS_MUTANTS_TIMES"
# follows the name of a test: what it runs may serve the other tests of its file, too
SET_UP = "|set-up"
# environment variable that coverage reads when a child process starts
_CONFIG = "COVERAGE_PROCESS_CONFIG"
_WORST = ("failed", "skipped", "passed")

_times: dict[str, tuple[str, float]] = {}  # test -> passed, failed or skipped; seconds


def named(config: str, context: str) -> str:
    """Coverage's configuration for a child process,
    with the context that all its lines are counted for.
    """
    found = CoverageConfig.deserialize(config)
    found.context = context
    return found.serialize()


def _name(context: str) -> None:
    if (measured := coverage.Coverage.current()) is not None:
        measured.switch_context(context)
    if _CONFIG in os.environ:
        os.environ[_CONFIG] = named(os.environ[_CONFIG], context)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Name the test whose fixtures are made."""
    _name(item.nodeid + SET_UP)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Name the test that runs, its tear-down included."""
    _name(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of a test, and keep its worst outcome."""
    outcome, seconds = _times.get(report.nodeid, ("passed", 0.0))
    _times[report.nodeid] = (
        min(outcome, report.outcome, key=_WORST.index),
        seconds + report.duration,
    )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep that a file cannot be imported."""
    if report.failed:
        _times[report.nodeid] = "failed", 0.0


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the times; workers of xdist leave that to the process that started them."""
    if TIMES in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ[TIMES]).write_text(json.dumps(_times), encoding="utf-8")
