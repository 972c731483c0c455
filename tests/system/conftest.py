"""Whether the seconds that docs/death.md promises are measured here."""

from __future__ import annotations

from typing import Any

from tests.system import killing


def pytest_configure(config: Any) -> None:
    """``make test-slow`` looks at what comes out, on any busy machine;
    ``make test-nightly`` at the seconds too.
    """
    killing.measured = config.option.markexpr != "slow"
