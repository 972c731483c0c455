"""Variables that someone spoilt: an answer,
or a StoreError that names the Variable and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.store.live_settings import (
    after_change,
    last_change,
    parsed,
    read_settings,
)
from airflow_provider_zeus.store.pending import PendingResult, drain
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.hostile import HOSTILE, each_change, texts
from tests.unit.store.store_kit import JOB, DictPort, report, request

LOG = "zeus-log:d.train"
JOBS = "zeus-jobs"
BEAT = "zeus-beat:ti-2"
UNTOLD = "zeus-untold:ti-9:1"


@cache
def filled() -> dict[str, str]:
    """Variables of a log with a trial told, an open one that beats, and a cost that waits."""
    port = DictPort()
    store = VariableStore(port, overlap_possible=False, now=lambda: 1000.0)
    store.tell(store.ask(request(1)).trial.key, State.CONVERGED, report(32, profile=1, points=1))
    open_ = store.ask(request(2)).trial
    store.heartbeat(open_.key, report(32, profile=1, points=2))
    waiting = PendingResult(
        job_id="d.train", key=TrialKey("ti-2"), state=State.CONVERGED, report=report(32, profile=1)
    )
    port.set(UNTOLD, waiting.to_json())
    assert {LOG, JOBS, BEAT, UNTOLD} == set(port.data)
    return port.data


def whole(key: str) -> Any:
    """What one of them says."""
    return json.loads(filled()[key])


CALLS: dict[str, Callable[[VariableStore], Any]] = {
    "jobs": lambda store: store.jobs(),
    "trials": lambda store: store.trials("d.train"),
    "latest": lambda store: store.latest(last=5),
    "runs": lambda store: store.runs("d", "d.train", last=5),
    "recurrence": lambda store: store.recurrence("d", "run2"),
    "profile": lambda store: store.profile("d.train", ("V100", 1, "simulated"), "1"),
    "points": lambda store: store.points(TrialKey("ti-1")),
    "heartbeat": lambda store: store.heartbeat(TrialKey("ti-2"), report(32, profile=1, points=1)),
    "tell": lambda store: store.tell(TrialKey("ti-2"), State.CONVERGED, report(32)),
    "reap": lambda store: store.reap("d.train"),
    "ask": lambda store: store.ask(request(3)),
}


def answers_or_refuses(key: str, text: str) -> int:
    """Every call on a log with that text in one Variable; how many were answered."""
    answered = 0
    for name, call in CALLS.items():
        port = DictPort()
        port.data = {**filled(), key: text}
        store = VariableStore(port, overlap_possible=False, now=lambda: 1000.0)
        before = dict(port.data)
        refused = ""
        try:
            call(store)
            answered += 1
        except StoreError as error:
            refused = str(error)
        assert not refused or port.data == before, f"{name} failed and changed Variables"
        assert not refused or any(
            part in refused for part in (key, "refuses", "is not in the log")
        ), name
    return answered


@pytest.mark.parametrize("key", [LOG, JOBS, BEAT])
@pytest.mark.parametrize("most", [30, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_one_change_anywhere_in_a_variable(key: str, most: int) -> None:
    changes = list(each_change(whole(key)))
    every = [
        answers_or_refuses(key, json.dumps(changed))
        for changed in changes[:: max(len(changes) // most, 1)]
    ]
    assert 0 < sum(every) < len(every) * len(CALLS), "some are read, some are refused"


@pytest.mark.parametrize("key", [LOG, JOBS, BEAT])
@settings(HOSTILE, max_examples=settings().max_examples)  # each is read eleven times
@given(data=st.data())
def test_a_spoilt_variable(key: str, data: st.DataObject) -> None:
    answers_or_refuses(key, data.draw(texts(whole(key))))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True, now=lambda: 1000.0)
    yield store
    store.close()


@HOSTILE
@given(text=st.deferred(lambda: texts(whole(UNTOLD))))
def test_a_spoilt_cost_that_waits_changes_no_other_trial(log: SqlStore, text: str) -> None:
    _drained(log, text)


@pytest.mark.slow
def test_one_change_anywhere_in_a_cost_that_waits(log: SqlStore) -> None:
    left = [_drained(log, json.dumps(changed)) for changed in each_change(whole(UNTOLD))]
    assert 0 < sum(left) < len(left), "some are told, some stay with a warning"


def _drained(store: SqlStore, text: str) -> bool:
    known = store.trials("d.train") or [store.ask(request(n)).trial for n in (1, 2)]
    port = DictPort()
    port.data = {UNTOLD: text}
    drain(store, port, None)
    left = store.trials("d.train")
    assert left[0] == known[0]
    assert store.ask(request(3)).trial.decision.attempts, "the job can be asked of"
    return bool(port.data)


@HOSTILE
@given(
    text=texts({"eta": 0.5, "pause_exploration": True, "pin_batch_size": 32, "job_version": "2"})
)
def test_spoilt_settings_are_left_out_and_the_others_kept(text: str) -> None:
    found = read_settings(lambda _key: text, "d.train", JOB.batch_sizes)
    JOB.with_settings(found).check()
    assert set(found) <= {"eta", "pause_exploration", "pin_batch_size", "job_version"}
    last_change(text)
    if parsed(text)[1]:
        with pytest.raises(StoreError, match="not overwritten"):
            after_change("d.train", text, {"eta": 0.25})
    else:
        changed = json.dumps(after_change("d.train", text, {"eta": 0.25}))
        assert read_settings(lambda _key: changed, "d.train", JOB.batch_sizes)["eta"] == 0.25


def test_a_setting_that_can_be_used_is() -> None:
    assert read_settings(lambda _key: '{"eta": 0.5, "pin_batch_size": "x"}', "d.train") == {
        "eta": 0.5
    }
