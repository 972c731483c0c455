"""Alembic environment: runs on the connection and in the transaction of ``migrate.migrate()``."""

from alembic import context

from airflow_provider_zeus.store.sql.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
