"""Length of each lease: a lease that ends further ahead was written by a clock that was ahead."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; older trials get the default lease of a ZeusTrial."""
    op.add_column("zeus_trial", sa.Column("lease_s", sa.Double, nullable=False, server_default="86400"))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("zeus_trial", "lease_s")
