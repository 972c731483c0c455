"""Tables of the SQL store, as the newest revision has them: ``migrations/`` creates them, never this module."""

from __future__ import annotations

from airflow_provider_zeus.store.sql.migrations.versions import tables_0016 as newest

HEAD, metadata = newest.revision, newest.metadata
VERSION_TABLE = "zeus_alembic_version"  # separate, so that the tables may be in any database

job, trial, power = newest.job, newest.trial, newest.power
profile, checkpoint, signal = newest.profile, newest.checkpoint, newest.signal
