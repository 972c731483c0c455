"""Dataclasses as plain JSON and back."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt, State, TrialKey
from airflow_provider_zeus.model.wire import Figure, decode, encode, rules
from airflow_provider_zeus.store.pending import PendingResult
from airflow_provider_zeus.training.protocol.events import ResultLine


@pytest.mark.parametrize("value", [1e20, -1e300, sys.float_info.max])
def test_a_metric_of_any_size_is_read_back(value: float) -> None:
    observation = Observation(metric=value, target_value=value, learning_rate=value)
    assert decode(Observation, encode(observation)) == observation
    line = ResultLine(
        kind="end",
        start_id="s",
        attempt=1,
        batch_size=8,
        state=State.EXHAUSTED,
        observation=observation,
    )
    assert ResultLine.from_json(line.to_json()) == line
    pending = PendingResult(
        job_id="a",
        key=TrialKey("t", 1),
        state=State.EXHAUSTED,
        report=Report(observation=observation),
    )
    assert PendingResult.from_json(pending.to_json()) == pending


def test_a_count_of_devices_has_six_digits_at_most() -> None:
    rule = rules(Observation)["device_count"]
    assert isinstance(rule, Figure)
    assert [bool(rule.problem(count)) for count in (0, 1, 999_999, 1_000_000)] == [
        True,
        False,
        False,
        True,
    ]


def test_a_count_that_no_column_of_a_database_holds_is_not_read() -> None:
    assert decode(TrialKey, {"ti_id": "t", "attempt": 2**31 - 1}).attempt == 2**31 - 1
    with pytest.raises(ValueError, match="attempt"):
        decode(TrialKey, {"ti_id": "t", "attempt": 2**31})


@pytest.mark.parametrize("field", ["metric", "energy_j"])
def test_a_number_that_is_not_finite_is_refused_by_name(field: str) -> None:
    for value in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match=field):
            decode(Observation, {field: value})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match="batch_size is missing"):
        decode(PlannedAttempt, {"phase": "explore"})
