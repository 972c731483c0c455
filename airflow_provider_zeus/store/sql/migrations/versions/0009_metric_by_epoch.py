"""The metric of each epoch, and how much of the time the GPU worked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; older trials have no values."""
    op.add_column("zeus_trial", sa.Column("gpu_busy", sa.Double))
    op.add_column("zeus_trial", sa.Column("epoch_metrics", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("zeus_trial", "epoch_metrics")
    op.drop_column("zeus_trial", "gpu_busy")
