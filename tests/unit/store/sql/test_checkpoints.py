"""What only the SQL store has: a belief that is not folded anew for each question."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.store.sql import checkpoints as sql_belief
from airflow_provider_zeus.store.sql import engine as sql_engine
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import checkpoints, execute
from tests.unit.store.store_kit import JOB, Clock, report, request

# --- what a newer version wrote


def newer(url: str, number: int) -> None:
    """Let a trial be of a version that knows more than this one."""
    planned = "json_set(planned, '$.phase', 'double', '$.doublings', 3)"
    decision = "json_set(decision, '$.attempts[0].phase', 'double', '$.attempts[0].doublings', 3)"
    changes = f"state = 'archived', phase = 'double', planned = {planned}, decision = {decision}"
    execute(url, f"UPDATE zeus_trial SET {changes} WHERE number = {number}")


def test_a_trial_of_a_newer_version_is_read_and_teaches_nothing(
    store: SqlStore, sqlite_url: str
) -> None:
    for n in range(1, 9):
        trial = store.ask(request(n)).trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size, profile=1))
    newer(sqlite_url, 4)
    strange = store.trials("d.train")[3]
    assert (strange.state.value, strange.planned.phase.value, strange.state in set(State)) == (
        "archived",
        "double",
        False,
    )
    assert strange.observation.energy_j is not None
    assert store.recurrence("d", "run4") == [strange]
    with sql_engine.transaction(store._engine, write=True) as connection:
        taught = sql_belief.belief_of(connection, "d.train", policy.prior(JOB), oldest_open=None)
    known = [t for t in store.trials("d.train") if t.number != 4]
    assert taught == reduce(policy.learn, known, policy.prior(JOB))
    assert store.ask(request(9)).trial.number == 9
    assert store.ask(request(4)).trial.key == TrialKey("ti-4", 2), (
        "closed: its task asks for the next attempt"
    )
    assert store.tell(strange.key, State.FAILED, report()) == strange, "closed for good"
    assert execute(sqlite_url, "SELECT state FROM zeus_trial WHERE number = 4") == [("archived",)]


@pytest.mark.usefixtures("often")
def test_no_checkpoint_stands_behind_what_a_newer_version_may_learn_from(
    store: SqlStore, sqlite_url: str
) -> None:
    for n in range(1, 21):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report())
    execute(sqlite_url, "DELETE FROM zeus_checkpoint")
    newer(sqlite_url, 10)
    store.ask(request(21))
    assert checkpoints(sqlite_url) == [4, 8]


# --- checkpoints


def story(store: SqlStore, clock: Clock, recurrences: int, seed: int) -> None:
    """Overlapping recurrences with late results, deaths and retries, the same for the same seed."""
    rng = random.Random(seed)
    late: list[Trial] = []
    for n in range(1, recurrences + 1):
        clock.t += 10
        trial = store.ask(request(n, lease_s=rng.choice([15, 45, 400]))).trial
        fate = rng.random()
        if fate < 0.6:
            store.tell(
                trial.key, State.CONVERGED, report(trial.batch_size, epochs=3 + rng.random())
            )
        elif fate < 0.7:
            store.tell(trial.key, State.FAILED, report(trial.batch_size, epochs=None))
        elif fate < 0.9:
            late.append(trial)
        if late and rng.random() < 0.4:
            trial = late.pop(rng.randrange(len(late)))
            store.tell(
                trial.key, State.CONVERGED, report(trial.batch_size, epochs=3 + rng.random())
            )


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_checkpoints_change_no_decision(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = []
    for name in ("kept", "none"):
        clock = Clock()
        if name == "none":
            monkeypatch.setattr(sql_belief, "write", lambda *args: None)
        url = f"sqlite:///{tmp_path / name}.db"
        store = SqlStore(url, create=True, now=clock)
        story(store, clock, 60, seed)
        assert bool(checkpoints(url)) == (name == "kept")
        logs.append(store.trials("d.train"))
    assert logs[0] == logs[1]
    assert len({t.batch_size for t in logs[0]}) > 1


def test_deleted_checkpoints_change_no_decision(
    often: None, store: SqlStore, clock: Clock, sqlite_url: str, tmp_path: Path
) -> None:
    story(store, clock, 40, 7)
    assert checkpoints(sqlite_url)
    store.close()
    twin = tmp_path / "twin.db"
    twin.write_bytes(Path(sqlite_url.removeprefix("sqlite:///")).read_bytes())
    execute(f"sqlite:///{twin}", "DELETE FROM zeus_checkpoint")
    other = SqlStore(f"sqlite:///{twin}", now=clock)
    assert store.ask(request(41)).trial == other.ask(request(41)).trial


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("left_open", "kept"), [({10}, [4, 8]), ({6, 10}, [4])])
def test_a_checkpoint_stops_before_the_oldest_open_trial(
    store: SqlStore, sqlite_url: str, left_open: set[int], kept: list[int]
) -> None:
    for n in range(1, 21):
        trial = store.ask(request(n)).trial
        if n not in left_open:
            store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    assert checkpoints(sqlite_url) == kept


@pytest.mark.usefixtures("often")
def test_a_late_result_below_a_checkpoint_is_learnt(
    store: SqlStore, clock: Clock, sqlite_url: str
) -> None:
    for n in range(1, 21):
        trial = store.ask(request(n)).trial
        if n == 6:
            clock.t += 1000
            continue
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    assert max(checkpoints(sqlite_url)) == 16
    store.tell(TrialKey("ti-6"), State.CONVERGED, report(16, epochs=2.5))
    assert checkpoints(sqlite_url) == [4]
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    with sql_engine.transaction(engine, write=True) as connection:
        belief = sql_belief.belief_of(connection, "d.train", policy.prior(JOB), oldest_open=None)
    bare = reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
    assert belief == bare
    assert 6 in [n for n, _, _ in belief.converged]


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_misses_a_result_is_not_believed(
    store: SqlStore, clock: Clock, sqlite_url: str
) -> None:
    """As a writer that deletes none would leave it behind."""
    story(store, clock, 40, 3)
    late = next(t for t in store.trials("d.train") if t.state is State.ABANDONED and t.told_seq)
    execute(sqlite_url, "CREATE TABLE saved AS SELECT * FROM zeus_checkpoint")
    assert (
        max(int(str(n)) for (n,) in execute(sqlite_url, "SELECT number FROM saved")) > late.number
    )
    store.tell(late.key, State.CONVERGED, report(late.batch_size, epochs=1.25))
    execute(sqlite_url, "DELETE FROM zeus_checkpoint")
    execute(sqlite_url, "INSERT INTO zeus_checkpoint SELECT * FROM saved")
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    with sql_engine.transaction(engine, write=True) as connection:
        belief = sql_belief.belief_of(connection, "d.train", policy.prior(JOB), oldest_open=None)
    assert belief == reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))


@pytest.mark.usefixtures("often")
def test_a_checkpoint_of_another_spec_is_ignored(store: SqlStore, sqlite_url: str) -> None:
    for n in range(1, 14):
        trial = store.ask(request(n)).trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    execute(sqlite_url, "UPDATE zeus_checkpoint SET belief = 'broken'")
    stricter = replace(JOB, target="accuracy >= 0.9")
    asked = store.ask(request(14, job=stricter))
    assert asked.trial.planned.phase.value == "explore"  # a new target starts Epochs anew
    tags = execute(sqlite_url, "SELECT DISTINCT tag FROM zeus_checkpoint")
    assert (policy.belief_tag(policy.prior(stricter)),) in tags


@pytest.mark.usefixtures("often")
def test_only_the_newest_checkpoints_are_kept(store: SqlStore, sqlite_url: str) -> None:
    for n in range(1, 82):
        trial = store.ask(request(n)).trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    assert len(checkpoints(sqlite_url)) == sql_belief.KEPT
    assert max(checkpoints(sqlite_url)) == 80


def test_a_long_log_is_not_read_through(store: SqlStore, sqlite_url: str) -> None:
    """The plans of SQLite: an index that bounds the rows, whatever the length of the log."""
    store.tell(store.ask(request(1)).trial.key, State.CONVERGED, report())
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    plans: dict[str, str] = {}

    def explain(
        connection: sa.Connection,
        cursor: object,
        statement: str,
        given: tuple[object, ...],
        *_: object,
    ) -> None:
        if "zeus_trial" in statement and statement.startswith(("SELECT", "UPDATE")):
            raw = connection.connection.cursor()
            raw.execute(f"EXPLAIN QUERY PLAN {statement}", given)
            plans[statement] = " / ".join(row[-1] for row in raw.fetchall())

    sa.event.listen(engine, "before_cursor_execute", explain)
    store.tell(store.ask(request(2)).trial.key, State.CONVERGED, report())
    store.recurrence("d", "run1")
    sa.event.remove(engine, "before_cursor_execute", explain)
    assert len(plans) >= 6
    bounded = (
        "(job_id=? AND state=?",
        "(job_id=? AND told_seq>?",
        "(job_id=? AND number>?",
        "(ti_id=?",
        "(dag_id=?",
    )
    for statement, plan in plans.items():
        assert "SCAN zeus_trial" not in plan
        assert any(index in plan for index in bounded), (statement, plan)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("taken_over", [False, True])
def test_a_checkpoint_that_misses_a_late_heartbeat_is_not_believed(
    store: SqlStore, clock: Clock, sqlite_url: str, taken_over: bool
) -> None:
    """One was made, before the job was locked, of a trial that its heartbeat then opened again."""
    late = TrialKey("ti-6")
    for n in range(1, 21):
        trial = store.ask(request(n)).trial
        if n != 6:
            store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
        elif taken_over:
            store.ask(request(6, ti_id="ti-6b", try_number=2))
            store.tell(TrialKey("ti-6b"), State.CONVERGED, report(trial.batch_size))
        clock.t += 10
    store.ask(request(21))
    execute(sqlite_url, "CREATE TABLE saved AS SELECT * FROM zeus_checkpoint")
    assert max(int(str(n)) for (n,) in execute(sqlite_url, "SELECT number FROM saved")) >= 16
    assert (store.heartbeat(late, report(16, start_id="a")) is None) is not taken_over
    assert max(checkpoints(sqlite_url)) == 4
    execute(sqlite_url, "DELETE FROM zeus_checkpoint")
    execute(sqlite_url, "INSERT INTO zeus_checkpoint SELECT * FROM saved")
    with sql_engine.transaction(store._engine, write=True) as connection:
        belief = sql_belief.belief_of(connection, "d.train", policy.prior(JOB), oldest_open=None)
    assert belief == reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
