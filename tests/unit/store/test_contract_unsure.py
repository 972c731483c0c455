"""Answers that were lost: nothing is lost with them, nothing counts twice, no trial stays open.

Every store.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, State, TrialKey
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import JOB, began_alone, only, report, request, run, seen


def beat(n: int) -> Report:
    """The n-th heartbeat of a start: ten samples and a power point each."""
    one = report(32, profile=1, points=1, energy_j=100.0 * n, start_id="s")
    return replace(one, points=[replace(one.points[0], t_s=float(n))])


def told(store: Store, key: TrialKey) -> tuple[int, list[float]]:
    """(samples in the profile, times of the power points)."""
    device = seen().where
    assert device is not None
    times_s = [p.t_s for p in store.points(key)]
    return sum(s.samples for s in store.profile("d.train", device, JOB.job_version)), times_s


@pytest.mark.parametrize("stored", [False, True])
def test_a_heartbeat_whose_answer_was_lost_counts_once_with_the_next_one(
    store: Store, stored: bool
) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, beat(1))
    if stored:
        store.heartbeat(key, beat(2))
    store.heartbeat(key, replace(beat(3), unsure=(beat(2),)))
    store.tell(key, State.CONVERGED, Report(observation=seen(start_id="s")))
    assert told(store, key) == (30, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("stored", range(4))
def test_of_several_lost_answers_each_counts_once_with_the_end(store: Store, stored: int) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, beat(1))
    lost = tuple(beat(n) for n in (2, 3, 4))
    for nth in range(stored):
        store.heartbeat(key, replace(lost[nth], unsure=lost[:nth]))
    for _ in range(2):  # its answer may be lost too
        store.tell(key, State.CONVERGED, replace(beat(5), unsure=lost))
    assert told(store, key) == (50, [1.0, 2.0, 3.0, 4.0, 5.0])


def test_a_report_in_plain_json_keeps_them() -> None:
    one = replace(beat(2), profile=tuple(beat(2).profile), points=tuple(beat(2).points), unsure=())
    assert decode(Report, encode(replace(one, unsure=(one,)))) == replace(one, unsure=(one,))


def test_a_question_whose_answer_was_lost_is_closed_when_its_run_is_adopted(store: Store) -> None:
    run(store, 0)
    lost = store.ask(request(1)).trial
    alone = began_alone(1, opened_at=500.0)
    seen_of = replace(alone.observation, start_id="s")
    for _ in range(2):
        mine = store.adopt(replace(alone, observation=seen_of))
    store.heartbeat(mine.key, beat(1))
    assert [(t.state, t.planned.phase) for t in store.trials("d.train")[1:]] == [
        (State.ABANDONED, lost.planned.phase),
        (State.RUNNING, alone.planned.phase),
    ]
    store.tell(mine.key, State.CONVERGED, beat(2))
    assert [t.state for t in store.trials("d.train")[1:]] == [State.ABANDONED, State.CONVERGED]


def test_a_run_that_was_asked_for_closes_no_other_start_of_its_key(store: Store) -> None:
    trial = store.ask(request(1)).trial
    store.adopt(replace(trial, observation=Observation(start_id="late")))
    assert only(store).state is State.RUNNING
