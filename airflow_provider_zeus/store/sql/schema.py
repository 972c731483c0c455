"""Tables of the SQL store, as the newest revision has them: ``migrations/`` creates them, never
this module.
"""

from __future__ import annotations

from airflow_provider_zeus.store.sql.migrations.versions import tables_0017 as newest

HEAD = newest.revision
metadata = newest.metadata
VERSION_TABLE = "zeus_alembic_version"  # separate, so that the tables may be in any database

job = newest.job
trial = newest.trial
power = newest.power
profile = newest.profile
checkpoint = newest.checkpoint
signal = newest.signal
outside_sum = newest.outside_sum
