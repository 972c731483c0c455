"""What the energy of each trial cost and emitted by its hours, and the series that say so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NUMBERS = ("price_per_kwh", "price_at_once", "g_co2e_per_kwh", "g_co2e_at_once")
_TEXTS = ("price_currency", "price_source", "g_co2e_source")


def upgrade() -> None:
    """Add columns and table; older trials were priced by no hours."""
    for name in _NUMBERS:
        op.add_column("zeus_trial", sa.Column(name, sa.Double))
    for name in _TEXTS:
        op.add_column("zeus_trial", sa.Column(name, sa.Text))
    op.create_table(
        "zeus_signal",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("asked_at", sa.Double, nullable=False),
        sa.Column("series", sa.Text),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("zeus_signal")
    for name in (*_NUMBERS, *_TEXTS):
        op.drop_column("zeus_trial", name)
