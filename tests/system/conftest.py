"""Whether the seconds that docs/death.md promises are measured here."""

from __future__ import annotations

from typing import Any

from tests.system import killing


def pytest_configure(config: Any) -> None:
    """``make test-nightly`` looks at the seconds too; every other run at what comes out,
    on any busy machine.
    """
    killing.measured = config.option.markexpr == "nightly"
