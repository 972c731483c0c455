"""Index for the newest runs of one batch size: the runs that a run's page compares with."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index."""
    op.create_index("ix_zeus_trial_size", "zeus_trial", ["job_id", "batch_size", "number"])


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_zeus_trial_size", "zeus_trial")
