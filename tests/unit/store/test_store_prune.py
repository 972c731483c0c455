"""Pruning: power points and decisions of old trials go,
every figure and every decision to come stays.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.policy import learn, prior
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.export_rows import row as exported
from airflow_provider_zeus.reports.savings import saving
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql import checkpoints as belief
from airflow_provider_zeus.store.sql import prune as sql_prune
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.prune import Pruned
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import JOB as ANY_JOB
from tests.unit.store.store_kit import Clock, outside, report, request

JOB = replace(ANY_JOB, window=6)
DAY_S = 86_400.0
NOW_S = 1000 * DAY_S


# All databases decide alike what is pruned. On PostgreSQL, too: where the SQL differs or another
# may come in between.
ON_BOTH = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_tables"))


@pytest.fixture
def store(url: str, clock: Clock) -> SqlStore:
    return SqlStore(url, now=clock)


@pytest.fixture
def prune(url: str, store: SqlStore) -> Callable[..., Pruned]:
    def prune(days: float = 365, job_id: str = "d.train", **options: Any) -> Pruned:
        return sql_prune.prune(engine_of(read_url(url)), job_id, NOW_S - days * DAY_S, **options)

    return prune


def recur(
    store: SqlStore,
    clock: Clock,
    numbers: range,
    *,
    job: ZeusJob = JOB,
    job_id: str = "d.train",
    until_s: float = NOW_S,
) -> None:
    """A run every 40 days, each with power points."""
    for n in numbers:
        clock.t = until_s - 40 * DAY_S * (numbers.stop - 1 - n)
        key = store.ask(request(n, job=job, job_id=job_id, ti_id=f"{job_id}-{n}")).trial.key
        store.tell(key, State.CONVERGED, report(points=300, profile=2, energy_j=1000.0 + n))


def with_points(store: SqlStore) -> list[int]:
    return [t.number for t in store.trials("d.train") if store.points(t.key)]


def with_decision(store: SqlStore) -> list[int]:
    return [t.number for t in store.trials("d.train") if t.decision.attempts]


def size_of_decisions(url: str) -> int:
    with engine_of(read_url(url)).connect() as connection:
        decisions = connection.scalars(sa.select(schema.trial.c.decision)).all()
    return sum(len(json.dumps(decision)) for decision in decisions)


def figures(trial: Trial) -> dict[str, Any]:
    """All that is exported of a trial, its decision apart."""
    return {name: value for name, value in exported(trial, Prices()).items() if name != "decision"}


@ON_BOTH
def test_old_trials_lose_points_and_decision_and_keep_every_figure(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned], url: str
) -> None:
    recur(store, clock, range(1, 15))
    before = store.trials("d.train")
    size = size_of_decisions(url)
    pruned = prune()
    assert pruned.decision_bytes == size - size_of_decisions(url) > 0
    old = [
        t.number for t in before if t.closed_at is not None and t.closed_at < NOW_S - 365 * DAY_S
    ]
    assert (pruned.points, pruned.decisions, pruned.whole) == (len(old), len(old), 0)
    assert pruned.point_bytes > 300 * 30 * len(old)
    young = [t.number for t in before if t.number not in old]
    assert with_points(store) == with_decision(store) == young
    after = store.trials("d.train")
    assert [figures(t) for t in after] == [figures(t) for t in before]
    assert [t.planned for t in after] == [t.planned for t in before]
    assert [t.decision.seed for t in after] == [t.decision.seed for t in before]
    one, other = (
        saving(as_dataset(trials, JOB), rng=random.Random(0)) for trials in (before, after)
    )
    assert (one.cost, one.energy, one.time) == (other.cost, other.energy, other.time)


@ON_BOTH
@pytest.mark.parametrize("damaged", ['{"attempts": [1]}', "[1, 2]"])
def test_a_damaged_decision_is_left_for_a_person(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned], url: str, damaged: str
) -> None:
    recur(store, clock, range(1, 15))
    row = sa.update(schema.trial).where(schema.trial.c.number == 1)
    engine = engine_of(read_url(url))
    with engine.begin() as connection:
        connection.execute(row.values(decision=json.loads(damaged)))
    pruned = prune()
    assert pruned.points > pruned.decisions > 0
    with engine.connect() as connection:
        kept = sa.select(schema.trial.c.decision).where(schema.trial.c.number == 1)
        assert connection.scalar(kept) == json.loads(damaged)


@ON_BOTH
def test_a_second_pruning_finds_nothing(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    recur(store, clock, range(1, 15))
    assert prune().bytes > 0
    assert prune().bytes == 0


def test_what_the_log_teaches_is_the_same_and_another_job_is_left_alone(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned], url: str
) -> None:
    def taught(eta: float) -> str:
        # of another eta there is no checkpoint
        with transaction(engine_of(read_url(url))) as connection:
            return belief.belief_of(
                connection, "d.train", prior(replace(JOB, eta=eta)), keep=False
            ).to_json()

    recur(store, clock, range(1, 15))
    recur(store, clock, range(1, 15), job_id="other")
    before = [taught(eta) for eta in (0.5, 0.3)]
    assert prune().decisions > 0
    assert [taught(eta) for eta in (0.5, 0.3)] == before
    assert all(t.decision.attempts and store.points(t.key) for t in store.trials("other"))
    assert store.ask(request(15, job=JOB)).trial.decision.attempts


def test_a_try_that_failed_stays_a_strike_and_becomes_no_death(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    clock.t = NOW_S - 900 * DAY_S
    store.tell(store.ask(request(1, job=JOB)).trial.key, State.CONVERGED, report())
    tried = store.ask(request(2, job=JOB)).trial
    assert len(tried.decision.attempts) == 2
    store.tell(tried.key, State.FAILED, report(points=300), reason="ValueError: odd")
    after = store.begin(replace(tried.key, attempt=2), tried.key)
    store.tell(after.key, State.CONVERGED, report(points=300))
    recur(store, clock, range(3, 15))
    before = store.trials("d.train")
    assert prune().decisions > 0
    log = store.trials("d.train")
    assert [f.number for f in reduce(learn, log, prior(JOB)).failures] == [tried.number]
    assert not store.points(tried.key)
    assert reduce(learn, log, prior(JOB)) == reduce(learn, before, prior(JOB))


def test_keep_trials_deletes_points_alone(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    recur(store, clock, range(1, 15))
    pruned = prune(decisions=False)
    assert pruned.points > 0
    assert (pruned.decisions, pruned.checkpoints) == (0, 0)
    assert len(with_points(store)) < 14
    assert len(with_decision(store)) == 14


def test_a_dry_run_counts_the_same_and_changes_nothing(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    recur(store, clock, range(1, 15))
    before = store.trials("d.train")
    would = prune(dry_run=True)
    assert store.trials("d.train") == before
    assert len(with_points(store)) == 14
    assert prune() == would


def test_open_trials_and_those_in_the_window_are_not_touched(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    clock.t = NOW_S - 900 * DAY_S
    open_ = store.ask(request(99, job=JOB, ti_id="open", lease_s=NOW_S)).trial
    store.heartbeat(open_.key, report(points=3))
    recur(store, clock, range(1, 13))
    pruned = prune(days=0.001)
    newest = [t.number for t in store.trials("d.train")][-6:]
    assert with_points(store) == with_decision(store) == [open_.number, *newest]
    assert pruned.whole == 1 + 5, "the newest ended just now"


def test_a_window_that_is_not_full_uses_all_of_its_version(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    recur(store, clock, range(1, 9), until_s=NOW_S - 500 * DAY_S)
    recur(store, clock, range(9, 13), job=replace(JOB, job_version="2"))
    prune(days=0.001)
    assert with_points(store) == [9, 10, 11, 12]


def test_a_job_that_a_newer_version_wrote_is_left_alone(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned], monkeypatch: pytest.MonkeyPatch
) -> None:
    recur(store, clock, range(1, 13))
    monkeypatch.setattr(ZeusJob, "to_dict", lambda job: {"job_version": "1", "window": "?"})
    store.ask(request(13, job=JOB))
    assert prune(days=0.001).bytes == 0
    assert len(with_points(store)) == 12


@ON_BOTH
def test_a_late_result_of_a_pruned_trial_takes_its_row(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    """Kept for later when the store was away, and told after all: no second row, no cost twice."""
    clock.t = NOW_S - 900 * DAY_S
    lost = store.ask(request(99, job=JOB, ti_id="lost", lease_s=1.0)).trial
    recur(store, clock, range(1, 13))
    assert store.trials("d.train")[0].state is State.ABANDONED
    prune(days=0.001)
    assert store.adopt(lost).number == lost.number
    store.tell(lost.key, State.CONVERGED, report(energy_j=5.0))
    assert [t.observation.energy_j for t in store.trials("d.train") if t.key.ti_id == "lost"] == [
        5.0
    ]
    with pytest.raises(StoreError, match="is the last one of its decision"):
        store.begin(replace(lost.key, attempt=2), lost.key)


@ON_BOTH
def test_checkpoints_of_a_job_that_ran_no_more_go(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    recur(store, clock, range(1, 18))
    assert prune().checkpoints == 0
    would = prune(days=-1, dry_run=True)
    assert would.checkpoints > 0
    assert prune(days=-1).checkpoints == would.checkpoints
    assert prune(days=-1).checkpoints == 0
    before = store.ask(request(18, job=JOB)).trial.decision
    assert before.attempts


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_what_a_database_does_by_itself_has_no_figure(store: SqlStore, url: str) -> None:
    assert sql_prune.give_back(engine_of(read_url(url))) is None


@ON_BOTH
def test_a_rename_meanwhile_leaves_no_empty_job(
    store: SqlStore, clock: Clock, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recur(store, clock, range(1, 12))
    steps = sql_prune._steps

    def renamed(*args: Any) -> Any:
        for rows in steps(*args):
            store.rename("d.train", "e.train")
            yield rows

    monkeypatch.setattr(sql_prune, "_steps", renamed)
    pruned = sql_prune.prune(engine_of(read_url(url)), "d.train", NOW_S - 300 * DAY_S)
    assert store.jobs() == ["e.train"]
    assert pruned.bytes == 0
    assert all(trial.decision.attempts for trial in store.trials("e.train"))
    assert sql_prune.prune(engine_of(read_url(url)), "d.train", NOW_S + DAY_S).checkpoints == 0
    assert store.jobs() == ["e.train"]


def test_an_sqlite_file_gets_smaller_in_steps(
    sqlite_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(sqlite_url, create=True, now=clock)
    recur(store, clock, range(1, 15))
    engine = engine_of(read_url(sqlite_url))
    sql_prune.give_back(engine)
    before = pages(engine)
    monkeypatch.setattr(sql_prune, "PAGES_A_STEP", 7)
    monkeypatch.setattr(sql_prune, "TRIALS_A_STEP", 3)
    pruned = sql_prune.prune(engine, "d.train", NOW_S - 200 * DAY_S)
    assert sql_prune.give_back(engine) == 0
    assert pages(engine) < before - 0.8 * pruned.point_bytes / 4096


def pages(engine: Any) -> int:
    return sql_prune._answer(engine, "PRAGMA page_count")


def test_progress_is_told_step_by_step(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    recur(store, clock, range(1, 15))
    heard: list[int] = []
    pruned = prune(progress=lambda pruned: heard.append(pruned.points))
    assert heard[-1] == pruned.points


@ON_BOTH
def test_rows_measured_from_outside_are_folded_into_a_sum_a_day(
    store: SqlStore, clock: Clock, prune: Callable[..., Pruned]
) -> None:
    def measure(numbers: range) -> None:
        for n in numbers:
            clock.t = NOW_S - 50 * DAY_S * (4 - n)
            outside(store, n, energy_j=100.0, time_s=5.0)

    measure(range(1, 3))
    before = store.task_sums("d", 0.0)
    planned = prune(days=120, dry_run=True)
    assert (planned.folded, [t.number for t in store.trials("d.train")]) == (1, [1, 2])
    pruned = prune(days=120)
    assert (pruned.folded, pruned.points) == (1, 0)
    assert pruned.bytes > 0
    assert [t.number for t in store.trials("d.train")] == [2]
    assert store.task_sums("d", 0.0) == before
    assert (before[0].energy_j, before[0].runs) == (200.0, 2)
    assert prune(days=0).folded == 0, "the newest one stays"
    measure(range(3, 5))
    assert [t.number for t in store.trials("d.train")] == [3, 4], "after 90 days without a command"
    (found,) = store.task_sums("d", 0.0)
    assert (found.energy_j, found.time_s, found.runs) == (400.0, 20.0, 4)
    kept = prune(days=0, decisions=False)
    assert (kept.folded, len(store.trials("d.train"))) == (0, 2), "--keep-trials"


@ON_BOTH
def test_folded_sums_move_to_another_log_once(
    store: SqlStore, clock: Clock, tmp_path: Path
) -> None:
    for n in (1, 2):
        clock.t = NOW_S - 100 * DAY_S * (2 - n)
        outside(store, n, energy_j=100.0, time_s=5.0)
    assert [t.number for t in store.trials("d.train")] == [2]
    other = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True)
    for _ in range(2):
        other.take_in(store.history("d.train"))
        assert other.task_sums("d", 0.0) == store.task_sums("d", 0.0)
        assert other.outside_sums([0.0, 1e9]) == store.outside_sums([0.0, 1e9])
