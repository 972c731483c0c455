"""What each training returned: ``run.previous`` of the next run reads it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; older trials returned nothing that was kept."""
    op.add_column("zeus_trial", sa.Column("returned", sa.Text))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("zeus_trial", "returned")
