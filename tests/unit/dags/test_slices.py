"""Which week sees which days."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from weather import slices


def test_forty_weeks_in_order() -> None:
    keys = slices.all_keys()
    assert len(keys) == len(set(keys)) == 40
    assert keys == [f"2013-W{week}" for week in range(13, 53)]


def test_windows_are_84_days_and_move_by_7() -> None:
    windows = [slices.window(key) for key in slices.all_keys()]
    assert {end - start for start, end in windows} == {timedelta(days=84)}
    assert {b - a for (a, _), (b, _) in itertools.pairwise(windows)} == {timedelta(days=7)}
    assert windows[0] == (datetime(2012, 12, 31, tzinfo=UTC), datetime(2013, 3, 25, tzinfo=UTC))
    assert windows[-1][1] == datetime(2013, 12, 23, tzinfo=UTC)


def test_a_model_is_trained_on_days_before_its_own_week() -> None:
    for key in slices.all_keys():
        year, week, weekday = slices.window(key)[1].isocalendar()
        assert (f"{year}-W{week:02d}", weekday) == (key, 1)


@pytest.mark.parametrize("key", ["2013-W12", "2014-W01", "2013-13", ""])
def test_another_key_is_named_with_what_to_use(key: str) -> None:
    with pytest.raises(ValueError, match="2013-W13 to 2013-W52"):
        slices.window(key)


def test_next_is_the_earliest_that_was_not_emitted() -> None:
    keys = slices.all_keys()
    emitted = set()
    for key in keys:
        assert slices.next_key(emitted) == key
        emitted.add(key)
    assert slices.next_key(emitted) is None
    assert slices.next_key(emitted - {"2013-W20"}) == "2013-W20", "a gap is filled first"
