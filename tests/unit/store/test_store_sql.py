"""What only the SQL store has: overlapping recurrences, checkpoints, migrations, a database that fails."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from functools import reduce
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.trial import State, Trial, TrialKey
from airflow_provider_zeus.store import schema, sql_belief, sql_engine, sql_migrate
from airflow_provider_zeus.store.sql import SqlStore
from tests.unit.store.store_kit import JOB, Clock, report, request


@pytest.fixture
def store(sqlite_url: str, clock: Clock) -> SqlStore:
    return SqlStore(sqlite_url, create=True, now=clock)


@pytest.fixture
def request_(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    """pytest's own, where ``request`` is a question to the store."""
    return request


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints every 4 trials instead of every 16."""
    monkeypatch.setattr(sql_belief, "EVERY", 4)


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def checkpoints(url: str) -> list[int]:
    return [int(str(n)) for (n,) in execute(url, "SELECT number FROM zeus_checkpoint ORDER BY number")]


# --- overlapping recurrences


def test_overlapping_recurrences_know_each_other(store: SqlStore) -> None:
    first, second = (store.ask(request(n)).trial for n in (1, 2))
    assert [t.state for t in store.trials("d.train")] == [State.RUNNING, State.RUNNING]
    store.tell(second.key, State.CONVERGED, report())
    third = store.ask(request(3)).trial
    assert (first.asked_after_seq, second.asked_after_seq, third.asked_after_seq) == (0, 0, 1)


def test_a_late_question_of_an_earlier_try_closes_no_newer_one(store: SqlStore) -> None:
    store.ask(request(1, ti_id="new", try_number=2))
    store.ask(request(1, ti_id="old", try_number=1))
    assert {t.key.ti_id: t.state for t in store.trials("d.train")} == {"new": State.RUNNING, "old": State.RUNNING}


def test_mapped_instances_of_one_run_do_not_close_each_other(store: SqlStore) -> None:
    for i in range(3):
        asked = request(1, ti_id=f"ti-{i}")
        store.ask(replace(asked, origin=replace(asked.origin, map_index=i)))
    assert [t.state for t in store.trials("d.train")] == [State.RUNNING] * 3


def _recurrences(url: str, worker: int, count: int, start: Barrier) -> None:
    try:
        store = SqlStore(url)
        start.wait(60)
        for i in range(count):
            ti_id = f"w{worker}-{i}"
            asked = store.ask(request(worker * 1000 + i, ti_id=ti_id))
            assert store.ask(request(worker * 1000 + i, ti_id=ti_id)).trial.number == asked.trial.number
            if i == 0:
                start.wait(60)  # all have asked, none has told: these overlap for sure
            store.heartbeat(asked.trial.key, report(epochs=1.0, profile=1, points=2))
            news = report(asked.trial.batch_size, samples=worker * 1000 + i)
            assert store.tell(asked.trial.key, State.CONVERGED, news).state is State.CONVERGED
    except BaseException:
        start.abort()  # the others must not wait for this one
        raise


@pytest.mark.parametrize("place", ["sqlite_url", "database"])
def test_processes_at_once_lose_nothing(place: str, request_: pytest.FixtureRequest) -> None:
    workers, count, url = 4, 10, request_.getfixturevalue(place)
    SqlStore(url, create=True).close()
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(workers)
    processes = [spawn.Process(target=_recurrences, args=(url, w, count, start)) for w in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [p.exitcode for p in processes] == [0] * workers
    log = SqlStore(url).trials("d.train")
    assert [t.number for t in log] == list(range(1, workers * count + 1))
    assert sorted(t.told_seq or 0 for t in log) == list(range(1, workers * count + 1))
    assert {t.observation.samples for t in log} == {w * 1000 + i for w in range(workers) for i in range(count)}
    assert any(t.asked_after_seq != t.number - 1 for t in log), "the recurrences never overlapped"


def _open(url: str, start: Barrier) -> None:
    start.wait()
    SqlStore(url, create=True).ask(request(os.getpid()))


@pytest.mark.parametrize("place", ["sqlite_url", "database"])
def test_several_processes_make_the_tables_together(place: str, request_: pytest.FixtureRequest) -> None:
    url = request_.getfixturevalue(place)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(3)
    processes = [spawn.Process(target=_open, args=(url, start)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert [t.number for t in SqlStore(url).trials("d.train")] == [1, 2, 3]


def test_a_file_is_made_by_one_process_at_a_time(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with path.with_name("zeus.db.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        opening = threading.Thread(target=lambda: SqlStore(sqlite_url, create=True))
        opening.start()
        opening.join(0.5)
        assert opening.is_alive()
        assert not path.exists()
    opening.join(30)
    assert SqlStore(sqlite_url).jobs() == []


def test_a_writer_waits_for_the_lock_instead_of_failing(store: SqlStore, sqlite_url: str) -> None:
    holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), check_same_thread=False, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, lambda: holder.execute("COMMIT"))
    timer.start()
    assert store.trials("d.train") == []  # a reader does not wait
    assert timer.is_alive()
    assert store.ask(request(1)).trial.number == 1
    timer.join()
    holder.close()


def test_a_child_process_does_not_share_its_parents_connections(store: SqlStore, sqlite_url: str) -> None:
    url = sql_engine.read_url(sqlite_url)
    parent = sql_engine.engine_of(url)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"other" if sql_engine.engine_of(url) is not parent else b"same!")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 5) == b"other"
    assert sql_engine.engine_of(url) is parent


# --- what a newer version wrote


def newer(url: str, number: int) -> None:
    """Let a trial be of a version that knows more than this one."""
    planned = "json_set(planned, '$.phase', 'rehearse', '$.rehearsals', 3)"
    decision = "json_set(decision, '$.attempts[0].phase', 'rehearse', '$.attempts[0].rehearsals', 3)"
    changes = f"state = 'archived', phase = 'rehearse', planned = {planned}, decision = {decision}"
    execute(url, f"UPDATE zeus_trial SET {changes} WHERE number = {number}")


def test_a_trial_of_a_newer_version_is_read_and_teaches_nothing(store: SqlStore, sqlite_url: str) -> None:
    for n in range(1, 9):
        trial = store.ask(request(n)).trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size, profile=1))
    newer(sqlite_url, 4)
    strange = store.trials("d.train")[3]
    assert (strange.state.value, strange.planned.phase.value, strange.state in set(State)) == (
        "archived",
        "rehearse",
        False,
    )
    assert strange.observation.energy_j is not None
    assert store.recurrence("d", "run4") == [strange]
    with sql_engine.transaction(store._engine, write=True) as connection:
        taught = sql_belief.belief_of(connection, "d.train", JOB, oldest_open=None)
    known = [t for t in store.trials("d.train") if t.number != 4]
    assert taught == reduce(policy.learn, known, policy.prior(JOB))
    assert store.ask(request(9)).trial.number == 9
    assert store.ask(request(4)).trial.key == TrialKey("ti-4", 2), "closed: its task asks for the next attempt"
    assert store.tell(strange.key, State.FAILED, report()) == strange, "closed for good"
    assert execute(sqlite_url, "SELECT state FROM zeus_trial WHERE number = 4") == [("archived",)]


@pytest.mark.usefixtures("often")
def test_no_checkpoint_stands_behind_what_a_newer_version_may_learn_from(store: SqlStore, sqlite_url: str) -> None:
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
            store.tell(trial.key, State.CONVERGED, report(trial.batch_size, epochs=3 + rng.random()))
        elif fate < 0.7:
            store.tell(trial.key, State.FAILED, report(trial.batch_size, epochs=None))
        elif fate < 0.9:
            late.append(trial)
        if late and rng.random() < 0.4:
            trial = late.pop(rng.randrange(len(late)))
            store.tell(trial.key, State.CONVERGED, report(trial.batch_size, epochs=3 + rng.random()))


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_change_no_decision(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for name in ("kept", "none"):
        clock = Clock()
        if name == "none":
            monkeypatch.setattr(sql_belief, "_write", lambda *args: None)
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
def test_a_checkpoint_stops_before_the_oldest_open_trial(store: SqlStore, sqlite_url: str) -> None:
    for n in range(1, 21):
        trial = store.ask(request(n)).trial
        if n != 10:
            store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    assert checkpoints(sqlite_url) == [4, 8]


@pytest.mark.usefixtures("often")
def test_a_late_result_below_a_checkpoint_is_learnt(store: SqlStore, clock: Clock, sqlite_url: str) -> None:
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
        belief = sql_belief.belief_of(connection, "d.train", JOB, oldest_open=None)
    bare = reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
    assert belief == bare
    assert 6 in [n for n, _, _ in belief.converged]


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_misses_a_result_is_not_believed(store: SqlStore, clock: Clock, sqlite_url: str) -> None:
    """As an older version, which deletes none, would leave it behind."""
    story(store, clock, 40, 3)
    late = next(t for t in store.trials("d.train") if t.state is State.ABANDONED and t.told_seq)
    execute(sqlite_url, "CREATE TABLE saved AS SELECT * FROM zeus_checkpoint")
    assert max(int(str(n)) for (n,) in execute(sqlite_url, "SELECT number FROM saved")) > late.number
    store.tell(late.key, State.CONVERGED, report(late.batch_size, epochs=1.25))
    execute(sqlite_url, "DELETE FROM zeus_checkpoint")
    execute(sqlite_url, "INSERT INTO zeus_checkpoint SELECT * FROM saved")
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    with sql_engine.transaction(engine, write=True) as connection:
        belief = sql_belief.belief_of(connection, "d.train", JOB, oldest_open=None)
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
    assert (policy.belief_tag(stricter),) in tags


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
        connection: sa.Connection, cursor: object, statement: str, given: tuple[object, ...], *_: object
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
    bounded = ("(job_id=? AND state=?", "(job_id=? AND told_seq>?", "(job_id=? AND number>?", "(ti_id=?", "(dag_id=?")
    for statement, plan in plans.items():
        assert "SCAN zeus_trial" not in plan
        assert any(index in plan for index in bounded), (statement, plan)


# --- the tables


def test_migrations_make_the_tables_of_the_schema(store: SqlStore, sqlite_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, schema.metadata) == []
        assert sql_migrate.version(engine) == schema.HEAD
    assert ("wal",) in execute(sqlite_url, "PRAGMA journal_mode")


def migrated(url: str, down_to: str) -> None:
    """Take the tables back to an older revision."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(sql_migrate._MIGRATIONS))
    engine = sql_engine.engine_of(sql_engine.read_url(url))
    with sql_engine.transaction(engine, write=True) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, down_to)


def test_migrations_can_be_undone(store: SqlStore, sqlite_url: str) -> None:
    migrated(sqlite_url, "base")
    assert [name for (name,) in execute(sqlite_url, "SELECT name FROM sqlite_master WHERE name LIKE 'zeus_t%'")] == []


@pytest.mark.parametrize("versions", [("1",), ("1", "2")])
def test_profiles_from_before_they_had_a_version(sqlite_url: str, versions: tuple[str, ...]) -> None:
    """They are those of the one version that the job had; of several nobody knows which, and none is lost."""
    store = SqlStore(sqlite_url, create=True)
    for n, version in enumerate(versions, start=1):
        key = store.ask(request(n, job=replace(JOB, job_version=version))).trial.key
        store.tell(key, State.CONVERGED, report(profile=2))
    store.close()
    migrated(sqlite_url, "0002")
    assert execute(sqlite_url, "SELECT sum(samples) FROM zeus_profile_sample") == [(20 * len(versions),)]
    store = SqlStore(sqlite_url, create=True)
    asked = store.ask(request(9, job=replace(JOB, job_version=versions[-1])))
    assert [s.samples for s in asked.profile] == ([20] if len(versions) == 1 else [])
    assert execute(sqlite_url, "SELECT sum(samples) FROM zeus_profile_sample") == [(20 * len(versions),)]


def test_every_revision_is_numbered_and_the_last_is_the_head() -> None:
    files = sorted((Path(sql_migrate.__file__).parent / "migrations" / "versions").glob("[0-9]*.py"))
    assert [f.name[:4] for f in files] == [f"{i:04d}" for i in range(1, len(files) + 1)]
    assert files[-1].name[:4] == schema.HEAD


def test_foreign_keys_hold(store: SqlStore, sqlite_url: str) -> None:
    engine = sql_engine.engine_of(sql_engine.read_url(sqlite_url))
    statement = sa.insert(schema.power).values(trial_id=99, points=[])
    with pytest.raises(StoreError, match="FOREIGN KEY"), sql_engine.transaction(engine, write=True) as connection:
        connection.execute(statement)


def test_newer_tables_name_the_remedy(store: SqlStore, sqlite_url: str) -> None:
    execute(sqlite_url, "UPDATE zeus_alembic_version SET version_num = '0999'")
    for create in (True, False):
        with pytest.raises(StoreError, match=r"0999.*upgrade airflow-provider-zeus on this machine"):
            SqlStore(sqlite_url, create=create)


def test_tables_that_are_not_there_name_the_command(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE mine (x INTEGER)")
    with pytest.raises(StoreError, match="run 'airflow zeus db upgrade' once"):
        SqlStore(sqlite_url)
    SqlStore(sqlite_url, create=True)
    assert execute(sqlite_url, "SELECT * FROM mine") == []


def test_older_tables_are_migrated_only_where_that_is_allowed(sqlite_url: str) -> None:
    SqlStore(sqlite_url, create=True).close()
    execute(sqlite_url, "UPDATE zeus_alembic_version SET version_num = '0000'")
    with pytest.raises(StoreError, match=r"older schema 0000.*'airflow zeus db upgrade'"):
        SqlStore(sqlite_url)


def test_a_reader_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "zeus.db"
    with pytest.raises(StoreError, match="no trial log yet"):
        SqlStore(f"sqlite:///{path}")
    assert list(tmp_path.iterdir()) == []


def test_opening_an_up_to_date_file_needs_no_alembic(store: SqlStore, sqlite_url: str) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom airflow_provider_zeus.store.sql import SqlStore\n"
        f"SqlStore({sqlite_url!r}, create=True)\nassert 'alembic' not in sys.modules, 'alembic'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- what can go wrong


def test_an_unreachable_database_is_one_sentence_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"cannot be used|No driver") as caught:
        SqlStore("postgresql+psycopg://zeus:s3cr3t%21@127.0.0.1:1/zeus")
    text = f"{caught.value!r} {caught.value.__cause__!r}"
    assert "s3cr3t" not in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t@h:port/db",
        "postgresql://u:s3cr3t@s3cr3t@h/db",
        "postgresql+asyncpg://u:s3cr3t@h/db",
        "//u:s3cr3t@h",
        "oracle://u:s3cr3t@h/db?password=s3cr3t",
        "",
    ],
)
def test_a_url_that_cannot_be_used_is_not_repeated(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        SqlStore(url)
    error: BaseException | None = caught.value
    assert "s3cr3t" not in str(error)
    assert error is not None
    assert error.__suppress_context__ or error.__context__ is None


def test_no_password_in_what_people_see(monkeypatch: pytest.MonkeyPatch) -> None:
    url = sql_engine.read_url("postgresql+psycopg2://zeus:s3cr3t@db.example:5432/costs?sslmode=require")
    assert sql_engine.shown(url) == "postgresql://db.example:5432/costs"
    said = sql_engine.explained(RuntimeError("connection failed: password=s3cr3t host=db"), url)
    assert "s3cr3t" not in str(said)
    assert "db.example" in str(said)


def test_a_directory_that_is_not_there_names_the_file(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(StoreError, match="writable"):
        SqlStore(f"sqlite:///{place}/zeus.db", create=True)


def test_a_file_that_is_no_database_is_an_error_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "zeus.db"
    path.write_text("not a database, but long enough to be looked at " * 100)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    with pytest.raises(StoreError, match="not a database"):
        SqlStore(f"sqlite:///{path}", create=True)


def test_a_failed_question_leaves_nothing_behind(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ask(request(1))
    clock.t += 1000

    def boom(*args: object, **kwargs: object) -> None:
        raise RuntimeError("in the policy")

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_zeus.store.book.choose", boom)
        with pytest.raises(RuntimeError):
            store.ask(request(2))
    (trial,) = store.trials("d.train")
    assert trial.told_seq is None  # its closing was rolled back with the rest
    assert store.ask(request(2)).trial.number == 2
