"""What every store does (docs/architecture.md), on each store there is: renames,
and trials of another log.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Origin, State, Trial
from airflow_provider_zeus.store.base import HistoryPart, RunTrials
from airflow_provider_zeus.store.sql import history
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import DEVICE, Clock, DictPort, report, request, seen

OLD = "d.train"
NEW = "e.train"


def recur(
    store: Store, n: int, state: State = State.CONVERGED, job_id: str = OLD, **changes: object
) -> Trial:
    asked = request(n, job_id=job_id, ti_id=f"{job_id}-{n}")
    asked = replace(asked, origin=replace(asked.origin, dag_id=job_id.partition(".")[0]))
    trial = store.ask(asked).trial
    changes = {"epochs": 2.0 + n % 3, "returned": f'"{job_id} {n}"', **changes}
    return store.tell(trial.key, state, report(points=2, profile=2, **changes))  # type: ignore[arg-type]


def next_decision(store: Store, job_id: str, n: int = 99) -> Trial:
    return store.ask(request(n, job_id=job_id, ti_id=f"next-{job_id}-{n}")).trial


def test_a_renamed_job_has_all_that_it_had(opens: Opens) -> None:
    store = opens()
    for n in range(1, 20):  # more than a checkpoint is apart
        recur(store, n)
    before = store.trials(OLD)
    samples = store.profile(OLD, DEVICE.where, "1")
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


def test_a_name_that_has_trials_is_not_free(opens: Opens) -> None:
    store = opens()
    for n in (1, 2, 3):
        recur(store, n)
    for n in (1, 2):
        recur(store, n, job_id=NEW)
    with pytest.raises(
        StoreError, match=r"NEW = 'e.train': the log has 2 attempts of this job. Choose a free name"
    ):
        store.rename(OLD, NEW)
    assert opens().jobs() == [OLD, NEW]
    assert [len(opens().trials(job)) for job in (OLD, NEW)] == [3, 2]
    store.rename(NEW, "e.train.new")  # then it is free
    assert store.rename(OLD, NEW) == 3
    assert [t.number for t in opens().trials(NEW)] == [1, 2, 3]


def test_a_job_that_runs_is_not_renamed(store: Store, clock: Clock) -> None:
    recur(store, 1)
    key = store.ask(request(2, ti_id="open")).trial.key
    with pytest.raises(
        StoreError, match=r"An attempt of 'd.train' is running .*: wait until it has ended"
    ):
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


def history_of(store: Store, *jobs: str) -> list[HistoryPart]:
    return [part for job_id in jobs for part in store.history(job_id)]


def test_another_log_holds_the_same_and_only_once(opens: Opens, tmp_path: Path) -> None:
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    for n in range(1, 6):
        recur(source, n)
    recur(source, 1, job_id=NEW)
    before = history_of(source, OLD, NEW)
    store = opens()
    assert store.take_in(before) == {OLD: (5, 0), NEW: (1, 0)}
    assert store.take_in(before) == {OLD: (0, 5), NEW: (0, 1)}
    after = history_of(opens(), OLD, NEW)
    if isinstance(store, VariableStore):  # keeps what the newest two runs returned
        before, after = ([without_returned(part) for part in parts] for parts in (before, after))
    assert after == before
    assert next_decision(store, OLD).decision == next_decision(source, OLD).decision
    source.close()


def without_returned(part: HistoryPart) -> HistoryPart:
    if not isinstance(part, RunTrials):
        return part
    trials = [replace(t, observation=replace(t.observation, returned=None)) for t in part.trials]
    return replace(part, trials=trials)


def test_the_attempts_of_a_run_come_together(opens: Opens) -> None:
    """Also where runs overlap, and where a run has more than fit into one part."""
    store = opens()
    for n in range(1, 8):
        for run in (1, 2):
            origin = replace(request(run).origin, try_number=n)
            asked = replace(request(run, ti_id=f"run{run}-try{n}"), origin=origin)
            store.tell(store.ask(asked).trial.key, State.FAILED, report())
    parts = [part for part in store.history(OLD) if isinstance(part, RunTrials)]
    assert [[t.number for t in part.trials] for part in parts] == [
        *([1, 3, 5, 7], [9, 11, 13]),
        *([2, 4, 6, 8], [10, 12, 14]),
    ]
    assert {t.origin.run_id for part in parts[:2] for t in part.trials} == {
        request(1).origin.run_id
    }


def test_trials_outside_of_airflow_are_runs_of_their_own(opens: Opens) -> None:
    store = opens()
    for n in range(1, 4):
        asked = replace(request(n, ti_id=f"alone-{n}"), origin=Origin())
        store.tell(store.ask(asked).trial.key, State.CONVERGED, report())
    parts = [part for part in store.history(OLD) if isinstance(part, RunTrials)]
    assert [[t.number for t in part.trials] for part in parts] == [[1], [2], [3]]


def test_a_trial_outside_of_airflow_is_no_reason_to_read_all_before_it(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}", create=True)
    statement = str(history._FIRSTS.compile(dialect=sqlite.dialect()))
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {statement}", ("x",) * statement.count("?")
        ).fetchall()
    assert any("(ti_id=?)" in step[-1] for step in plan)
    store.close()


def test_a_long_history_comes_in_pieces(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RUNS", 2)
    monkeypatch.setattr(history, "_FIRSTS", history._FIRSTS.limit(2))
    store = opens()
    for n in range(1, 6):
        recur(store, n)
    numbers = [
        t.number for part in store.history(OLD) if isinstance(part, RunTrials) for t in part.trials
    ]
    assert numbers == [1, 2, 3, 4, 5]
    assert list(store.history("unknown")) == []


def test_what_the_log_has_for_another_trial_is_refused_and_nothing_is_written(
    opens: Opens, tmp_path: Path
) -> None:
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    store = opens()
    for n in (1, 2):
        recur(source, n)
    recur(source, 1, job_id="a.train")
    recur(store, 1, job_id=NEW)
    store.rename(NEW, OLD)  # a history of its own under this name
    with pytest.raises(StoreError, match=r"Row 1 of 'd.train' is another one in this log"):
        store.take_in(history_of(source, "a.train", OLD))
    assert opens().jobs() == [OLD], "all or none"
    store.rename(OLD, "x.train")
    store.take_in(history_of(source, OLD))
    source.rename(OLD, "y.train")
    with pytest.raises(
        StoreError, match=r"Row 1 of 'y.train' is in this log already, as row 1 of 'd.train'"
    ):
        store.take_in(history_of(source, "y.train"))
    source.close()


def test_a_job_with_an_open_trial_takes_nothing_in(store: Store, tmp_path: Path) -> None:
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    recur(source, 1)
    store.ask(request(2, ti_id="open"))
    with pytest.raises(
        StoreError, match=r"An attempt of 'd.train' is running .*: wait until it has ended"
    ):
        store.take_in(history_of(source, OLD))
    source.close()


def test_a_late_result_comes_in_between_and_is_learnt(opens: Opens, tmp_path: Path) -> None:
    """The checkpoints of the log do not hold it."""
    source = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True, now=Clock())
    for n in range(1, 21):
        recur(source, n)
    store = opens()
    whole = SqlStore(f"sqlite:///{tmp_path / 'whole.db'}", create=True, now=Clock())
    complete = history_of(source, OLD)
    late = (4, 5, 6)
    part = [p for p in complete if not (isinstance(p, RunTrials) and p.trials[0].number in late)]
    assert store.take_in(part) == {OLD: (17, 0)}
    assert next_decision(store, OLD, 98).number == 21
    store.close_trial(OLD, 21, by="a test")
    assert store.take_in(complete) == {OLD: (3, 17)}
    seqs = {t.number: t.told_seq for t in opens().trials(OLD)}
    assert [seqs[n] for n in (3, *late, 7, 21)] == [3, 22, 23, 24, 7, 21]
    whole.take_in(history_of(store, OLD))
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
        port.left = calls
        try:
            store.rename(OLD, NEW)
            done = True
        except StoreError:
            done = False
        port.left = 10**6
        assert {t.key for job in store.jobs() for t in store.trials(job)} == {*old}
        if OLD in store.jobs():
            store.rename(OLD, NEW)
        assert store.jobs() == [NEW]
        assert [t.key for t in store.trials(NEW)] == old
        if done:
            return
    raise AssertionError("the rename never ended")
