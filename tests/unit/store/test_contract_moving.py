"""What every store does (docs/architecture.md), on each store there is: renames, and trials of another log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.base import History, Report
from airflow_provider_zeus.store.sql.moving import moved_to
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import DEVICE, Clock, DictPort, report, request, seen

OLD, NEW = "d.train", "e.train"


def recur(store: Store, n: int, state: State = State.CONVERGED, job_id: str = OLD, **changes: object) -> Trial:
    asked = request(n, job_id=job_id, ti_id=f"{job_id}-{n}")
    asked = replace(asked, origin=replace(asked.origin, dag_id=job_id.partition(".")[0]))
    trial = store.ask(asked).trial
    changes = {"epochs": 2.0 + n % 3, "returned": f'"{job_id} {n}"', **changes}
    return store.tell(trial.key, state, report(points=2, profile=2, **changes))  # type: ignore[arg-type]


def next_decision(store: Store, job_id: str, n: int = 99) -> Trial:
    return store.ask(request(n, job_id=job_id, ti_id=f"next-{job_id}-{n}")).trial


def history_of(store: Store, job_id: str) -> History:
    trials = store.trials(job_id)
    points = {t.key: store.points(t.key) for t in trials}
    return History(job_id=job_id, trials=trials, points=points, profiles=store.profiles(job_id))


def test_a_renamed_job_has_all_that_it_had(opens: Opens) -> None:
    store = opens()
    for n in range(1, 20):  # more than a checkpoint is apart
        recur(store, n)
    before, samples = store.trials(OLD), store.profile(OLD, DEVICE.where, "1")
    assert samples
    assert store.rename(OLD, NEW) == 19
    after = opens()
    assert after.jobs() == [NEW]
    moved = [replace(t, job_id=NEW, origin=replace(t.origin, dag_id="e")) for t in before]
    assert after.trials(NEW) == moved
    assert [t.key for t in after.runs("e", NEW, last=50)] == [t.key for t in moved]
    assert after.profile(NEW, DEVICE.where, "1") == samples
    assert len(after.points(before[-1].key)) == 2
    asked = request(20, job_id=NEW, ti_id="x")
    answer = after.ask(replace(asked, origin=replace(asked.origin, dag_id="e")))
    assert answer.trial.number == 20
    assert answer.previous is not None
    assert answer.previous.returned == '"d.train 19"'
    assert answer.profile


def test_a_renamed_job_decides_as_if_it_had_this_name_from_the_start(opens: Opens, tmp_path: Path) -> None:
    store, other = opens(), SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    for n in range(1, 8):
        state = State.CONVERGED if n % 4 else State.FAILED
        recur(store, n, state)
    other.take_in([moved_to(history_of(store, OLD), NEW)])
    store.rename(OLD, NEW)
    assert next_decision(store, NEW).decision == next_decision(other, NEW).decision
    other.close()


def test_trials_of_the_new_name_follow_with_merge(opens: Opens) -> None:
    store = opens()
    old = [recur(store, n) for n in (1, 2, 3)]
    new = [recur(store, n, job_id=NEW) for n in (1, 2)]
    with pytest.raises(StoreError, match=r"NEW = 'e.train': the log has 2 trials of this job. With --merge"):
        store.rename(OLD, NEW)
    assert store.jobs() == [OLD, NEW]
    assert store.rename(OLD, NEW, merge=True) == 3
    found = opens().trials(NEW)
    assert [t.number for t in found] == [1, 2, 3, 4, 5]
    assert [t.key for t in found] == [t.key for t in (*old, *new)]
    assert [t.told_seq for t in found] == [1, 2, 3, 4, 5]
    assert [t.observation.energy_j for t in found] == [t.observation.energy_j for t in (*old, *new)]
    assert len(store.points(new[0].key)) == 2
    (one, *_), (sample, *_) = store.profile(NEW, DEVICE.where, "1"), report(profile=2).profile
    assert one.samples == 2 * 5 * sample.samples
    assert next_decision(store, NEW).number == 6


def test_a_job_that_runs_is_not_renamed(store: Store, clock: Clock) -> None:
    recur(store, 1)
    key = store.ask(request(2, ti_id="open")).trial.key
    with pytest.raises(StoreError, match=r"Trial 2 of 'd.train' is running: wait until it has ended"):
        store.rename(OLD, NEW)
    assert store.jobs() == [OLD]
    clock.t += 1000  # its lease is over
    assert store.rename(OLD, NEW) == 2
    last = store.trials(NEW)[-1]
    assert (last.key, last.state) == (key, State.ABANDONED)
    told = store.tell(key, State.CONVERGED, Report(observation=seen()))  # late, by its key
    assert (told.job_id, told.number, told.state) == (NEW, 2, State.CONVERGED)
    assert store.jobs() == [NEW]


def test_a_name_that_is_not_in_the_log_or_the_same_is_refused(store: Store) -> None:
    recur(store, 1)
    with pytest.raises(StoreError, match=r"OLD = 'x': no such job"):
        store.rename("x", NEW)
    with pytest.raises(StoreError, match=r"has this name already"):
        store.rename(OLD, OLD)
    assert store.jobs() == [OLD]
    assert len(store.trials(OLD)) == 1


def test_trials_are_taken_in_once(opens: Opens, tmp_path: Path) -> None:
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    for n in range(1, 6):
        recur(source, n)
    recur(source, 1, job_id=NEW)
    histories = [history_of(source, job) for job in (OLD, NEW)]
    store = opens()
    assert len(store.take_in(histories)) == 6
    assert store.take_in(histories) == []
    for job in (OLD, NEW):
        kept = opens().trials(job)
        assert [replace(t, observation=replace(t.observation, returned=None)) for t in kept] == [
            replace(t, observation=replace(t.observation, returned=None)) for t in source.trials(job)
        ]
        assert opens().profiles(job) == source.profiles(job)
    assert opens().points(kept[-1].key) == source.points(kept[-1].key)
    with pytest.raises(StoreError, match=r"in this log already, as trial 1 of 'e.train'"):
        store.take_in([replace(histories[1], job_id="f.train")])
    recur(source, 2, job_id=NEW)
    new = replace(history_of(source, NEW), trials=source.trials(NEW)[-1:])
    with pytest.raises(StoreError, match="in this log already"):
        store.take_in([new, replace(histories[1], job_id="f.train")])
    assert (store.jobs(), len(opens().trials(NEW))) == ([OLD, NEW], 1), "all or none"
    source.close()


def test_trials_follow_those_that_the_log_has(opens: Opens, tmp_path: Path) -> None:
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    for n in (1, 2, 3):
        recur(source, n, epochs=7.0)
    history = history_of(source, OLD)
    renamed = replace(history, trials=[replace(t, key=replace(t.key, ti_id=f"far-{t.number}")) for t in history.trials])
    store = opens()
    for n in (1, 2):
        recur(store, n)
    assert [t.number for t in store.take_in([renamed])] == [3, 4, 5]
    assert store.take_in([renamed]) == []
    assert [t.told_seq for t in opens().trials(OLD)] == [1, 2, 3, 4, 5]
    assert next_decision(store, OLD).number == 6
    source.close()


def test_a_late_result_comes_in_between_and_is_learnt(opens: Opens, tmp_path: Path) -> None:
    """The checkpoints of the log do not hold it."""
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    for n in range(1, 21):
        recur(source, n)
    history = history_of(source, OLD)
    store, whole = opens(), SqlStore(f"sqlite:///{tmp_path / 'whole.db'}", create=True, now=Clock())
    store.take_in([replace(history, trials=[t for t in history.trials if t.number not in (4, 5, 6)])])
    number = next_decision(store, OLD, 98).number
    assert number == 21
    store.close_trial(OLD, 21, by="a test")
    complete = replace(history, trials=[*history.trials, store.trials(OLD)[-1]])
    whole.take_in([complete])
    assert [t.number for t in store.take_in([complete])] == [4, 5, 6]
    assert next_decision(store, OLD).decision == next_decision(whole, OLD).decision
    source.close()
    whole.close()


def test_a_rename_of_variables_that_was_cut_off_can_be_run_again() -> None:
    class Cut(DictPort):
        left = 99

        def _check(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise StoreError("no API")

    for calls in range(40):
        port = Cut()
        port.left = 10**6
        store = VariableStore(port, overlap_possible=False, now=Clock())
        old = [recur(store, n).key for n in (1, 2, 3)]
        new = recur(store, 1, job_id=NEW).key
        port.left = calls
        try:
            store.rename(OLD, NEW, merge=True)
            done = True
        except StoreError:
            done = False
        port.left = 10**6
        assert {t.key for job in store.jobs() for t in store.trials(job)} == {*old, new}
        if OLD in store.jobs():
            store.rename(OLD, NEW, merge=True)
        assert store.jobs() == [NEW]
        assert [t.key for t in store.trials(NEW)] == [*old, new]
        if done:
            return
    raise AssertionError("the rename never ended")
