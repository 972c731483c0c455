"""What every store does, on each store there is: news of a trial that the log has closed,
and clocks that are wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import REDELIVERED, State, Trial, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import JOB, Clock, only, report, request, run, seen

TEN_YEARS_S = 10 * 365 * 86400.0


def lapsed(store: Store, clock: Clock, n: int = 1) -> TrialKey:
    """A trial that beat once, and was closed since its lease lapsed."""
    key = store.ask(request(n)).trial.key
    store.heartbeat(key, report(epochs=1.0, profile=1, points=2, start_id="a"))
    clock.t += 91
    assert [t.key for t in store.reap("d.train")] == [key]
    return key


def believed(store: Store) -> policy.Belief:
    """What the log teaches, folded from its beginning."""
    return reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))


# --- a run that lives after all


def test_a_heartbeat_after_the_lease_opens_the_trial_again(opens: Opens, clock: Clock) -> None:
    key = lapsed(opens(), clock)
    clock.t += 10
    assert (
        opens().heartbeat(key, report(epochs=2.0, profile=2, points=3, start_id="a"), lease_s=90)
        is None
    )
    trial = only(opens())
    assert (trial.state, trial.reason, trial.closed_at) == (State.RUNNING, None, None)
    assert trial.lease_until == clock.t + 90
    assert trial.observation.epochs == 2.0
    clock.t += 80
    assert (
        opens().heartbeat(key, report(epochs=3.0, profile=1, points=1, start_id="a"), lease_s=90)
        is None
    )
    assert (only(opens()).state, only(opens()).observation.epochs) == (State.RUNNING, 3.0)
    told = opens().tell(key, State.CONVERGED, report(epochs=4.0, start_id="a"))
    assert (told.state, told.reason) == (State.CONVERGED, None)
    assert len(opens().points(key)) == 6
    assert [s.samples for s in opens().ask(request(2)).profile] == [40]


def test_a_trial_that_is_open_again_teaches_no_death(opens: Opens, clock: Clock) -> None:
    for n in range(1, 4):
        run(opens(), n)
    key = lapsed(opens(), clock, 4)
    assert believed(opens()).newest == (4, True)
    opens().heartbeat(key, report(start_id="a"))
    assert believed(opens()).newest == (3, False)
    seq = opens().trials("d.train")[-1].told_seq
    told = opens().tell(key, State.CONVERGED, report(start_id="a"))
    assert (told.told_seq, seq) == (6, 5), "each of the three changes what the log teaches"
    assert opens().ask(request(5)).trial.asked_after_seq == 6


def test_an_end_after_the_lease_is_kept_with_all_that_it_brings(store: Store, clock: Clock) -> None:
    key = lapsed(store, clock)
    told = store.tell(key, State.CONVERGED, report(profile=1, points=1, start_id="a"))
    assert (told.state, told.reason) == (State.CONVERGED, None)
    assert len(store.points(key)) == 3
    assert [s.samples for s in store.ask(request(2)).profile] == [20]


def test_a_superseded_trial_stays_closed_and_keeps_its_figures(store: Store) -> None:
    first = store.ask(request(1)).trial
    store.heartbeat(first.key, report(epochs=1.0, start_id="a"))
    second = store.ask(request(1, ti_id="ti-1b", try_number=2)).trial
    said = store.heartbeat(
        first.key, report(epochs=2.0, energy_j=77.0, profile=2, points=3, start_id="a")
    )
    assert said == "superseded by try 2"
    old, new = store.trials("d.train")
    assert (old.state, old.reason, old.observation.energy_j) == (State.ABANDONED, said, 77.0)
    assert len(store.points(first.key)) == 3
    assert [s.samples for s in store.ask(request(1, ti_id="ti-1b", try_number=2)).profile] == [20]
    assert new == second
    assert store.heartbeat(second.key, report(start_id="b")) is None
    assert store.tell(first.key, State.CONVERGED, report(start_id="a")).reason == said


def test_a_redelivered_trial_stays_closed_and_keeps_its_figures(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(epochs=1.0, start_id="a"))
    again = store.ask(request(1)).trial
    assert store.heartbeat(key, report(energy_j=77.0, profile=1, start_id="a")) == REDELIVERED
    assert store.heartbeat(again.key, report(energy_j=33.0, profile=1, start_id="b")) is None
    log = store.trials("d.train")
    assert [(t.state, t.observation.energy_j) for t in log] == [
        (State.ABANDONED, 77.0),
        (State.RUNNING, 33.0),
    ]
    store.tell(again.key, State.CONVERGED, report(start_id="b"))
    assert [s.samples for s in store.ask(request(2)).profile] == [20]


@pytest.mark.parametrize("next_try", [{"ti_id": "ti-1b", "try_number": 2}, {}])
def test_a_lapsed_trial_that_was_taken_over_is_not_opened_again(
    store: Store, clock: Clock, next_try: dict[str, object]
) -> None:
    key = lapsed(store, clock)
    later = store.ask(request(1, **next_try)).trial
    assert store.heartbeat(key, report(energy_j=77.0, start_id="a")) in (
        "superseded by try 2",
        REDELIVERED,
    )
    old, new = store.trials("d.train")
    assert (old.state, old.observation.energy_j) == (State.ABANDONED, 77.0)
    assert new == later


def test_of_two_living_starts_under_one_key_the_first_is_told_of_the_second(store: Store) -> None:
    key = store.ask(request()).trial.key
    assert store.heartbeat(key, report(energy_j=1.0, start_id="a")) is None
    assert store.heartbeat(key, report(energy_j=10.0, start_id="b")) is None
    assert store.heartbeat(key, report(energy_j=2.0, start_id="a")) == REDELIVERED
    assert store.heartbeat(key, report(energy_j=20.0, start_id="b")) is None
    assert [
        (t.observation.start_id, t.state, t.observation.energy_j) for t in store.trials("d.train")
    ] == [
        ("a", State.ABANDONED, 2.0),
        ("b", State.RUNNING, 20.0),
    ]


def test_what_a_run_reports_for_a_closed_trial_is_not_counted_twice(
    store: Store, clock: Clock
) -> None:
    key = lapsed(store, clock)
    for _ in range(2):
        store.tell(key, State.CONVERGED, report(profile=1, points=1, start_id="a"))
    assert len(store.points(key)) == 3
    assert [s.samples for s in store.ask(request(2)).profile] == [20]


def test_a_key_that_the_log_does_not_hold_has_an_error_of_its_own(store: Store) -> None:
    with pytest.raises(UnknownTrialError):
        store.heartbeat(TrialKey("nobody"), report())


# --- closed by hand


def test_a_trial_closed_by_hand_stays_closed_and_keeps_its_figures(opens: Opens) -> None:
    key = opens().ask(request(1)).trial.key
    opens().heartbeat(key, report(epochs=1.0, start_id="a"))
    closed = opens().close_trial("d.train", 1, by="ann")
    assert (closed.state, closed.reason, closed.told_seq) == (
        State.ABANDONED,
        "closed by hand by ann",
        1,
    )
    assert only(opens()) == closed
    assert (
        opens().heartbeat(key, report(energy_j=70.0, profile=1, points=2, start_id="a"))
        == closed.reason
    )
    for _ in range(2):  # told twice, written once
        told = opens().tell(
            key, State.CONVERGED, report(energy_j=99.0, profile=1, points=1, start_id="a")
        )
        assert (told.state, told.reason, told.observation.energy_j) == (
            State.ABANDONED,
            closed.reason,
            99.0,
        )
    assert only(opens()) == told
    assert len(opens().points(key)) == 3
    asked = opens().ask(request(2))
    assert [s.samples for s in asked.profile] == [20]
    assert asked.trial.number == 2


def test_only_an_open_trial_can_be_closed(store: Store) -> None:
    run(store, 1)
    for job_id, number in (("d.train", 1), ("d.train", 2), ("nobody", 1)):
        with pytest.raises(StoreError, match=f"This attempt of {job_id} is not open"):
            store.close_trial(job_id, number, by="ann")
    assert store.jobs() == ["d.train"]


# --- clocks


def open_trial(store: Store) -> Trial:
    """The newest trial."""
    return store.trials("d.train")[-1]


def test_a_heartbeat_under_a_clock_that_is_ahead_does_not_hold_the_trial_for_good(
    store: Store, clock: Clock
) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += TEN_YEARS_S
    store.heartbeat(key, report(start_id="a"), lease_s=90)
    clock.t -= TEN_YEARS_S  # and it dies
    assert only(store).state is State.ABANDONED
    store.ask(request(2))
    assert [t.state for t in store.trials("d.train")] == [State.ABANDONED, State.RUNNING]


def test_a_living_run_is_open_again_once_its_clock_is_right(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += TEN_YEARS_S
    store.heartbeat(key, report(start_id="a"), lease_s=90)
    clock.t -= TEN_YEARS_S - 15
    store.heartbeat(key, report(start_id="a"), lease_s=90)
    assert (only(store).state, only(store).lease_until) == (State.RUNNING, clock.t + 90)
    clock.t += 91
    assert only(store).state is State.ABANDONED


def test_a_reader_whose_clock_is_a_little_behind_sees_the_run_living(
    store: Store, clock: Clock
) -> None:
    store.ask(request(1, lease_s=90))
    clock.t -= 60
    assert (only(store).state, only(store).lease_until) == (State.RUNNING, clock.t + 90)


def test_a_reader_whose_clock_is_ahead_ends_nothing_for_good(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(start_id="a"))
    clock.t += TEN_YEARS_S
    store.reap("d.train")
    clock.t -= TEN_YEARS_S
    store.heartbeat(key, report(start_id="a"))
    assert only(store).state is State.RUNNING


def test_a_long_lease_outlives_heartbeats_with_a_short_one_and_a_clock_that_went_back(
    store: Store, clock: Clock
) -> None:
    key = store.ask(request(1, lease_s=86400)).trial.key
    clock.t -= 3600
    assert only(store).state is State.RUNNING
    store.heartbeat(key, report(start_id="a"), lease_s=90)
    assert only(store).lease_until == clock.t + 86400


def test_a_start_that_takes_a_row_of_its_own_has_a_lease_of_the_same_length(
    store: Store, clock: Clock
) -> None:
    key = store.ask(request(1, lease_s=600)).trial.key
    store.tell(key, State.CONVERGED, Report(observation=seen(start_id="a")))
    store.heartbeat(key, report(start_id="b"), lease_s=90)
    assert open_trial(store).lease_until == clock.t + 600
    assert replace(open_trial(store), observation=seen()).lease_s == 600
