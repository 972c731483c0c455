"""``finish_by``: the point in time that it names, and how much slower the rest of a run may be."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.deadline import InTime, as_text, deadline_of, parse
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.model.wire import decode, encode

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, run_after: str) -> str:
    """The deadline in Berlin, as text."""
    return (
        deadline_of(text, datetime.fromisoformat(run_after), BERLIN).astimezone(BERLIN).isoformat()
    )


@pytest.mark.parametrize(
    ("run_after", "found"),
    [
        ("2027-01-10T20:00+00:00", "2027-01-11T06:00:00+01:00"),
        ("2027-01-10T04:59:59+00:00", "2027-01-10T06:00:00+01:00"),
        ("2027-01-10T05:00+00:00", "2027-01-11T06:00:00+01:00"),  # at six already: tomorrow
        ("2027-03-27T22:00+00:00", "2027-03-28T06:00:00+02:00"),  # summer time begins in that night
        ("2027-10-30T22:00+00:00", "2027-10-31T06:00:00+01:00"),  # and ends
    ],
)
def test_a_time_of_day_is_the_next_one_in_the_zone_of_the_dag(run_after: str, found: str) -> None:
    assert at("06:00", run_after) == found


def test_a_time_that_summer_time_leaves_out_is_that_of_the_old_clock() -> None:
    late = deadline_of("02:30", datetime(2027, 3, 28, 0, 0, tzinfo=BERLIN), BERLIN)
    assert late.timestamp() == datetime(2027, 3, 28, 1, 30, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "run_after", "found"),
    [
        # 45 minutes later, by the second 02:30
        ("02:30", "2027-10-31T02:45+02:00", "2027-10-31T02:30:00+01:00"),
        ("02:30", "2027-10-31T02:15+02:00", "2027-10-31T02:30:00+02:00"),
        ("02:30", "2027-10-31T02:15+01:00", "2027-10-31T02:30:00+01:00"),
        ("02:30", "2027-10-31T02:30+01:00", "2027-11-01T02:30:00+01:00"),
        ("03:30", "2027-10-31T02:45+02:00", "2027-10-31T03:30:00+01:00"),
        ("02:30", "2027-03-28T01:59+01:00", "2027-03-28T03:30:00+02:00"),
        ("02:30", "2027-03-28T03:30+02:00", "2027-03-29T02:30:00+02:00"),
    ],
)
def test_a_time_that_the_clock_shows_twice_is_the_next_of_the_two(
    text: str, run_after: str, found: str
) -> None:
    assert deadline_of(text, datetime.fromisoformat(run_after), BERLIN).timestamp() == (
        datetime.fromisoformat(found).timestamp()
    )


def test_a_length_is_of_time_that_passes() -> None:
    before = datetime(2027, 10, 31, 2, 45, tzinfo=BERLIN)
    assert deadline_of("1 h", before, BERLIN).timestamp() - before.timestamp() == 3600


def test_a_date_has_the_zone_of_the_dag_unless_it_names_one() -> None:
    assert at("2027-03-01 06:00", "2027-01-01T00:00+00:00") == "2027-03-01T06:00:00+01:00"
    assert at("2027-03-01T06:00:00+00:00", "2027-01-01T00:00+00:00") == "2027-03-01T07:00:00+01:00"


@pytest.mark.parametrize(
    "text", ["90 min", "5400 s", "1.5 h", "1.5h", as_text(timedelta(minutes=90))]
)
def test_a_length_counts_from_the_run(text: str) -> None:
    assert at(text, "2027-01-10T20:00+00:00") == "2027-01-10T22:30:00+01:00"


def test_a_date_without_dashes_is_no_time_of_day() -> None:
    assert at("20270301", "2027-01-01T00:00+00:00") == "2027-03-01T00:00:00+01:00"


@pytest.mark.parametrize("text", ["9999-12-31 23:59", "0001-01-01 00:00", "9600000 h"])
def test_what_some_time_zone_or_clock_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(JobSpecError, match="no point in time"):
        parse(text)


def test_what_json_cannot_hold_is_kept_as_text() -> None:
    assert parse(as_text(timedelta(hours=2))) == timedelta(hours=2)
    assert parse(as_text(time(6, 30))) == time(6, 30)
    moment = datetime(2027, 3, 1, 6, tzinfo=UTC)
    assert parse(as_text(moment)) == moment
    assert as_text("{{ params.by }}") == "{{ params.by }}"


@pytest.mark.parametrize(
    "text", ["", "6", "06", "25:00", "-2 h", "0 h", "1e9 h", "99999999999999 h", None, 6]
)
def test_what_names_no_point_in_time_is_refused_with_the_remedy(text: object) -> None:
    with pytest.raises(
        JobSpecError, match=r"finish_by = .*: no point in time\. give a time of day as '06:00'"
    ):
        parse(text)


KNOWN = InTime(finish_by_s=1000.0, log_epochs=(math.log(10.0), 0.2))


def test_epochs_left_are_those_of_the_95_percent_quantile_and_grow_slower_than_epochs_are_done() -> (
    None
):
    assert KNOWN.epochs_left(0.0, 100.0) == pytest.approx(10 * math.exp(1.6449 * 0.2), rel=1e-3)
    assert KNOWN.epochs_left(0.0, 12.0) == 12.0, "no run has more"
    totals = [done + KNOWN.epochs_left(done, 100.0) for done in (1.0, 8.0, 12.0, 20.0)]
    assert totals == sorted(totals)
    assert totals[-1] > 20.0, "a run that is late goes on"
    assert InTime(finish_by_s=1000.0).epochs_left(3.0, 10.0) == 7.0, "nothing known: max_epochs"


def test_a_run_that_falls_behind_may_be_slowed_less() -> None:
    room = [KNOWN.slowdown_at(now_s, 5.0, 100.0, 30.0) for now_s in (0.0, 400.0, 900.0, 2000.0)]
    assert room == sorted(room, reverse=True)  # type: ignore[type-var]
    assert room[0] > 1 > room[2] > room[3] == 0.0  # type: ignore[operator]


def test_what_comes_after_it_has_its_own_time() -> None:
    alone = KNOWN.slowdown_at(0.0, 0.0, 100.0, 30.0)
    followed = InTime(finish_by_s=1000.0, reserve_s=500.0, log_epochs=KNOWN.log_epochs)
    assert followed.slowdown_at(0.0, 0.0, 100.0, 30.0) == pytest.approx(alone / 2)  # type: ignore[operator]


def test_without_a_known_epoch_the_decision_holds() -> None:
    assert InTime(finish_by_s=9.0, slowdown=1.3).slowdown_at(0.0, 1.0, 10.0, None) == 1.3


@given(
    done=st.floats(0.0, 1e4),
    mean=st.floats(-5.0, 12.0),
    sd=st.floats(0.0, 3.0),
    most=st.floats(1.0, 1e5),
    now_s=st.floats(-1e6, 1e12),
)
def test_any_figures_give_a_number(
    done: float, mean: float, sd: float, most: float, now_s: float
) -> None:
    one = InTime(finish_by_s=1e6, log_epochs=(mean, sd))
    assert 0 <= one.epochs_left(done, most) <= most
    found = one.slowdown_at(now_s, done, most, 1.0)
    assert found is not None
    assert found >= 0
    assert not math.isnan(found)


def test_an_attempt_takes_it_along() -> None:
    plain = PlannedAttempt(batch_size=32, phase=Phase.INCUMBENT, why="Known.")
    assert decode(PlannedAttempt, encode(plain)) == plain
    timed = PlannedAttempt(batch_size=32, phase=Phase.INCUMBENT, why="Known.", in_time=KNOWN)
    assert decode(PlannedAttempt, encode(timed)) == timed
