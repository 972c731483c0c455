"""Estimates by hand."""

from __future__ import annotations

import math

import pytest

from airflow_provider_zeus.model.estimate import Estimate, Z


def test_ninety_per_cent_of_a_normal_and_of_a_log_normal() -> None:
    assert pytest.approx(1.645, abs=1e-3) == Z
    normal = Estimate.normal(10.0, 2.0)
    assert (normal.value, normal.low, normal.high) == (10.0, 10 - 2 * Z, 10 + 2 * Z)
    assert Estimate.normal(1.0, 2.0).low == 0.0, "a cost"
    skewed = Estimate.log_normal(math.log(8.0), 0.5)
    assert (skewed.low or 0) * (skewed.high or 0) == pytest.approx(64.0)
    assert [skewed.value, skewed.high] == pytest.approx([8.0, 8 * math.exp(Z / 2)])


def test_value_and_interval_move_together() -> None:
    found = Estimate(10.0, 8.0, 13.0)
    assert found.plus(-9.0) == Estimate(1.0, -1.0, 4.0), "a saving, or a loss"
    assert found.times(2.0) == Estimate(20.0, 16.0, 26.0)
    assert found.mapped(lambda v: v - 10) == Estimate(0.0, -2.0, 3.0)
    exact = Estimate(7.0, 7.0, 7.0)
    assert exact.plus(1.0) == Estimate(8.0, 8.0, 8.0)


def test_what_is_missing_stays_missing_with_its_first_reason() -> None:
    gone = Estimate.missing("no meter")
    assert (gone.value, gone.low, gone.high) == (None, None, None)
    assert gone.plus(3.0) == gone.times(2.0) == gone.times(None, "no price") == gone
    assert Estimate(10.0, 8.0, 13.0).times(None, "no price") == Estimate.missing("no price")
