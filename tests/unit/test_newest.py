"""When a run with the newest Airflow is a failure, and when a report."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from tests.newest import claim, verdict

CLAIMED = Requirement("apache-airflow>=3.2,<4")


@pytest.mark.parametrize(
    ("airflow", "passed", "status"),
    [
        ("3.3.2", True, 0),
        ("3.3.2", False, 1),
        ("3.4.0b2", True, 0),
        ("3.4.0b2", False, 0),
        ("3.4.0rc1", False, 0),
        ("4.0.0", False, 0),
    ],
)
def test_only_a_claimed_release_may_fail(airflow: str, passed: bool, status: int) -> None:
    report, found = verdict(airflow, CLAIMED, passed=passed)
    assert found == status
    assert airflow in report
    assert ("FAILED" in report) is not passed


def test_the_claim_is_the_projects_own() -> None:
    assert "3.3.2" in claim().specifier
    assert "4.0.0" not in claim().specifier
