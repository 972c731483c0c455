"""All tables.

Until the first upload to a package index a change of the tables edits this revision and gives it the next number, in
this file, its name and ``schema.HEAD``: so a log of an earlier state is recognised, refused and left as it is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables. Written out: later versions of ``schema`` must not change this revision."""
    _jobs_and_trials()
    _what_they_measured()


def _jobs_and_trials() -> None:
    op.create_table(
        "zeus_job",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("told_seq", sa.BigInteger, nullable=False),
        sa.Column("last_number", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "zeus_trial",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.Text, sa.ForeignKey("zeus_job.job_id"), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("ti_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("dag_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("run_type", sa.Text, nullable=False),
        sa.Column("data_slice", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("asked_after_seq", sa.BigInteger, nullable=False),
        sa.Column("told_seq", sa.BigInteger),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("lease_s", sa.Double, nullable=False, server_default="86400"),
        sa.Column("closed_at", sa.Double),
        sa.Column("batch_size", sa.BigInteger),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("planned", sa.JSON, nullable=False),
        sa.Column("decision", sa.JSON, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("epochs", sa.Double),
        sa.Column("samples", sa.BigInteger),
        sa.Column("samples_per_epoch", sa.Double),
        sa.Column("energy_j", sa.Double),
        sa.Column("time_s", sa.Double),
        sa.Column("rest_j", sa.Double),
        sa.Column("rest_s", sa.Double),
        sa.Column("excess_j", sa.Double),
        sa.Column("excess_s", sa.Double),
        sa.Column("metric", sa.Double),
        sa.Column("target_value", sa.Double),
        sa.Column("power_limit_w", sa.Double),
        sa.Column("device_model", sa.Text),
        sa.Column("device_count", sa.Integer),
        sa.Column("max_power_w", sa.Double),
        sa.Column("energy_source", sa.Text),
        sa.Column("gpu_uuid", sa.Text),
        sa.Column("gpu_energy_j", sa.JSON(none_as_null=True)),
        sa.Column("limit_found_w", sa.Double),
        sa.Column("learning_rate", sa.Double),
        sa.Column("start_id", sa.Text),
        sa.Column("step_kind", sa.BigInteger),
        sa.Column("gpu_busy", sa.Double),
        sa.Column("epoch_metrics", sa.JSON(none_as_null=True)),
        sa.Column("out_of_memory", sa.Boolean, nullable=False),
        sa.Column("returned", sa.Text),
        sa.Column("price_per_kwh", sa.Double),
        sa.Column("price_currency", sa.Text),
        sa.Column("price_source", sa.Text),
        sa.Column("price_at_once", sa.Double),
        sa.Column("g_co2e_per_kwh", sa.Double),
        sa.Column("g_co2e_source", sa.Text),
        sa.Column("g_co2e_at_once", sa.Double),
        sa.Column("reasons", sa.JSON, nullable=False),
        sa.UniqueConstraint("ti_id", "attempt", name="uq_zeus_trial_key"),
        sa.UniqueConstraint("job_id", "number", name="uq_zeus_trial_number"),
    )
    op.create_index("ix_zeus_trial_state", "zeus_trial", ["job_id", "state", "number"])
    op.create_index("ix_zeus_trial_run", "zeus_trial", ["dag_id", "run_id"])
    op.create_index("ix_zeus_trial_dag", "zeus_trial", ["dag_id", "job_id", "run_id", "number"])
    op.create_index("ix_zeus_trial_size", "zeus_trial", ["job_id", "batch_size", "number"])
    op.create_index("ix_zeus_trial_told", "zeus_trial", ["job_id", "told_seq", "number"])


def _what_they_measured() -> None:
    op.create_table(
        "zeus_trial_power",
        sa.Column("trial_id", sa.BigInteger, sa.ForeignKey("zeus_trial.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("points", sa.JSON, nullable=False),
    )
    op.create_table(
        "zeus_profile_sample",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.Text, sa.ForeignKey("zeus_job.job_id"), nullable=False),
        sa.Column("device_model", sa.Text, nullable=False),
        sa.Column("device_count", sa.Integer, nullable=False),
        sa.Column("energy_source", sa.Text, nullable=False),
        sa.Column("batch_size", sa.BigInteger, nullable=False),
        sa.Column("limit_w", sa.Double, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("energy_j", sa.Double, nullable=False),
        sa.Column("time_s", sa.Double, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("job_version", sa.Text, nullable=False, server_default=""),
    )
    op.create_index(
        "ix_zeus_profile_device",
        "zeus_profile_sample",
        ["job_id", "device_model", "device_count", "energy_source", "batch_size"],
    )
    op.create_table(
        "zeus_checkpoint",
        sa.Column("job_id", sa.Text, sa.ForeignKey("zeus_job.job_id"), primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("told_seq", sa.BigInteger, nullable=False),
        sa.Column("belief", sa.Text, nullable=False),
    )
    op.create_table(
        "zeus_signal",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("asked_at", sa.Double, nullable=False),
        sa.Column("series", sa.Text),
    )
