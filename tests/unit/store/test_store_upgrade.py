"""A database that the first version made, with rows in it, brought to this version and used: on both databases."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.store.sql import migrate, schema
from airflow_provider_zeus.store.sql.engine import engine_of, file_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import JOB, report, request, seen


@pytest.fixture(params=["sqlite_url", "database"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def first_version(url: str) -> sa.Engine:
    """The tables of the first revision, made by it and by nothing of today."""
    return at_revision(url, "0001")


def at_revision(url: str, revision: str) -> sa.Engine:
    """The tables as the revisions up to this one make them."""
    config, engine = Config(), engine_of(read_url(url))
    config.set_main_option("script_location", str(migrate._MIGRATIONS))
    if path := file_of(engine.url):
        path.touch()
    with transaction(engine, write=True) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return engine


ATTEMPT = {"batch_size": 32, "phase": "explore", "bound_epochs": None, "why": "first", "round": 1}
TRIAL: dict[str, Any] = {
    "job_id": "d.train",
    "attempt": 1,
    "dag_id": "d",
    "task_id": "train",
    "map_index": -1,
    "try_number": 1,
    "run_type": "scheduled",
    "opened_at": 1000.0,
    "lease_until": time.time() + 80_000,
    "batch_size": 32,
    "phase": "explore",
    "planned": ATTEMPT,
    "decision": {"attempts": [ATTEMPT], "seed": 7, "policy": "zeus"},
    "spec": JOB.to_dict(),
    "out_of_memory": False,
    "reasons": {},
}
SEEN = ("epochs", "samples", "samples_per_epoch", "energy_j", "time_s", "metric", "device_model", "device_count")


def rows(engine: sa.Engine) -> None:
    """Three runs told, one open, as the first version wrote them: by its columns, read from the database itself."""
    tables = sa.MetaData()
    tables.reflect(engine)
    job, trial, power, sample = (tables.tables[f"zeus_{t}"] for t in ("job", "trial", "trial_power", "profile_sample"))
    done = {name: getattr(seen(32), name) for name in (*SEEN, "energy_source", "max_power_w")}
    with transaction(engine, write=True) as connection:
        connection.execute(sa.insert(job).values(job_id="d.train", told_seq=3, last_number=4))
        for n in range(1, 5):
            row = TRIAL | {"number": n, "ti_id": f"ti-{n}", "run_id": f"run{n}", "asked_after_seq": n - 1}
            end = {"state": "converged", "told_seq": n, "closed_at": 1010.0} if n < 4 else {"state": "running"}
            added = connection.execute(sa.insert(trial).values(row | end | (done if n < 4 else {})))
            if n < 4:
                key = added.inserted_primary_key
                assert key is not None
                connection.execute(sa.insert(power).values(trial_id=key[0], points=[[1.0, 90.0, 200.0, "train"]]))
        where = {"job_id": "d.train", "device_model": "V100", "device_count": 1, "energy_source": "simulated"}
        taken = {"batch_size": 32, "limit_w": 200.0, "samples": 30, "energy_j": 6.0, "time_s": 3.0, "steps": 3}
        connection.execute(sa.insert(sample).values(where | taken))
        checkpoint = tables.tables["zeus_checkpoint"]
        old = {"job_id": "d.train", "tag": "of the first version", "number": 2, "told_seq": 2, "belief": "{}"}
        connection.execute(sa.insert(checkpoint).values(old))


def test_a_database_of_the_first_version_is_upgraded_with_its_rows_and_used(url: str) -> None:
    engine = first_version(url)
    rows(engine)
    with engine.connect() as connection:
        before: dict[int, float] = dict(connection.exec_driver_sql("SELECT number, energy_j FROM zeus_trial").all())
    store = SqlStore(url, create=True)
    assert migrate.version(engine) == schema.HEAD
    log = store.trials("d.train")
    assert {t.number: t.observation.energy_j for t in log} == before
    assert [t.state for t in log] == [State.CONVERGED] * 3 + [State.RUNNING]
    assert [t.origin for t in log[:2]] == [store.recurrence("d", f"run{n}")[0].origin for n in (1, 2)]
    assert len(store.points(TrialKey("ti-1"))) == 1
    again = store.ask(request(4))
    assert (again.redelivered, again.trial.key) == (True, TrialKey("ti-4")), "it was asked before the upgrade"
    assert [s.samples for s in again.profile] == [30]
    assert store.tell(again.trial.key, State.CONVERGED, report()).told_seq == 4, "and told after it"
    assert store.ask(request(5)).trial.number == 5
    store.close()


def test_after_the_upgrade_the_tables_are_those_of_the_schema(url: str) -> None:
    engine = first_version(url)
    rows(engine)
    SqlStore(url, create=True).close()
    options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
    options["compare_server_default"] = (
        engine.dialect.name == "postgresql"
    )  # of SQLite's, alembic misreads an empty text
    with engine_of(read_url(url)).connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
        changed = sa.MetaData()
        for table in schema.metadata.sorted_tables:
            table.to_metadata(changed)
        changed.tables["zeus_job"].append_column(sa.Column("more", sa.Text))
        assert len(compare_metadata(context, changed)) == 1, "a difference would be seen"
