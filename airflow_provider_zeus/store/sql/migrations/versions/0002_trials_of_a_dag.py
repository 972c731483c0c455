"""Index for the newest runs of a job in one DAG: the cost page."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index."""
    op.create_index("ix_zeus_trial_dag", "zeus_trial", ["dag_id", "job_id", "run_id", "number"])


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_zeus_trial_dag", "zeus_trial")
