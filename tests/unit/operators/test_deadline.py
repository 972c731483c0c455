"""The deadline of a task's run: in the DAG's time zone, the same for all tries, none for backfills and tests."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_zeus.operators import schedule
from tests.unit.optimizer.world import job_of

SOON = datetime(2127, 1, 10, 20, tzinfo=UTC)


def context(
    run_type: str = "scheduled", run_after: datetime = SOON, zone: Any = None
) -> dict[str, Any]:
    dag_run = SimpleNamespace(run_type=SimpleNamespace(value=run_type), run_after=run_after)
    return {"dag_run": dag_run, "dag": SimpleNamespace(timezone=zone or ZoneInfo("Europe/Berlin"))}


def by(text: str | None, **fields: Any) -> float | None:
    return schedule.finish_by_s(job_of(32, default=32, finish_by=text), context(**fields))


def test_it_is_that_of_the_run_in_the_zone_of_its_dag() -> None:
    assert by("06:00") == datetime(2127, 1, 11, 5, tzinfo=UTC).timestamp()
    assert (
        by("06:00", zone=ZoneInfo("Asia/Tokyo"))
        == datetime(2127, 1, 10, 21, tzinfo=UTC).timestamp()
    )
    assert by("2 h") == datetime(2127, 1, 10, 22, tzinfo=UTC).timestamp()


def test_none_without_one_and_for_data_of_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by(None) is None
    assert by("06:00", run_type="backfill") is None
    monkeypatch.setattr(schedule, "is_test_run", lambda: True)
    assert by("06:00") is None


def test_a_deadline_in_the_past_is_named_with_field_value_and_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert by("2020-01-01 06:00") == datetime(2020, 1, 1, 5, tzinfo=UTC).timestamp()
    (said,) = caplog.messages
    assert said.startswith(
        "Zeus: ZeusJob.finish_by = '2020-01-01 06:00': 2020-01-01 06:00 CET is past"
    )
    assert "Remedy:" in said
    caplog.clear()
    by("06:00")
    assert not caplog.messages
