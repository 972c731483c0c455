"""``airflow zeus db upgrade``: makes or migrates the tables of the trial log."""

from __future__ import annotations

from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, store_url


def upgrade(conn_id: str = DEFAULT_CONN_ID) -> str:
    """Bring the database of a Connection (without one: the embedded file) to this version; what was done, in words.

    Raises StoreError with its remedy.
    """
    url = store_url(conn_id)
    if url is None:
        return f"Connection {conn_id!r} keeps the trial log in Airflow Variables: there is nothing to upgrade."
    from airflow_provider_zeus.store.schema import HEAD
    from airflow_provider_zeus.store.sql_engine import engine_of, forget, read_url, shown
    from airflow_provider_zeus.store.sql_migrate import check, present_version

    parsed = read_url(url)
    engine = engine_of(parsed)
    try:
        before = present_version(engine)
        check(engine, create=True)
    finally:
        forget(engine)
    if before == HEAD:
        return f"The trial log at {shown(parsed)} is up to date: schema {HEAD}."
    return f"The trial log at {shown(parsed)} now has schema {HEAD} ({f'was {before}' if before else 'made anew'})."
