"""A long fold comes before the lock of the job, and the decision knows what was told meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.store.sql import checkpoints as sql_belief
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import JOB, Clock, report, request, run

pytestmark = pytest.mark.usefixtures("often")

# trials; the one of which nobody heard
LOG = 40
LATE = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Any]], float]:
    """(rows of each table of a log without a checkpoint, its clock)."""
    clock = Clock()
    url = f"sqlite:///{tmp_path_factory.mktemp('log') / 'zeus.db'}"
    store = SqlStore(url, create=True, now=clock)
    for n in range(1, LOG + 1):
        if n == LATE:
            store.ask(request(n))
            clock.t += 1000
        else:
            run(store, n, epochs=3.0 + n % 4)
    forget(url)
    with transaction(engine_of(read_url(url))) as connection:
        tables = schema.metadata.sorted_tables
        return {
            t.name: [row._asdict() for row in connection.execute(sa.select(t))] for t in tables
        }, clock.t


@pytest.fixture(params=["sqlite_tables", "postgres_tables"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sql_belief, "AHEAD", 8)
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def store(made: tuple[dict[str, list[Any]], float], url: str, clock: Clock) -> SqlStore:
    """A log without a checkpoint."""
    rows, clock.t = made
    with transaction(engine_of(read_url(url)), write=True) as connection:
        for table in schema.metadata.sorted_tables:
            if rows[table.name]:
                connection.execute(table.insert(), rows[table.name])
        if url.startswith("postgresql"):
            connection.exec_driver_sql(
                "SELECT setval(pg_get_serial_sequence('zeus_trial', 'id'), 1000)"
            )
    return SqlStore(url, now=clock)


def forget(url: str) -> None:
    with transaction(engine_of(read_url(url)), write=True) as connection:
        connection.execute(sa.delete(schema.checkpoint))


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, then: Callable[[], object]) -> None:
    """Let something happen once, after a function of sql_belief."""
    real = getattr(sql_belief, name)
    left = [then]

    def followed(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if left:
            left.pop()()
        return result

    monkeypatch.setattr(sql_belief, name, followed)


def learnt(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by where each trial is folded: before the lock, or under it."""
    where = []
    real = sql_belief.learn
    keep = sql_belief.write
    place = ["before"]

    def learn(*args: Any) -> Any:
        where.append(place[0])
        return real(*args)

    def kept(*args: Any) -> None:
        place[0] = "under"
        keep(*args)

    monkeypatch.setattr(sql_belief, "learn", learn)
    monkeypatch.setattr(sql_belief, "write", kept)
    return where


def test_a_long_fold_comes_before_the_lock(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = learnt(monkeypatch)
    store.ask(request(LOG + 1))
    assert (where.count("before"), where.count("under")) == (LOG, 0)
    store.ask(request(LOG + 2))
    assert len(where) - LOG <= 8, "a short one is under it"


def test_the_job_is_not_locked_meanwhile(
    store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, "learn", lambda: run(SqlStore(url), LOG + 1))
    assert store.ask(request(LOG + 2)).trial.number == LOG + 2


def test_a_decision_knows_what_was_told_while_it_was_folded(
    store: SqlStore, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beliefs: list[policy.Belief] = []

    def told_late() -> None:
        other = SqlStore(url, now=clock)
        other.tell(TrialKey(f"ti-{LATE}"), State.CONVERGED, report(16, epochs=1.5))
        run(other, LOG + 1, epochs=2.5)

    real = sql_belief.belief_of
    monkeypatch.setattr(
        sql_belief, "belief_of", lambda *a, **k: beliefs.append(real(*a, **k)) or beliefs[-1]
    )  # type: ignore[func-returns-value]
    meanwhile(monkeypatch, "learn_ahead", told_late)
    asked = store.ask(request(LOG + 2)).trial
    log = store.trials("d.train")[:-1]
    assert asked.asked_after_seq == max(t.told_seq or 0 for t in log) == LOG + 2
    whole = reduce(policy.learn, log, policy.prior(JOB))
    assert beliefs[-1] == whole
    assert {LATE, LOG + 1} <= {n for n, _, _ in whole.converged}
    again = policy.choose(Situation(JOB, whole, device=request().device, seed=asked.decision.seed))
    assert again == asked.decision


def test_a_result_that_comes_while_it_is_folded_makes_its_checkpoints_hold_no_longer(
    store: SqlStore, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the question that made them alone: for those after it too."""
    late = TrialKey(f"ti-{LATE}")
    meanwhile(
        monkeypatch,
        "learn_ahead",
        lambda: SqlStore(url, now=clock).tell(late, State.CONVERGED, report(16, epochs=1.5)),
    )
    for n in (LOG + 1, LOG + 2):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report())
    with transaction(engine_of(read_url(url)), write=True) as connection:
        belief = sql_belief.belief_of(connection, "d.train", policy.prior(JOB), oldest_open=None)
    assert belief == reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))


@pytest.mark.parametrize("state", [State.RUNNING.value, "archived"])
def test_what_no_checkpoint_may_stand_behind_is_not_folded_twice(
    store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """An open trial, and one that a newer version wrote."""
    with transaction(engine_of(read_url(url)), write=True) as connection:
        row = sa.update(schema.trial).where(schema.trial.c.number == LATE)
        connection.execute(row.values(state=state, told_seq=None, lease_until=1e12, lease_s=1e12))
    where = learnt(monkeypatch)
    store.ask(request(LOG + 1))
    assert len(where) <= LOG
