"""What jobs of a family learn from each other's rows, in each SQL store; the Variable store refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.store.base import AskAnswer
from airflow_provider_zeus.store.sql import checkpoints, families, prune, schema
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import JOB, Clock, DictPort, report, request

CURVE = replace(JOB, policy="knowledge_gradient", audit=0.0, batch_sizes=(16, 32, 64, 128), default_batch_size=128)
EPOCHS = {16: 4.0, 32: 4.0, 64: 4.0, 128: 9.0}
EPOCH_S = {16: 10.0, 32: 6.0, 64: 4.0, 128: 3.0}


@pytest.fixture(params=["sqlite", "postgres"])
def sql(request: pytest.FixtureRequest, clock: Clock) -> Iterator[SqlStore]:
    found = SqlStore(request.getfixturevalue(f"{request.param}_tables"), create=True, now=clock)
    yield found
    found.close()


def asks(store: Store, name: str, n: int, **changes: Any) -> AskAnswer:
    values = {"job": CURVE, "job_id": f"d.train.{name}", "ti_id": f"{name}-{n}", "family": "f"}
    return store.ask(request(n, **{**values, **changes}))


def runs(store: Store, name: str, count: int, first: int = 1, **changes: Any) -> None:
    for n in range(first, first + count):
        trial = asks(store, name, n, **changes).trial
        epochs, time_s = EPOCHS[trial.batch_size], EPOCHS[trial.batch_size] * EPOCH_S[trial.batch_size]
        figures: dict[str, Any] = {
            "epochs": epochs,
            "samples": 1000 * int(epochs),
            "time_s": time_s,
            "energy_j": 200 * time_s,
        }
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size, **figures, rest_j=0.0, rest_s=0.0))


def members(trial: Trial) -> int:
    return trial.decision.family.members if trial.decision.family else 0


@contextmanager
def rows(store: SqlStore) -> Iterator[sa.Connection]:
    with store._transaction(None, write=True) as connection:
        yield connection


def told(store: SqlStore, name: str) -> str | None:
    with rows(store) as connection:
        return connection.scalar(sa.select(schema.job.c.told).where(schema.job.c.job_id == f"d.train.{name}"))


def test_a_new_job_hears_what_its_siblings_have_learnt(sql: SqlStore) -> None:
    runs(sql, "eu", 6)
    runs(sql, "us", 6)
    first = asks(sql, "asia", 1).trial
    assert members(first) == 2
    assert first.decision.family is not None
    assert set(first.decision.family.reached) >= {128, 64}
    assert members(asks(sql, "eu", 7).trial) == 1, "without its own share"
    (stored,) = sql.trials("d.train.asia")
    assert stored.decision == first.decision


def test_its_decision_can_be_replayed_without_the_rows_of_the_others(sql: SqlStore) -> None:
    runs(sql, "eu", 6)
    runs(sql, "asia", 1)
    trial = asks(sql, "asia", 2).trial
    with rows(sql) as connection:
        connection.execute(sa.update(schema.job).values(told=None))
        connection.execute(sa.delete(schema.checkpoint))
        belief = checkpoints.belief_of(connection, "d.train.asia", trial.job, keep=False)
    device, kept = request().device, trial.decision
    again = policy.choose(trial.job, belief, device=device, seed=kept.seed, run_type="scheduled", family=kept.family)
    assert again == kept


def test_only_members_of_the_family_are_heard(sql: SqlStore) -> None:
    runs(sql, "eu", 3, family="another")
    runs(sql, "us", 3, family=None)
    assert asks(sql, "asia", 1).trial.decision.family is None
    assert told(sql, "us") is None


def test_a_job_that_leaves_takes_its_message_along(sql: SqlStore) -> None:
    runs(sql, "eu", 3)
    assert told(sql, "eu") is not None
    runs(sql, "eu", 1, 4, family=None)
    assert told(sql, "eu") is None
    assert members(asks(sql, "asia", 1).trial) == 0


def test_a_new_version_tells_nothing_of_the_old_one_and_hears_nothing_of_it(sql: SqlStore) -> None:
    runs(sql, "eu", 4)
    trial = asks(sql, "eu", 5, job=replace(CURVE, job_version="2")).trial
    assert trial.decision.family is None
    assert told(sql, "eu") is None


def test_the_message_of_a_renamed_job_goes_with_its_old_name_and_comes_with_its_next_run(sql: SqlStore) -> None:
    runs(sql, "eu", 4)
    sql.rename("d.train.eu", "d.train.europe")
    assert members(asks(sql, "asia", 1).trial) == 0
    runs(sql, "europe", 1, 5)
    assert members(asks(sql, "us", 1).trial) == 1


def test_a_member_that_is_pruned_after_its_last_run_tells_nothing_more(sql: SqlStore, clock: Clock) -> None:
    runs(sql, "eu", 4)
    clock.t += 1e6
    prune.prune(sql._engine, "d.train.eu", clock.t)
    assert told(sql, "eu") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"sizes": [16], "precision": [1e999], "shift": [0]}', '{"sizes": [16, 32], "precision": [1]}'],
)
def test_a_damaged_message_is_left_out(sql: SqlStore, text: str) -> None:
    runs(sql, "eu", 3)
    runs(sql, "us", 3)
    with rows(sql) as connection:
        connection.execute(sa.update(schema.job).where(schema.job.c.job_id == "d.train.us").values(told=text))
    assert members(asks(sql, "asia", 1).trial) == 1


def test_siblings_that_begin_at_once_try_a_size_between_them(sql: SqlStore, clock: Clock) -> None:
    names = [f"j{i}" for i in range(6)]
    for name in names:
        runs(sql, name, 1)
    sizes = [asks(sql, name, 2).trial.batch_size for name in names]
    assert sorted(sizes) == [16, 16, 32, 32, 64, 64], "two try each"
    assert set(asks(sql, "j8", 1).trial.decision.family.tried) == {16, 32, 64}  # type: ignore[union-attr]
    clock.t += 1000  # those that try them have died: their leases have ended
    assert asks(sql, "j9", 1).trial.decision.family.tried == ()  # type: ignore[union-attr]


def test_of_a_large_family_those_that_tell_most_are_heard(sql: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_OTHERS", families._OTHERS.limit(2))
    for name, count in (("a", 1), ("z", 6), ("k", 6), ("b", 1)):
        runs(sql, name, count)
    assert set(asks(sql, "asia", 1).trial.decision.family.reached) >= {128, 64}  # type: ignore[union-attr]


def test_a_question_that_brings_nothing_new_writes_nothing_into_the_familys_rows(sql: SqlStore) -> None:
    runs(sql, "eu", 3)
    asks(sql, "eu", 4)
    changed = []

    def seen(_: Any, cursor: Any, text: str, *more: Any) -> None:
        if text.startswith("UPDATE zeus_job SET family"):
            changed.append(cursor.rowcount)

    sa.event.listen(sql._engine, "after_cursor_execute", seen)
    asks(sql, "eu", 5, ti_id="eu-again")
    runs(sql, "eu", 1, 6)
    asks(sql, "eu", 7)
    assert changed == [0, 0, 1]


def test_a_size_that_has_reached_siblings_targets_is_tried_by_all(sql: SqlStore) -> None:
    runs(sql, "eu", 6)
    runs(sql, "us", 6)
    for name in ("j1", "j2"):
        runs(sql, name, 1)
    tried = [asks(sql, name, 2).trial for name in ("j1", "j2")]
    assert tried[0].batch_size == tried[1].batch_size != 128
    assert [t.decision.family.tried for t in tried] == [(), ()]  # type: ignore[union-attr]


def test_a_relative_that_decides_for_long_is_waited_for_a_second_at_most(
    postgres_tables: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "WAIT_MS", 50)
    store = SqlStore(postgres_tables, create=True, now=clock)
    runs(store, "eu", 3)
    with store._transaction(None, write=True) as busy:
        bound = busy.scalar(sa.text("SELECT current_setting('lock_timeout')"))
        families.tries(busy, "d.train.eu", "f", clock.t)
        assert members(asks(store, "asia", 1).trial) == 1
        assert busy.scalar(sa.text("SELECT current_setting('lock_timeout')")) == bound != "0", "of all other waits"
    store.close()


def test_the_variable_store_refuses_a_named_family_and_leaves_jobs_of_one_task_alone(clock: Clock) -> None:
    store = VariableStore(DictPort(), overlap_possible=False, now=clock)
    with pytest.raises(StoreError, match=r"family = 'churn'.*PostgreSQL or SQLite"):
        asks(store, "eu", 1, job=replace(CURVE, family="churn"))
    runs(store, "us", 2)
    assert asks(store, "eu", 1).trial.decision.family is None
