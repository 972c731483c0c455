"""What every store does, on each store there is: which events hold,
and which run hears that one began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_zeus.model.event import FAILING, Event, Held, Looked
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial
from airflow_provider_zeus.reports import alerts
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.pending import PendingResult
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import Clock, began_alone, only, report, request, run

JOB_ID = "d.train"


def begun(store: Store, by: Trial) -> list[str]:
    """What a run finds that began."""
    look = partial(alerts.look, run=by, prices=Prices())
    return [event.kind for event in store.look(JOB_ID, look, last=alerts.NEWEST)]


def holding(store: Store) -> dict[str, list[str]]:
    return {
        dag_id: [event.kind for event in held.events]
        for dag_id, held in store.events(JOB_ID).items()
    }


def test_an_event_begins_once_and_ends(opens: Opens) -> None:
    failed = run(opens(), 1, State.FAILED).trial
    assert begun(opens(), failed) == [FAILING]
    assert begun(opens(), failed) == [], "also where a process looks again"
    assert holding(opens()) == {"d": [FAILING]}
    (event,) = opens().events(JOB_ID)["d"].events
    assert event.sentence.startswith("The newest run left no model (run 1)")
    assert (event.run_id, event.since) == ("run1", 1)
    assert event.figures == {"runs": 1, "aside_j": 1120.0, "aside_s": 9.0}
    well = run(opens(), 2).trial
    assert begun(opens(), well) == []
    assert holding(opens()) == {"d": []}
    assert begun(opens(), run(opens(), 3, State.FAILED).trial) == [FAILING], "it began anew"


def test_the_look_gets_the_newest_trials_and_their_profile(opens: Opens) -> None:
    for n in (1, 2, 3):
        asked = opens().ask(request(n)).trial
        opens().tell(asked.key, State.CONVERGED, report(asked.batch_size, profile=2))
    seen: list[tuple[list[int], bool]] = []

    def look(
        held: Mapping[str, Held], trials: Sequence[Trial], profile: Sequence[ProfileSample]
    ) -> Looked:
        seen.append(([t.number for t in trials], bool(profile)))
        return Looked(events=held, begun=())

    assert opens().look(JOB_ID, look, last=2) == ()
    assert seen == [([2, 3], True)]
    assert opens().look("d.other", look, last=2) == ()
    assert (len(seen), opens().jobs()) == (1, [JOB_ID]), "no job comes to be by a look"


def test_a_killed_run_is_told_by_the_run_that_closes_it(opens: Opens, clock: Clock) -> None:
    first = opens().ask(request(1))
    assert not first.after_killed
    clock.t += 100.0
    second = opens().ask(request(2))
    assert second.after_killed
    assert begun(opens(), second.trial) == [FAILING]
    opens().tell(second.trial.key, State.CONVERGED, report(second.trial.batch_size))
    assert begun(opens(), second.trial) == []


def test_a_run_that_somebody_else_closed_is_told_at_the_next_decision_too(
    opens: Opens, clock: Clock
) -> None:
    opens().ask(request(1))
    clock.t += 100.0
    assert [t.number for t in opens().reap(JOB_ID)] == [1]
    second = opens().ask(request(2))
    assert second.after_killed
    assert begun(opens(), second.trial) == [FAILING]
    opens().tell(second.trial.key, State.CONVERGED, report(second.trial.batch_size))
    assert not opens().ask(request(3)).after_killed


def test_a_failure_that_was_stored_late_is_told_by_the_next_run(opens: Opens) -> None:
    pending = PendingResult(
        job_id=JOB_ID,
        key=began_alone(1, opened_at=1000.0).key,
        state=State.FAILED,
        report=report(),
        reason="disk full",
        trial=began_alone(1, opened_at=1000.0),
    )
    pending.tell(opens())
    assert only(opens()).state is State.FAILED
    assert begun(opens(), run(opens(), 2).trial) == [FAILING]


def test_a_renamed_job_keeps_what_holds(opens: Opens) -> None:
    assert begun(opens(), run(opens(), 1, State.FAILED).trial) == [FAILING]
    opens().rename(JOB_ID, "d.fit")
    assert [event.kind for event in opens().events("d.fit")["d"].events] == [FAILING]
    assert opens().events(JOB_ID) == {}


def test_a_look_that_raises_leaves_what_holds(opens: Opens) -> None:
    assert begun(opens(), run(opens(), 1, State.FAILED).trial) == [FAILING]

    def look(held: Mapping[str, Held], *_: object) -> Looked:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        opens().look(JOB_ID, look, last=2)
    assert holding(opens()) == {"d": [FAILING]}


@pytest.mark.parametrize("text", ["", "x", "[]", '{"d": 1}', '{"d": {"number": "a"}}', "[" * 10**5])
def test_what_cannot_be_read_holds_nothing_and_keeps_no_run_from_training(
    sqlite_tables: str, text: str
) -> None:
    store = SqlStore(sqlite_tables)
    failed = run(store, 1, State.FAILED).trial
    with store._transaction([JOB_ID], write=True) as connection:
        connection.exec_driver_sql("UPDATE zeus_job SET events = ?", (text,))
    assert store.events(JOB_ID) == {}
    assert begun(store, failed) == [FAILING]
    assert store.ask(request(2)).trial.number == 2


def test_a_text_of_a_training_is_kept_as_it_is(opens: Opens) -> None:
    asked = opens().ask(request(1)).trial
    opens().tell(asked.key, State.FAILED, report(), reason="\0 \ud800 <b>")
    begun(opens(), asked)
    (event,) = opens().events(JOB_ID)["d"].events
    assert isinstance(event, Event)
    assert "<b>" in event.sentence


def test_a_look_that_another_run_overtakes_looks_again(opens: Opens) -> None:
    failed = run(opens(), 1, State.FAILED).trial
    heard: list[list[str]] = []

    def overtaken(
        held: Mapping[str, Held], trials: Sequence[Trial], profile: Sequence[ProfileSample]
    ) -> Looked:
        if not heard:
            heard.append(begun(opens(), failed))
        return alerts.look(held, trials, profile, run=failed, prices=Prices())

    assert opens().look(JOB_ID, overtaken, last=10) == []
    assert heard == [[FAILING]]


def test_one_of_many_runs_that_end_at_once_hears_of_it(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    url = f"sqlite:///{tmp_path / 'zeus.db'}"
    SqlStore(url, create=True).close()
    failed = run(SqlStore(url), 1, State.FAILED).trial
    with ThreadPoolExecutor(8) as pool:
        heard = list(pool.map(lambda _: begun(SqlStore(url), failed), range(8)))
    assert sorted(heard) == [[]] * 7 + [[FAILING]]
