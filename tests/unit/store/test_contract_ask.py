"""What every store does (docs/architecture.md), on each store there is: questions,
leases, heartbeats.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import Observation, Origin, State, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import JOB, Clock, only, report, request, run

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
    assert second.trial.decision.seed == policy.decision_seed("d.train", 2)
    assert [t.state for t in store.trials("d.train")] == [State.CONVERGED, State.RUNNING]


def test_the_answer_says_what_the_attempts_are_called(store: Store) -> None:
    """As pages and commands have it from the whole log."""
    run(store, 1)
    run(store, 2)
    again = store.ask(request(1, ti_id="ti-1b", try_number=2))
    store.tell(again.trial.key, State.FAILED, report())
    alone = store.ask(request(4, ti_id="alone", origin=Origin()))
    numbers = RunNumbers(store.trials("d.train"))
    for answer, said in ((again, "1.2"), (alone, f"{alone.trial.number}.1")):
        assert answer.numbers.attempt(answer.trial.key.attempt) == said
        assert numbers.attempt(answer.trial) == said


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


def test_a_message_redelivered_after_its_lease_gets_the_next_attempt(
    store: Store, clock: Clock
) -> None:
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


def test_a_heartbeat_that_names_no_lease_renews_it_for_as_long_as_a_question_does(
    store: Store, clock: Clock
) -> None:
    key = store.ask(request(1)).trial.key
    asked_s = only(store).lease_until - clock.t
    clock.t += 80
    store.heartbeat(key, report())
    assert only(store).lease_until - clock.t == asked_s


def test_a_clock_that_steps_back_ends_no_living_run(store: Store, clock: Clock) -> None:
    key = store.ask(request(1, lease_s=90)).trial.key
    clock.t -= 500
    store.heartbeat(key, report(), lease_s=90)
    assert (only(store).state, only(store).lease_until) == (State.RUNNING, 590.0)
    clock.t += 80
    store.heartbeat(key, report(), lease_s=90)
    assert (only(store).state, only(store).lease_until) == (State.RUNNING, 670.0)
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


def test_the_last_scheduled_run_tries_nothing(store: Store, clock: Clock) -> None:
    job = replace(JOB, policy="knowledge_gradient")
    for n in range(1, 4):  # the default, three times
        asked = store.ask(replace(request(n, job=job), runs_left=0))
        assert asked.trial.batch_size == JOB.default_batch_size
        store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size, epochs=4.0))
        clock.t += 60
    assert store.ask(replace(request(4, job=job), runs_left=50)).trial.planned.bounded
