"""What every store does (design: "The store"), on each store there is: several rows of one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.trial import Observation, Phase, State, Trial, TrialKey
from airflow_provider_zeus.store import ledger
from airflow_provider_zeus.store.base import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import JOB, Clock, began_alone, report, request, run

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


def test_what_stands_in_for_the_only_attempt_has_a_row_of_its_own(opens: Opens) -> None:
    first = opens().ask(request(1)).trial
    assert (first.planned,) == first.decision.attempts
    opens().tell(first.key, State.FAILED, report(first.batch_size, epochs=1.0, out_of_memory=True))
    key = TrialKey(first.key.ti_id, 2)
    second = opens().begin(key, first.key)
    assert second == opens().begin(key, first.key)
    assert second.planned == first.decision.stand_in
    assert second.batch_size < first.batch_size
    assert opens().ask(request(1)).trial == second  # of a redelivered message
    opens().tell(key, State.CONVERGED, report(second.batch_size))
    assert [(t.planned, t.state) for t in opens().trials("d.train")] == [
        (first.planned, State.FAILED),
        (second.planned, State.CONVERGED),
    ]
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
        (second, "a", State.CONVERGED, ledger.REDELIVERED),
        (first.batch_size, "a", State.GIVEN_UP, ledger.REDELIVERED),
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
    alone = began_alone(2, opened_at=900.0)
    adopted = store.adopt(alone, lease_s=90)
    assert store.adopt(alone) == adopted
    assert (adopted.number, adopted.opened_at, adopted.lease_until) == (2, 900.0, 1090.0)
    store.tell(alone.key, State.CONVERGED, report())
    assert [t.number for t in store.trials("d.train")] == [1, 2]
    assert store.ask(request(3)).trial.number == 3
