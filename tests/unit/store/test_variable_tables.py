"""The tables in memory that the Variable store fills from a job's document."""

from __future__ import annotations

import gc
import threading

import sqlalchemy as sa

from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.variables import tables
from airflow_provider_zeus.store.variables.tables import empty_tables


def test_another_thread_than_the_first_one_may_use_them() -> None:
    """A run asks in its own thread, and a second thread writes its heartbeats."""
    counts: list[int] = []

    def count() -> None:
        with empty_tables() as connection:
            statement = sa.select(sa.func.count()).select_from(schema.trial)
            counts.append(connection.execute(statement).scalar_one())

    tables._database.cache_clear()
    with empty_tables():
        gc.collect()  # the engine that made the tables is gone, and what it had closed with it
        other = threading.Thread(target=count)
        other.start()
        other.join()
    count()
    assert counts == [0, 0]
