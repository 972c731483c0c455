"""Logs to die over: a job with a past, copied for each cell; taken away, filled up,
and given back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, Origin, State
from airflow_provider_zeus.store.base import AskRequest
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.postgres import killed, server, stopped
from tests.system.death_training import JOB, clock

PAST = 20  # runs that the job has had: more than lie between two checkpoints
_GPU = DeviceInfo(model="Tesla V100-SXM2-16GB", max_power_w=250.0, energy_source="nvml_counter")
_FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON zeus_trial FOR EACH ROW EXECUTE FUNCTION full_disk();
"""


class Log(Protocol):
    """One cell's log."""

    url: str

    def take_away(self) -> None:
        """Nobody reaches it any more, not even over a connection that is open."""

    def give_back(self) -> None:
        """It is there again, as it was."""

    def fill(self) -> None:
        """Its disk is full."""

    def make_room(self) -> None:
        """It is not any more."""

    def readers(self) -> SqlStore:
        """The log as the api-server opens it."""


class SqliteLog:
    """A file, in a folder of its own that can be moved away."""

    def __init__(self, cell: Path, past: Path) -> None:
        self._cell = cell
        self._folder = cell / "store"
        self._folder.mkdir()
        shutil.copy(past, self._folder / "zeus.db")
        self.url = f"sqlite:///{self._folder}/zeus.db"

    def take_away(self) -> None:
        """Move its folder."""
        self._folder.rename(self._cell / "away")

    def give_back(self) -> None:
        """Move it back."""
        (self._cell / "away").rename(self._folder)

    def fill(self) -> None:
        """By ``PRAGMA max_page_count`` of every connection of the training (death_training.py).

        What fits into a page that is there would still be written;
        so every write of a trial needs new ones.
        """
        self._run("CREATE TABLE filler (bytes BLOB)")
        for event in ("INSERT", "UPDATE"):
            grow = "INSERT INTO filler VALUES (zeroblob(2000))"
            self._run(f"CREATE TRIGGER grow_{event} AFTER {event} ON zeus_trial BEGIN {grow}; END")
        (self._cell / "full").touch()

    def make_room(self) -> None:
        """No such limit for the next connection."""
        (self._cell / "full").unlink()

    def _run(self, statement: str) -> None:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    def readers(self) -> SqlStore:
        """With the clock of the cell."""
        return SqlStore(self.url, now=clock(self._cell))


class PostgresLog:
    """A database that can be closed to everybody."""

    def __init__(self, admin_url: str, name: str, past: str) -> None:
        self._admin = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT")
        self._name = name
        self.url = sa.make_url(admin_url).set(database=name).render_as_string(hide_password=False)
        self._run(f"CREATE DATABASE {name} TEMPLATE {past}")

    def take_away(self) -> None:
        """Refuse new connections and cut those that are open."""
        self._run(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        self._run(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'"
        )

    def give_back(self) -> None:
        """Take connections again."""
        self._run(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    def fill(self) -> None:
        """Every write of a trial fails as on a full disk:
        a trigger raises the server's error 53100.
        """
        self._here(_FULL)

    def make_room(self) -> None:
        """Drop the trigger."""
        self._here("DROP TRIGGER full_disk ON zeus_trial")

    def readers(self) -> SqlStore:
        """With the database's own clock."""
        return SqlStore(self.url)

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.exec_driver_sql(statement)
        self._admin.dispose()

    def _here(self, statements: str) -> None:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.exec_driver_sql(statements)
        engine.dispose()


class OwnLog(PostgresLog):
    """A database on a server of the cell's own, which can be stopped or killed."""

    def __init__(self) -> None:
        self._server = server(durable=True, max_connections=30)
        self._admin_url = self._server.__enter__()
        super().__init__(self._admin_url, "zeus_death", "template1")
        live(self.url)

    def standing(self) -> AbstractContextManager[None]:
        """The server stands still, by SIGSTOP, and goes on at the end."""
        return stopped(self._admin_url)

    def killed(self) -> AbstractContextManager[None]:
        """The server is killed, and starts again at the end."""
        return killed(self._admin_url)

    def cut(self) -> None:
        """Every connection of the moment is cut."""
        self._run(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'"
        )

    def end(self) -> None:
        """End the server."""
        self._server.__exit__(None, None, None)


@contextmanager
def pasts(folder: Path, admin_url: str | None) -> Iterator[tuple[Path, str]]:
    """A file and a database (its name) with what the job did before."""
    file = folder / "past.db"
    raw = sa.create_engine(f"sqlite:///{file}")
    with raw.connect() as connection:
        # small: whatever grows needs a new one
        connection.exec_driver_sql("PRAGMA page_size = 512")
        connection.exec_driver_sql("VACUUM")
    raw.dispose()
    live(f"sqlite:///{file}")
    name = "zeus_past"
    if admin_url:
        admin = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        admin.dispose()
        live(sa.make_url(admin_url).set(database=name).render_as_string(hide_password=False))
    yield file, name


def live(url: str, job: ZeusJob = JOB, about_j: float = 100.0) -> None:
    """Write the past of a job with one batch size into a log."""
    store = SqlStore(url, create=True)
    job_id = str(job.job_id)
    for n in range(1, PAST + 1):
        origin = Origin(
            dag_id=job_id, run_id=f"past-{n}", task_id="train", try_number=1, run_type="scheduled"
        )
        asked = store.ask(
            AskRequest(job=job, job_id=job_id, ti_id=f"past-{n}", origin=origin, device=_GPU)
        )
        seen = Observation(
            epochs=3.0,
            samples=960,
            samples_per_epoch=320.0,
            energy_j=about_j * (1 + n / 100),
            time_s=1.0,
            metric=0.9,
            start_id=f"s{n}",
            device_model=_GPU.model,
            device_count=_GPU.count,
            max_power_w=_GPU.max_power_w,
            energy_source=_GPU.energy_source,
        )
        store.tell(asked.trial.key, State.CONVERGED, Report(observation=seen))
    store.close()
