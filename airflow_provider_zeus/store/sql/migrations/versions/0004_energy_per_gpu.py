"""Energy of each GPU where several train together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; older trials have no value."""
    op.add_column("zeus_trial", sa.Column("gpu_energy_j", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("zeus_trial", "gpu_energy_j")
