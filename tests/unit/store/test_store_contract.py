"""What every store does, sentence by sentence (design: "The store"), on each store there is."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import reduce

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Decision,
    DeviceInfo,
    Observation,
    Phase,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.store import ledger
from airflow_provider_zeus.store.base import Asked, Report, Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import JOB, Clock, report, request, seen

Set = Callable[[str, str], None]


def run(store: Store, n: int, state: State = State.CONVERGED, **changes: object) -> Asked:
    """Recurrence ``n`` from question to result."""
    asked = store.ask(request(n))
    store.tell(asked.trial.key, state, report(asked.trial.batch_size, **changes))  # type: ignore[arg-type]
    return asked


def only(store: Store) -> Trial:
    (trial,) = store.trials("d.train")
    return trial


# --- ask


def test_ask_writes_the_trial_before_it_hands_it_out(opens: Opens, clock: Clock) -> None:
    asked = opens().ask(request(1, lease_s=60))
    trial = asked.trial
    assert (trial.number, trial.key, trial.state) == (1, TrialKey("ti-1", 1), State.RUNNING)
    assert trial.planned == trial.decision.attempts[0]
    assert trial.origin == request(1).origin
    assert ZeusJob.from_dict(trial.spec) == JOB
    assert (trial.opened_at, trial.lease_until, trial.closed_at) == (1000.0, 1060.0, None)
    assert (trial.asked_after_seq, trial.told_seq) == (0, None)
    assert not asked.redelivered
    assert only(opens()) == trial


def test_the_same_open_key_gives_the_same_trial(opens: Opens, clock: Clock) -> None:
    first = opens().ask(request(1))
    clock.t += 30
    again = opens().ask(request(1))
    assert again.redelivered
    assert again.trial == replace(first.trial, lease_until=1120.0)
    assert only(opens()) == again.trial


def test_a_closed_key_gives_the_next_attempt_with_a_decision_of_its_own(store: Store) -> None:
    run(store, 1)
    second = store.ask(request(1))
    assert not second.redelivered
    assert (second.trial.number, second.trial.key) == (2, TrialKey("ti-1", 2))
    assert second.trial.asked_after_seq == 1
    assert second.trial.decision.seed == policy.decision_seed("d.train", 2, JOB.seed)
    assert [t.state for t in store.trials("d.train")] == [State.CONVERGED, State.RUNNING]


def test_a_later_try_closes_the_earlier_one_at_once(store: Store, clock: Clock) -> None:
    first = store.ask(request(1)).trial
    store.heartbeat(first.key, report(epochs=1.5))
    clock.t += 5  # its lease is far from over
    second = store.ask(request(1, ti_id="ti-1b", try_number=2)).trial
    old, new = store.trials("d.train")
    assert (old.state, old.reason) == (State.ABANDONED, "superseded by try 2")
    assert (old.told_seq, old.closed_at) == (1, 1005.0)
    assert old.observation.epochs == 1.5
    assert new == second
    assert new.asked_after_seq == 1


def test_an_expired_lease_is_abandoned_to_every_reader_and_written_down_by_the_next_question(
    store: Store, clock: Clock
) -> None:
    store.ask(request(1))
    clock.t += 90
    assert only(store).state is State.RUNNING
    clock.t += 1
    read = only(store)
    assert (read.state, read.reason, read.told_seq) == (State.ABANDONED, "lease expired", None)
    assert store.recurrence("d", "run1") == [read]
    store.ask(request(2))
    written = store.trials("d.train")[0]
    assert (written.state, written.reason, written.told_seq, written.closed_at) == (
        State.ABANDONED,
        "lease expired",
        1,
        1091.0,
    )


def test_reaping_closes_what_nobody_came_back_for_once(opens: Opens, clock: Clock) -> None:
    key = opens().ask(request(1)).trial.key
    opens().heartbeat(key, report(epochs=1.0, profile=1))
    clock.t += 90
    assert opens().reap("d.train") == []
    assert only(opens()).state is State.RUNNING
    clock.t += 1
    assert [(t.key, t.reason) for t in opens().reap("d.train")] == [(key, "lease expired")]
    closed = only(opens())
    assert (closed.state, closed.told_seq, closed.closed_at) == (State.ABANDONED, 1, 1091.0)
    assert closed.observation.epochs == 1.0
    assert opens().reap("d.train") == []
    opens().tell(key, State.CONVERGED, report())  # it lives after all
    assert only(opens()).state is State.CONVERGED
    assert [s.samples for s in opens().ask(request(2)).profile] == [10]


def test_a_message_redelivered_after_its_lease_gets_the_next_attempt(store: Store, clock: Clock) -> None:
    store.ask(request(1))
    clock.t += 1000
    again = store.ask(request(1))
    assert not again.redelivered
    assert again.trial.key == TrialKey("ti-1", 2)
    assert [t.state for t in store.trials("d.train")] == [State.ABANDONED, State.RUNNING]


def test_numbers_count_within_a_job(store: Store) -> None:
    run(store, 1)
    run(store, 2)
    other = store.ask(request(3, job_id="other"))
    assert [t.number for t in store.trials("d.train")] == [1, 2]
    assert other.trial.number == 1
    assert store.jobs() == ["d.train", "other"]


# --- leases and heartbeats


def test_a_heartbeat_renews_the_lease_and_writes_partial_sums(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += 80
    store.heartbeat(key, report(epochs=1.0, energy_j=10.0), lease_s=90)
    clock.t += 80
    store.heartbeat(key, report(epochs=2.0, energy_j=20.0), lease_s=90)
    trial = only(store)
    assert trial.state is State.RUNNING
    assert trial.lease_until == 1250.0
    assert (trial.observation.epochs, trial.observation.energy_j) == (2.0, 20.0)


def test_a_lease_never_shrinks_when_the_clock_steps_back(store: Store, clock: Clock) -> None:
    key = store.ask(request(1, lease_s=90)).trial.key
    clock.t -= 500
    store.heartbeat(key, report(), lease_s=90)
    assert only(store).lease_until == 1090.0
    assert store.ask(request(1)).trial.lease_until == 1090.0
    trial = store.tell(key, State.CONVERGED, report())
    assert trial.closed_at is not None
    assert trial.closed_at >= trial.opened_at


def test_a_shorter_heartbeat_lease_does_not_shorten_a_long_one(store: Store) -> None:
    key = store.ask(request(1, lease_s=86400)).trial.key
    store.heartbeat(key, report(), lease_s=90)
    assert only(store).lease_until == 87400.0


def test_a_heartbeat_of_a_closed_trial_changes_nothing(store: Store) -> None:
    key = run(store, 1).trial.key
    before = store.trials("d.train")
    store.heartbeat(key, report(epochs=99.0, profile=1, points=1))
    assert store.trials("d.train") == before
    assert store.points(key) == []
    assert store.ask(request(2)).profile == ()


def test_reports_for_a_key_that_nobody_asked_for_are_an_error(store: Store) -> None:
    for call in (
        lambda: store.heartbeat(TrialKey("nobody"), report()),
        lambda: store.tell(TrialKey("nobody"), State.CONVERGED, report()),
        lambda: store.begin(TrialKey("nobody", 2), TrialKey("nobody")),
    ):
        with pytest.raises(StoreError, match="nobody"):
            call()


def test_what_heartbeats_said_survives_a_death_without_a_result(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(epochs=2.0, energy_j=50.0, profile=2, points=3))
    failed = store.tell(key, State.FAILED, Report(observation=Observation()), reason="killed")
    assert (failed.state, failed.reason) == (State.FAILED, "killed")
    assert (failed.observation.epochs, failed.observation.energy_j) == (2.0, 50.0)
    assert len(store.points(key)) == 3
    assert [s.samples for s in store.ask(request(2)).profile] == [20]


# --- tell


def test_tell_writes_every_figure(opens: Opens, clock: Clock) -> None:
    key = opens().ask(request(1)).trial.key
    clock.t += 12
    extra = {"target_value": 0.8, "excess_j": 1.0, "excess_s": 0.1, "start_id": "a", "gpu_energy_j": (700.0, 420.0)}
    told = opens().tell(key, State.EXHAUSTED, report(**extra), reason="below")
    assert (told.state, told.reason, told.told_seq, told.closed_at) == (State.EXHAUSTED, "below", 1, 1012.0)
    assert told.observation == seen(**extra)
    assert all(getattr(told.observation, f.name) not in (None, {}) for f in fields(told.observation)[:-2])
    assert only(opens()) == told


def test_a_missing_figure_is_none_with_its_reason(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(energy_j=7.0))
    store.tell(key, State.CONVERGED, report(energy_j=None, reasons={"energy_j": "counter went backwards"}))
    seen_ = only(store).observation
    assert seen_.energy_j is None
    assert seen_.reasons == {"energy_j": "counter went backwards"}


def test_a_heartbeat_tells_the_energy_of_each_gpu(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(gpu_energy_j=(7.0, 5.0), device_count=2))
    assert only(store).observation.gpu_energy_j == (7.0, 5.0)
    store.heartbeat(key, report(gpu_energy_j=(9.0, 8.0), device_count=2))
    assert only(store).observation.gpu_energy_j == (9.0, 8.0)
    store.tell(key, State.CONVERGED, report(gpu_energy_j=(10.0, math.nan), device_count=2))
    seen_ = only(store).observation
    assert (seen_.gpu_energy_j, seen_.reasons) == (None, {"gpu_energy_j": "not a list of finite numbers"})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_missing(store: Store, value: float) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report(metric=value))
    assert only(store).observation.metric is None
    assert only(store).observation.reasons == {"metric": "not a finite number"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_sample_and_no_power(store: Store, value: float) -> None:
    """It may come from outside, as a line of a result file."""
    key = store.ask(request(1)).trial.key
    news = report(profile=2, points=3)
    (one, two), points = news.profile, list(news.points)
    odd = Report(
        observation=news.observation,
        profile=[replace(one, energy_j=value), two],
        points=[replace(points[0], power_w=value), replace(points[1], limit_w=value), replace(points[2], t_s=value)],
    )
    store.heartbeat(key, odd)
    store.tell(key, State.CONVERGED, odd)
    assert [s.energy_j for s in store.ask(request(2)).profile] == [2 * two.energy_j]
    assert [(p.power_w, p.limit_w) for p in store.points(key)] == [(None, 200.0), (101.0, None)] * 2


@pytest.mark.parametrize("reason", ["killed\0by signal", "no such file: \udce4.py"])
def test_a_reason_that_no_database_takes_loses_no_result(store: Store, reason: str) -> None:
    key = store.ask(request(1)).trial.key
    told = store.tell(key, State.FAILED, report(reasons={"metric": reason}, metric=None), reason=reason)
    assert told.reason
    assert told.reason[:6] == reason[:6]
    assert only(store) == told


def test_telling_twice_changes_nothing(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    first = store.tell(key, State.CONVERGED, report(profile=2, points=5))
    clock.t += 5
    assert store.tell(key, State.CONVERGED, report(profile=2, points=5)) == first
    assert only(store) == first
    assert len(store.points(key)) == 5
    asked = store.ask(request(2))
    assert [s.samples for s in asked.profile] == [20]
    assert asked.trial.asked_after_seq == 1


def test_another_result_for_a_closed_trial_changes_nothing(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    first = store.tell(key, State.CONVERGED, report())
    assert store.tell(key, State.FAILED, report(epochs=1.0), reason="late failure") == first
    assert store.tell(key, State.ABANDONED, report(epochs=1.0)) == first
    assert only(store) == first


def test_two_starts_of_one_plan_are_two_observations(store: Store) -> None:
    """A message delivered twice: both processes train, and each one's cost is a line of its own."""
    key = store.ask(request()).trial.key
    first, second = seen(start_id="a", energy_j=100.0), seen(start_id="b", energy_j=70.0)
    store.heartbeat(key, Report(observation=first))
    store.heartbeat(key, Report(observation=second))
    told = store.tell(key, State.CONVERGED, Report(observation=first))
    other = store.tell(key, State.CONVERGED, Report(observation=second))
    assert (told.key, other.key) == (key, TrialKey(key.ti_id, 2))
    assert told.planned == other.planned
    assert store.tell(key, State.CONVERGED, Report(observation=second)) == other, "told twice, written once"
    assert [(t.number, t.state, t.observation.energy_j) for t in store.trials("d.train")] == [
        (1, State.CONVERGED, 100.0),
        (2, State.CONVERGED, 70.0),
    ]


def test_a_result_of_another_start_for_a_closed_trial_is_an_observation_of_its_own(store: Store) -> None:
    key = store.ask(request()).trial.key
    store.tell(key, State.CONVERGED, Report(observation=seen(start_id="a")))
    store.tell(key, State.FAILED, Report(observation=seen(start_id="b")), reason="killed")
    assert [(t.state, t.reason) for t in store.trials("d.train")] == [
        (State.CONVERGED, None),
        (State.FAILED, "killed"),
    ]


def test_a_late_result_moves_abandoned_to_its_true_state_and_is_used_in_full(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    store.ask(request(1, ti_id="ti-1b", try_number=2))
    clock.t += 50
    told = store.tell(key, State.CONVERGED, report(profile=1))
    assert (told.state, told.reason, told.told_seq, told.closed_at) == (State.CONVERGED, None, 2, 1050.0)
    assert told.observation == seen()
    assert store.trials("d.train")[0] == told
    store.tell(TrialKey("ti-1b"), State.FAILED, Report(observation=Observation()))
    belief = reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
    assert [n for n, _, _ in belief.converged] == [1]


def test_an_expired_trial_that_comes_back_is_told_as_usual(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += 500
    assert store.tell(key, State.CONVERGED, report()).state is State.CONVERGED


def test_running_is_no_end(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    with pytest.raises(ValueError, match="RUNNING"):
        store.tell(key, State.RUNNING, report())
    assert only(store).state is State.RUNNING


# --- second attempts, adopted trials


def exploring(store: Store) -> Trial:
    """An open trial that explores, so that its decision has a second attempt."""
    for n in range(1, 30):
        trial = store.ask(request(n)).trial
        if len(trial.decision.attempts) == 2:
            return trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    raise AssertionError("the policy never explored")


def test_the_second_attempt_has_a_row_of_its_own(opens: Opens, clock: Clock) -> None:
    first = exploring(opens())
    opens().tell(first.key, State.GIVEN_UP, report(first.batch_size, epochs=1.0))
    clock.t += 3
    key = TrialKey(first.key.ti_id, 2)
    second = opens().begin(key, first.key, lease_s=90)
    assert second == opens().begin(key, first.key, lease_s=90)
    assert (second.number, second.key, second.state) == (first.number + 1, key, State.RUNNING)
    assert second.planned == first.decision.attempts[1]
    assert (second.decision, second.spec, second.asked_after_seq) == (
        first.decision,
        first.spec,
        first.asked_after_seq,
    )
    assert (second.opened_at, second.lease_until, second.observation) == (clock.t, clock.t + 90, Observation())
    assert opens().ask(request(first.number)).trial == second  # the open attempt is what a redelivered message gets
    assert [t.key for t in opens().recurrence("d", first.origin.run_id)] == [first.key, key]
    with pytest.raises(StoreError, match="last attempt"):
        opens().begin(TrialKey(key.ti_id, 3), key)


def test_two_open_attempts_keep_their_own_sums(store: Store) -> None:
    first = exploring(store)
    store.heartbeat(first.key, report(first.batch_size, epochs=1.0, points=2))
    second = store.begin(TrialKey(first.key.ti_id, 2), first.key)
    store.heartbeat(second.key, report(second.batch_size, epochs=2.0, points=3))
    store.heartbeat(first.key, report(first.batch_size, epochs=1.5, points=1))
    assert [t.observation.epochs for t in store.trials("d.train")[-2:]] == [1.5, 2.0]
    store.tell(first.key, State.GIVEN_UP, report(first.batch_size, epochs=1.75))
    assert [t.observation.epochs for t in store.trials("d.train")[-2:]] == [1.75, 2.0]
    assert (len(store.points(first.key)), len(store.points(second.key))) == (3, 3)


def beat(store: Store, key: TrialKey, start_id: str, batch_size: int) -> None:
    store.heartbeat(key, report(batch_size, start_id=start_id, epochs=1.0))


def in_short(store: Store, ti_id: str) -> list[tuple[int, str, State, str | None]]:
    """(batch size, start, state, reason) of a task instance's rows."""
    mine = [t for t in store.trials("d.train") if t.key.ti_id == ti_id]
    return [(t.batch_size, t.observation.start_id or "", t.state, t.reason) for t in mine]


def test_a_message_redelivered_after_a_report_is_a_start_with_rows_of_its_own(opens: Opens) -> None:
    first = exploring(opens())
    second = first.decision.attempts[1].batch_size
    beat(opens(), first.key, "a", first.batch_size)
    asked = opens().ask(request(first.number))
    again = asked.trial
    assert asked.redelivered
    assert again.key == TrialKey(first.key.ti_id, 2)
    assert (again.decision, again.planned, again.asked_after_seq) == (
        first.decision,
        first.planned,
        first.asked_after_seq,
    )
    assert again.observation == Observation()
    beat(opens(), again.key, "b", again.batch_size)
    opens().tell(again.key, State.GIVEN_UP, report(again.batch_size, start_id="b"))
    kept = opens().begin(TrialKey(first.key.ti_id, 3), again.key)
    beat(opens(), kept.key, "b", kept.batch_size)
    opens().tell(kept.key, State.CONVERGED, report(kept.batch_size, start_id="b"))
    assert in_short(opens(), first.key.ti_id) == [
        (first.batch_size, "a", State.ABANDONED, ledger.REDELIVERED),
        (first.batch_size, "b", State.GIVEN_UP, None),
        (second, "b", State.CONVERGED, None),
    ]


def test_two_living_starts_of_one_message_lose_neither_attempt(opens: Opens) -> None:
    """The first start is not dead: its second attempt's key is the other one's by now."""
    first = exploring(opens())
    second = first.decision.attempts[1].batch_size
    ti_id = first.key.ti_id
    beat(opens(), first.key, "a", first.batch_size)
    again = opens().ask(request(first.number)).trial
    beat(opens(), again.key, "b", first.batch_size)
    opens().tell(first.key, State.GIVEN_UP, report(first.batch_size, start_id="a"))
    kept_a = opens().begin(TrialKey(ti_id, 2), first.key)
    assert (kept_a.batch_size, kept_a.key) == (second, TrialKey(ti_id, 3))
    assert opens().begin(TrialKey(ti_id, 2), first.key) == kept_a, "idempotent"
    beat(opens(), kept_a.key, "a", second)
    opens().tell(again.key, State.GIVEN_UP, report(first.batch_size, start_id="b"))
    kept_b = opens().begin(TrialKey(ti_id, 3), again.key)
    beat(opens(), kept_b.key, "b", second)
    opens().tell(kept_b.key, State.CONVERGED, report(second, start_id="b"))
    opens().tell(kept_a.key, State.CONVERGED, report(second, start_id="a"))
    assert sorted(in_short(opens(), ti_id), key=lambda row: (row[1], row[2].value)) == [
        (second, "a", State.CONVERGED, None),
        (first.batch_size, "a", State.GIVEN_UP, None),
        (second, "b", State.CONVERGED, None),
        (first.batch_size, "b", State.GIVEN_UP, None),
    ]


def test_a_second_attempt_redelivered_after_a_report_is_the_second_attempt_again(store: Store) -> None:
    first = exploring(store)
    store.tell(first.key, State.GIVEN_UP, report(first.batch_size, start_id="a"))
    second = store.begin(TrialKey(first.key.ti_id, 2), first.key)
    beat(store, second.key, "a", second.batch_size)
    again = store.ask(request(first.number)).trial
    assert (again.key, again.planned) == (TrialKey(first.key.ti_id, 3), second.planned)
    store.tell(again.key, State.CONVERGED, report(again.batch_size, start_id="b"))
    assert [state for _, _, state, _ in in_short(store, first.key.ti_id)] == [
        State.GIVEN_UP,
        State.ABANDONED,
        State.CONVERGED,
    ]


# --- peeks

PEEKING = replace(JOB, policy="knowledge_gradient")


def kept_with_peeks(store: Store, n: int = 1) -> Trial:
    """A trial of which the model is kept, whose decision has peeks and an incumbent that never runs."""
    for i in range(n, n + 5):
        trial = store.ask(request(i, job=PEEKING)).trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size, start_id="a"))
        if trial.decision.peeks:
            return trial
    raise AssertionError("the policy never peeked")


def after(trial: Trial, steps: int = 0) -> TrialKey:
    """Key of the decision's peek number ``steps``: attempts that never ran keep their numbers."""
    return TrialKey(trial.key.ti_id, trial.key.attempt + len(trial.decision.attempts) + steps)


def test_a_peek_has_a_row_of_its_own_and_the_attempt_that_never_ran_has_none(opens: Opens, clock: Clock) -> None:
    kept = kept_with_peeks(opens())
    clock.t += 3
    for i, planned in enumerate(kept.decision.peeks):
        row = opens().begin(after(kept, i), kept.key, planned=planned, lease_s=90)
        assert row == opens().begin(after(kept, i), kept.key, planned=planned, lease_s=90), "idempotent"
        assert (row.key, row.planned, row.planned.phase) == (after(kept, i), planned, Phase.PEEK)
        assert (row.decision, row.spec, row.origin) == (kept.decision, kept.spec, kept.origin)
        assert (row.number, row.state, row.lease_until) == (kept.number + 1 + i, State.RUNNING, clock.t + 90)
        seen_there = report(row.batch_size, start_id="a", epochs=0.1, profile=1, points=2)
        opens().heartbeat(row.key, seen_there)
        told = opens().tell(row.key, State.GIVEN_UP, report(row.batch_size, start_id="a", epochs=0.2))
        assert (told.key, told.state, told.observation.epochs) == (row.key, State.GIVEN_UP, 0.2)
        assert len(opens().points(row.key)) == 2
    log = opens().trials("d.train")
    assert [t.planned for t in log if t.key.ti_id == kept.key.ti_id] == [kept.planned, *kept.decision.peeks]


def test_the_next_question_knows_what_a_peek_measured(store: Store) -> None:
    kept = kept_with_peeks(store)
    (planned, *_) = kept.decision.peeks
    store.begin(after(kept), kept.key, planned=planned)
    store.tell(after(kept), State.GIVEN_UP, report(planned.batch_size, epochs=0.2, samples=200))
    following = store.ask(request(7, job=PEEKING)).trial
    again = [p.batch_size for p in following.decision.peeks]
    assert planned.batch_size not in again, "its EpochCost is known"


def test_what_no_decision_planned_is_no_peek(store: Store) -> None:
    kept = kept_with_peeks(store)
    with pytest.raises(StoreError, match=r"no peek at batch size 99; begin one of \["):
        store.begin(after(kept), kept.key, planned=replace(kept.decision.peeks[0], batch_size=99))


def test_an_open_peek_is_closed_by_a_redelivered_message_and_never_handed_out(opens: Opens) -> None:
    kept = kept_with_peeks(opens())
    opens().begin(after(kept), kept.key, planned=kept.decision.peeks[0])
    asked = opens().ask(request(int(kept.key.ti_id[3:]), job=PEEKING))
    assert not asked.redelivered
    assert asked.trial.planned == asked.trial.decision.attempts[0]
    assert asked.trial.key == replace(after(kept), attempt=after(kept).attempt + 1)
    row = next(t for t in opens().trials("d.train") if t.key == after(kept))
    assert (row.state, row.reason) == (State.ABANDONED, ledger.REDELIVERED)
    late = opens().tell(row.key, State.GIVEN_UP, report(row.batch_size, epochs=0.2))
    assert late.state is State.GIVEN_UP, "a late result is used in full"


def test_a_peek_whose_lease_expired_is_abandoned_and_disturbs_no_decision(store: Store, clock: Clock) -> None:
    kept = kept_with_peeks(store)
    store.begin(after(kept), kept.key, planned=kept.decision.peeks[0], lease_s=90)
    clock.t += 91
    assert store.trials("d.train")[-1].state is State.ABANDONED
    following = store.ask(request(8, job=PEEKING)).trial
    assert "died" not in following.planned.why
    assert following.planned.phase is not Phase.INCUMBENT or "no other batch size" in following.planned.why


def test_a_peek_that_never_reached_the_store_is_adopted_and_told(store: Store) -> None:
    kept = kept_with_peeks(store)
    (planned, *_) = kept.decision.peeks
    row = store.adopt(replace(kept, key=after(kept), planned=planned, observation=Observation(start_id="a")))
    assert (row.key, row.planned) == (after(kept), planned)
    assert store.tell(row.key, State.GIVEN_UP, report(planned.batch_size, start_id="a")).state is State.GIVEN_UP
    assert store.begin(after(kept), kept.key, planned=planned).state is State.GIVEN_UP, "it is there"


def test_a_trial_that_began_without_the_store_is_adopted_and_told(store: Store, clock: Clock) -> None:
    run(store, 1)
    attempt = Attempt(batch_size=32, phase=Phase.FALLBACK, why="no store")
    alone = Trial(
        job_id="d.train",
        number=0,
        key=TrialKey("ti-2"),
        origin=request(2).origin,
        spec=JOB.to_dict(),
        decision=Decision(attempts=(attempt,), seed=0, policy="zeus"),
        planned=attempt,
        state=State.RUNNING,
        opened_at=900.0,
    )
    adopted = store.adopt(alone, lease_s=90)
    assert store.adopt(alone) == adopted
    assert (adopted.number, adopted.opened_at, adopted.lease_until) == (2, 900.0, 1090.0)
    store.tell(alone.key, State.CONVERGED, report())
    assert [t.number for t in store.trials("d.train")] == [1, 2]
    assert store.ask(request(3)).trial.number == 3


# --- reading


def test_readers_see_the_log_in_order(store: Store) -> None:
    for n in range(1, 6):
        run(store, n)
    assert [t.number for t in store.trials("d.train")] == [1, 2, 3, 4, 5]
    assert [t.number for t in store.trials("d.train", last=2)] == [4, 5]
    assert store.trials("d.train", last=0) == []
    assert [t.number for t in store.trials("d.train", last=99)] == [1, 2, 3, 4, 5]
    assert store.trials("nobody") == []
    assert store.recurrence("d", "run3") == [store.trials("d.train")[2]]
    assert store.recurrence("d", "nowhere") == []


def test_the_latest_trials_of_every_job_in_every_dag(store: Store) -> None:
    elsewhere = replace(request(4).origin, dag_id="other")
    asked = [request(n) for n in range(1, 8)]
    asked[3] = request(4, origin=elsewhere)
    for one in (*asked, request(8, job_id="b")):
        store.tell(store.ask(one).trial.key, State.CONVERGED, report())

    def seen(last: int) -> list[tuple[str, str, int]]:
        return [(t.origin.dag_id, t.job_id, t.number) for t in store.latest(last=last)]

    assert seen(1) == [("d", "b", 1), ("d", "d.train", 7), ("other", "d.train", 4)]
    assert seen(3) == [("d", "b", 1), *(("d", "d.train", n) for n in (5, 6, 7)), ("other", "d.train", 4)]
    assert len(seen(99)) == 8


def test_the_newest_runs_of_a_dag_come_with_all_their_trials(store: Store) -> None:
    for n in (1, 2, 3):
        run(store, n)
    elsewhere = replace(request(4).origin, dag_id="other")
    store.tell(store.ask(request(4, origin=elsewhere)).trial.key, State.CONVERGED, report())
    again = store.ask(request(1, ti_id="ti-1b", try_number=2)).trial  # cleared: run1 has the newest trial now
    assert again.number == 5
    assert [(t.number, t.origin.run_id) for t in store.runs("d", "d.train", last=2)] == [
        (1, "run1"),
        (3, "run3"),
        (5, "run1"),
    ]
    assert [t.number for t in store.runs("d", "d.train", last=10)] == [1, 2, 3, 5]
    assert [t.number for t in store.runs("other", "d.train", last=10)] == [4]
    assert store.runs("d", "d.train", last=10)[-1] == again
    assert [t.number for t in store.runs("d", "d.train", last=1, skip=1)] == [3]
    assert [t.number for t in store.runs("d", "d.train", last=10, skip=1)] == [2, 3]
    assert store.runs("d", "d.train", last=10, skip=3) == []
    assert store.runs("d", "nothing", last=10) == store.runs("nowhere", "d.train", last=10) == []


def test_the_newest_runs_read_an_expired_lease_as_abandoned(store: Store, clock: Clock) -> None:
    store.ask(request(1))
    clock.t += 91
    assert [t.state for t in store.runs("d", "d.train", last=1)] == [State.ABANDONED]


def test_jobs_of_one_dag(store: Store) -> None:
    run(store, 1)
    store.ask(request(2, job_id="a.shared", origin=replace(request(2).origin, dag_id="other")))
    store.ask(request(3, job_id="z.mine"))
    assert store.jobs() == ["a.shared", "d.train", "z.mine"]
    assert store.jobs("d") == ["d.train", "z.mine"]
    assert store.jobs("other") == ["a.shared"]
    assert store.jobs("nowhere") == []


def test_a_reader_opens_no_job(store: Store) -> None:
    store.trials("nobody")
    store.settings("nobody")
    assert store.reap("nobody") == []
    assert store.jobs() == []


@pytest.mark.parametrize("ti_id", ["a b/c?d#e%f", "ü" * 40, "x" * 400, "train_token", ""])
def test_task_instance_ids_of_any_characters(store: Store, ti_id: str) -> None:
    key = store.ask(replace(request(1), ti_id=ti_id)).trial.key
    store.heartbeat(key, report(epochs=1.0))
    assert only(store).observation.epochs == 1.0
    assert store.tell(key, State.CONVERGED, report()).key == TrialKey(ti_id)


@pytest.mark.parametrize("job_id", ["dag with blank/täsk", "tokenizer.train", "j" * 500])
def test_job_ids_of_any_characters(opens: Opens, job_id: str) -> None:
    key = opens().ask(request(1, job_id=job_id)).trial.key
    opens().tell(key, State.CONVERGED, report())
    assert opens().jobs() == [job_id]
    assert [t.job_id for t in opens().trials(job_id)] == [job_id]


def test_power_points_are_kept_in_order_and_bounded(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    for part in range(12):
        new = [replace(p, t_s=part * 100 + p.t_s) for p in report(points=100).points]
        store.heartbeat(key, Report(observation=seen(), points=new))
    store.tell(key, State.CONVERGED, report())
    points = store.points(key)
    assert 50 <= len(points) <= 500
    assert points[-1].t_s == 1200.0
    assert [p.t_s for p in points] == sorted(p.t_s for p in points)
    assert store.points(TrialKey("ti-1", 1)) == points


# --- what an answer carries


def test_profile_samples_are_summed_per_size_and_limit_and_per_device(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report(32, profile=3))
    key = store.ask(request(2)).trial.key
    store.tell(key, State.CONVERGED, report(16, profile=1, device_model="A40"))
    here = store.ask(request(3))
    assert [(s.batch_size, s.limit_w, s.samples, s.energy_j, s.time_s, s.steps) for s in here.profile] == [
        (32, 200.0, 30, 6.0, 3.0, 3)
    ]
    assert {type(s.samples) for s in here.profile} == {type(s.steps) for s in here.profile} == {int}
    store.tell(here.trial.key, State.CONVERGED, report())
    a40 = DeviceInfo(model="A40", count=1, energy_source="simulated")
    there = store.ask(request(4, device=a40))
    assert [(s.batch_size, s.samples) for s in there.profile] == [(16, 10)]
    assert there.profile_device == a40
    store.tell(there.trial.key, State.CONVERGED, report())
    other = store.ask(request(5, device=replace(a40, count=2)))
    assert other.profile == ()


def test_where_the_device_is_not_known_the_profile_says_whose_it_is(store: Store) -> None:
    run(store, 1, profile=1, max_power_w=None)
    asked = store.ask(request(2, device=None))
    assert asked.profile_device == DeviceInfo(model="V100", count=1, energy_source="simulated")
    assert len(asked.profile) == 1
    assert store.ask(request(2, device=None)).profile == asked.profile  # redelivered


def test_samples_of_a_limit_add_up_however_many_and_however_small(store: Store) -> None:
    """Runs that are shorter than a window finish it together."""
    run(store, 1, profile=7)
    for n in (2, 3):
        key = store.ask(request(n)).trial.key
        store.heartbeat(key, report(32, profile=3))
        store.tell(key, State.CONVERGED, report(64, profile=5))
    profile = store.ask(request(4)).profile
    assert {s.batch_size: s.samples for s in profile} == {32: 130, 64: 100}


def test_a_mark_makes_the_profile_of_its_batch_size_begin_anew(store: Store) -> None:
    (one,) = report(32, profile=1).profile
    fresh, other = replace(one, limit_w=150.0), replace(one, batch_size=64)
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, Report(observation=seen(), profile=[one, replace(one, limit_w=100.0), other]))
    store.tell(key, State.CONVERGED, Report(observation=seen(), profile=[one, ProfileSample.anew(32), fresh]))
    asked = store.ask(request(2))
    assert list(asked.profile) == [fresh, other]
    store.heartbeat(asked.trial.key, Report(observation=seen(), profile=[fresh, ProfileSample.anew(64)]))
    store.tell(asked.trial.key, State.CONVERGED, report())
    assert [(s.batch_size, s.limit_w, s.samples) for s in store.ask(request(3)).profile] == [(32, 150.0, 20)]


def test_a_profile_of_many_limits_is_kept_whole(store: Store) -> None:
    """Else a training over more limits than are kept would measure them anew for ever."""
    (one,) = report(32, profile=1).profile
    many = [replace(one, limit_w=100.0 + n) for n in range(150)]
    key = store.ask(request(1)).trial.key
    for n in range(0, 150, 10):
        store.heartbeat(key, Report(observation=seen(), profile=many[n : n + 10]))
    store.tell(key, State.CONVERGED, report())
    assert list(store.ask(request(2)).profile) == many


def test_another_job_version_starts_the_power_profile_anew_and_loses_none(store: Store, set_setting: Set) -> None:
    """A new version may train another model, which draws something else."""
    run(store, 1, profile=6)
    new = replace(JOB, job_version="2")
    first = store.ask(request(2, job=new))
    assert first.profile == ()
    store.heartbeat(first.trial.key, report(32, profile=3))
    assert samples(store.ask(request(2, job=new))) == [30], "of a start under way"
    store.tell(first.trial.key, State.CONVERGED, report(32, profile=2))
    for n, (job, kept) in enumerate([(new, 50), (JOB, 60), (new, 50)], start=3):
        asked = store.ask(request(n, job=job))
        assert samples(asked) == [kept], "of each version, as they were"
        store.tell(asked.trial.key, State.CONVERGED, report())
    again = store.ask(request(6))
    set_setting("zeus-settings:d.train", json.dumps({"job_version": "b"}))
    assert samples(store.ask(request(6))) == [60], "redelivered: decided for the version before"
    store.tell(again.trial.key, State.CONVERGED, report())
    assert samples(store.ask(request(7))) == []


def samples(asked: Asked) -> list[int]:
    return [s.samples for s in asked.profile]


def test_a_limit_found_is_handed_on_only_where_its_trial_has_not_given_it_back(store: Store, clock: Clock) -> None:
    run(store, 1, limit_found_w=225.0, power_limit_w=150.0)
    assert store.ask(request(2)).limits_found_w == {}, "a healthy run gave it back"
    store.heartbeat(TrialKey("ti-2"), report(limit_found_w=225.0, power_limit_w=125.0))
    assert store.ask(request(2)).limits_found_w == {"GPU-1": (225.0, 125.0)}, "it runs, or died unseen"
    clock.t += 1000
    third = store.ask(request(3))
    assert third.limits_found_w == {"GPU-1": (225.0, 125.0)}, "abandoned"
    store.tell(third.trial.key, State.FAILED, report(gpu_uuid="GPU-2", limit_found_w=225.0))
    assert run(store, 4, gpu_uuid=None, limit_found_w=None).limits_found_w == {"GPU-1": (225.0, 125.0)}
    run(store, 5, limit_found_w=225.0, power_limit_w=125.0)
    assert store.ask(request(6)).limits_found_w == {}, "the next run there gave back what it had found"


def test_a_trial_that_died_at_the_limit_found_left_nothing_behind(store: Store, clock: Clock) -> None:
    store.heartbeat(store.ask(request(1)).trial.key, report(limit_found_w=225.0, power_limit_w=225.0))
    clock.t += 1000
    assert store.ask(request(2)).limits_found_w == {}


# --- live settings


def test_live_settings_change_the_decision_and_the_stored_spec(store: Store, set_setting: Set) -> None:
    set_setting("zeus-settings:d.train", json.dumps({"eta": 0.9, "pin_batch_size": 64}))
    assert store.settings("d.train") == {"eta": 0.9, "pin_batch_size": 64}
    trial = store.ask(request(1)).trial
    assert (trial.batch_size, trial.planned.phase) == (64, Phase.PINNED)
    assert trial.spec["eta"] == 0.9
    assert only(store).spec["eta"] == 0.9


def test_another_job_version_starts_the_job_anew_and_keeps_the_log(store: Store, set_setting: Set) -> None:
    for n in range(1, 8):
        run(store, n)
    assert store.ask(request(8)).trial.planned.phase is Phase.SAMPLE
    store.tell(TrialKey("ti-8"), State.CONVERGED, report(64))
    set_setting("zeus-settings:d.train", json.dumps({"job_version": "2"}))
    assert store.settings("d.train") == {"job_version": "2"}
    anew = run(store, 9).trial
    assert (anew.planned.phase, anew.planned.round, anew.batch_size) == (Phase.EXPLORE, 1, JOB.default_batch_size)
    assert anew.planned.bound_epochs is None  # nothing is believed, so nothing is a yardstick
    assert anew.spec["job_version"] == "1+2"
    second = run(store, 10).trial  # and goes on from there, by what the first of the new version taught
    assert (second.planned.phase, second.planned.round) == (Phase.EXPLORE, 1)
    assert second.planned.bound_cost is not None
    assert len(store.trials("d.train")) == 10
    author = store.ask(request(11, job=replace(JOB, job_version="1.1"))).trial
    assert author.spec["job_version"] == "1.1+2"
    assert author.batch_size == JOB.default_batch_size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"job_version": 2}', "not a text"),
        ('{"job_version": ""}', "not a text"),
        ('{"eta": 1.5}', "from 0 to 1"),
        ('{"eta": true}', "from 0 to 1"),
        ('{"eta": NaN}', "from 0 to 1"),
        ('{"pin_batch_size": 48}', r"not in batch_sizes \[16, 32, 64\]"),
        ('{"pause_exploration": "yes"}', "neither true nor false"),
        ('{"etta": 0.5}', "no such setting"),
        ("[1]", "not a JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_bad_live_settings_are_named_and_ignored(
    store: Store, set_setting: Set, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    logging.getLogger("airflow_provider_zeus").propagate = True
    set_setting("zeus-settings:d.train", text)
    with caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        trial = store.ask(request(1)).trial
    assert trial.spec["eta"] == JOB.eta
    assert trial.planned.phase is not Phase.PINNED
    message = " ".join(r.getMessage() for r in caplog.records)
    assert re.search(said, message)
    assert "zeus-settings:d.train" in message


# --- decisions can be replayed


def test_each_decision_follows_from_the_log_that_it_knew(store: Store, clock: Clock) -> None:
    states = [State.CONVERGED, State.CONVERGED, State.GIVEN_UP, State.FAILED, State.CONVERGED]
    for n in range(1, 41):
        asked = store.ask(request(n))
        if n % 7 == 0:
            clock.t += 1000  # nobody comes back
            continue
        state = states[n % len(states)]
        store.tell(asked.trial.key, state, report(asked.trial.batch_size, epochs=4.0 + n % 3))
        clock.t += 60
    log = store.trials("d.train")
    assert len({t.batch_size for t in log}) > 1
    assert sorted(t.told_seq for t in log if t.told_seq) == list(range(1, len(log) + 1))
    for trial in log:
        known = [t for t in log if t.told_seq and t.told_seq <= trial.asked_after_seq]
        belief = reduce(policy.learn, known, policy.prior(JOB))
        again = policy.choose(JOB, belief, profiles=(), device=request().device, running=(), seed=trial.decision.seed)
        assert again.attempts[0].batch_size == trial.batch_size


def test_the_identity_names_the_place(store: Store) -> None:
    assert store.identity
    assert "object at" not in store.identity
