"""What every store does (docs/architecture.md), on each store there is:
several rows of one decision.
"""

from __future__ import annotations

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import REDELIVERED, Observation, State, Trial, TrialKey
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import Clock, began_alone, report, request, run

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
    assert (second.opened_at, second.lease_until, second.observation) == (
        clock.t,
        clock.t + 90,
        Observation(),
    )
    # the open attempt is what a redelivered message gets
    assert opens().ask(request(first.number)).trial == second
    assert [t.key for t in opens().recurrence("d", first.origin.run_id)] == [first.key, key]
    with pytest.raises(StoreError, match="is the last one of its decision"):
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
    with pytest.raises(StoreError, match="is the last one of its decision"):
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
        (first.batch_size, "a", State.ABANDONED, REDELIVERED),
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
        (second, "a", State.CONVERGED, REDELIVERED),
        (first.batch_size, "a", State.GIVEN_UP, REDELIVERED),
        (second, "b", State.CONVERGED, None),
        (first.batch_size, "b", State.GIVEN_UP, None),
    ]


def test_a_second_attempt_redelivered_after_a_report_is_the_second_attempt_again(
    store: Store,
) -> None:
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


def test_a_trial_that_began_without_the_store_is_adopted_and_told(
    store: Store, clock: Clock
) -> None:
    run(store, 1)
    alone = began_alone(2, opened_at=900.0)
    adopted = store.adopt(alone, lease_s=90)
    assert store.adopt(alone) == adopted
    assert (adopted.number, adopted.opened_at, adopted.lease_until) == (2, 900.0, 1090.0)
    store.tell(alone.key, State.CONVERGED, report())
    assert [t.number for t in store.trials("d.train")] == [1, 2]
    assert store.ask(request(3)).trial.number == 3
