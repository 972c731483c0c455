"""``airflow zeus db upgrade``: creates or migrates the tables of the trial log."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_zeus.cli.shell import command, say
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, store_url


@command
def upgrade(args: Namespace) -> None:
    """Create or migrate the tables of the trial log."""
    say(upgrade_tables(args.conn_id))


def upgrade_tables(conn_id: str = DEFAULT_CONN_ID) -> str:
    """Bring the database of a Connection (by default the embedded file) to this version's schema.

    Returns a sentence that says what was done. Raises StoreError.
    """
    url = store_url(conn_id)
    if url is None:
        return f"Connection {conn_id!r} keeps the trial log in Airflow Variables: there is nothing to upgrade."
    from airflow_provider_zeus.store.sql.engine import engine_of, forget, read_url, shown
    from airflow_provider_zeus.store.sql.migrate import check, present_version
    from airflow_provider_zeus.store.sql.schema import HEAD

    parsed = read_url(url)
    engine = engine_of(parsed)
    try:
        before = present_version(engine)
        check(engine, create=True)
    finally:
        forget(engine)
    if before == HEAD:
        return f"The trial log at {shown(parsed)} is up to date: schema {HEAD}."
    return f"The trial log at {shown(parsed)} now has schema {HEAD} ({f'was {before}' if before else 'new'})."
