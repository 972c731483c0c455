"""The newest Airflow that the package index has, pre-releases included:
``make test-newest`` installs it and runs this.

    python -m tests.newest TEST...

Exit status 1 only where a released version that this package claims to support fails. A failure on
a pre-release, or on a version beyond the claim, is a report of what comes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import requires, version

from packaging.requirements import Requirement
from packaging.version import Version

MOST_S = 300.0  # for the tests


def verdict(airflow: str, claimed: Requirement, *, passed: bool) -> tuple[str, int]:
    """(what to report of a version of Airflow, exit status)."""
    known = Version(airflow)
    if known.is_prerelease:
        kind = "a pre-release"
        matters = False
    elif known not in claimed.specifier:
        kind = f"not in the claimed {claimed.specifier}"
        matters = False
    else:
        kind = "a release that is claimed"
        matters = True
    result = "all tests passed" if passed else "TESTS FAILED, see above"
    return f"Newest Airflow: {airflow}, {kind}: {result}.", int(matters and not passed)


def claim() -> Requirement:
    """What this package requires of Airflow."""
    found = (Requirement(line) for line in requires("airflow-provider-zeus") or ())
    return next(each for each in found if each.name == "apache-airflow")


def passes(tests: Sequence[str]) -> bool:
    """Whether the tests pass within :data:`MOST_S`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-m",
        "not slow and not nightly",
        *tests,
    ]
    try:
        return subprocess.run(command, check=False, timeout=MOST_S).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"The tests did not end within {MOST_S:g} s.")
        return False


def main(tests: Sequence[str]) -> int:
    """Run the tests and report."""
    report, status = verdict(version("apache-airflow"), claim(), passed=passes(tests))
    print(report)
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
