"""Power profiles per job version: a new version starts with an empty profile."""

from __future__ import annotations

from collections import defaultdict

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TRIAL = sa.table("zeus_trial", sa.column("job_id", sa.Text), sa.column("spec", sa.JSON))
_SAMPLE = sa.table("zeus_profile_sample", sa.column("job_id", sa.Text), sa.column("job_version", sa.Text))


def upgrade() -> None:
    """Add the version. Samples of a job with several versions get none, and are not used any more."""
    op.add_column("zeus_profile_sample", sa.Column("job_version", sa.Text, nullable=False, server_default=""))
    versions: dict[str, set[str]] = defaultdict(set)
    for job_id, spec in op.get_bind().execute(sa.select(_TRIAL.c.job_id, _TRIAL.c.spec)):
        versions[job_id].add(str(spec.get("job_version", "")))
    for job_id, found in versions.items():
        if len(found) == 1:
            op.execute(sa.update(_SAMPLE).where(_SAMPLE.c.job_id == job_id).values(job_version=found.pop()))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("zeus_profile_sample", "job_version")
