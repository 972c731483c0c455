"""All tables. Times are UTC seconds since the epoch by the store's clock; energies joules, powers watts.

A missing figure is NULL and ``reasons`` says why.

Until the first upload to a package index a change of the tables edits this revision and gives it the next number, here,
in the name of the file and in ``schema.py``: so a log of an earlier state is recognised, refused and left as it is.
From then on it stays as it is, and ``schema.py`` adds to copies of its tables what a later revision adds.
"""

import sqlalchemy as sa

revision = "0016"
down_revision = None

metadata = sa.MetaData()

job = sa.Table(
    "zeus_job",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("told_seq", sa.BigInteger, nullable=False),  # number of closings so far
    sa.Column("last_number", sa.BigInteger, nullable=False),  # number of the newest trial
    sa.Column("events", sa.Text),  # JSON: which events hold, by DAG; NULL: no run has looked yet
)

trial = sa.Table(
    "zeus_trial",
    metadata,
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
    sa.Column("lease_s", sa.Double, nullable=False, server_default="86400"),  # length of the lease
    sa.Column("closed_at", sa.Double),
    sa.Column("batch_size", sa.BigInteger),  # NULL where the task was measured alone
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
    sa.Column("paused_j", sa.Double),  # while the training stood still
    sa.Column("paused_s", sa.Double),
    sa.Column("metric", sa.Double),
    sa.Column("target_value", sa.Double),
    sa.Column("power_limit_w", sa.Double),
    sa.Column("device_model", sa.Text),
    sa.Column("device_count", sa.Integer),
    sa.Column("max_power_w", sa.Double),
    sa.Column("energy_source", sa.Text),
    sa.Column("gpu_uuid", sa.Text),
    sa.Column("gpu_energy_j", sa.JSON(none_as_null=True)),  # of several GPUs: what each of them drew
    sa.Column("limit_found_w", sa.Double),
    sa.Column("learning_rate", sa.Double),
    sa.Column("start", sa.Text),  # cold, shrunk or warm, as it was taken
    sa.Column("served", sa.Double),  # metric of the earlier model on the new data
    sa.Column("from_ti_id", sa.Text),  # the trial that trained the earlier model
    sa.Column("from_attempt", sa.Integer),
    sa.Column("from_start", sa.Text),
    sa.Column("from_generations", sa.Integer),  # of the earlier model since a cold start
    sa.Column("from_age", sa.Integer),  # runs of the job since that trial
    sa.Column("start_id", sa.Text),
    sa.Column("step_kind", sa.BigInteger),  # of a run without a batch size: which kind of step its profile is of
    sa.Column("gpu_busy", sa.Double),  # share of the time in which the GPU worked
    sa.Column("data_wait_s", sa.Double),  # waited for batches
    sa.Column("host_j", sa.Double),  # of processors and memory beside the GPU; no part of energy_j
    sa.Column("host_source", sa.Text),
    sa.Column("epoch_metrics", sa.JSON(none_as_null=True)),  # the metric of each epoch, at most 1000
    sa.Column("out_of_memory", sa.Boolean, nullable=False),
    sa.Column("returned", sa.Text),  # JSON of at most 4 kB: what the training function returned
    sa.Column("price_per_kwh", sa.Double),  # mean over the hours in which the energy was drawn
    sa.Column("price_currency", sa.Text),
    sa.Column("price_source", sa.Text),
    sa.Column("price_at_once", sa.Double),  # the same, had the run not waited for a cheaper start
    sa.Column("g_co2e_per_kwh", sa.Double),
    sa.Column("g_co2e_source", sa.Text),
    sa.Column("g_co2e_at_once", sa.Double),
    sa.Column("reasons", sa.JSON, nullable=False),
    sa.UniqueConstraint("ti_id", "attempt", name="uq_zeus_trial_key"),
    sa.UniqueConstraint("job_id", "number", name="uq_zeus_trial_number"),
)
sa.Index("ix_zeus_trial_state", trial.c.job_id, trial.c.state, trial.c.number)  # open trials of a job
sa.Index("ix_zeus_trial_run", trial.c.dag_id, trial.c.run_id)  # a run's page in the UI
sa.Index("ix_zeus_trial_dag", trial.c.dag_id, trial.c.job_id, trial.c.run_id, trial.c.number)  # a DAG's page in the UI
sa.Index("ix_zeus_trial_size", trial.c.job_id, trial.c.batch_size, trial.c.number)  # runs to compare with
sa.Index("ix_zeus_trial_told", trial.c.job_id, trial.c.told_seq, trial.c.number)  # closed after a checkpoint

power = sa.Table(
    "zeus_trial_power",
    metadata,
    sa.Column("trial_id", sa.BigInteger, sa.ForeignKey("zeus_trial.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("points", sa.JSON, nullable=False),  # [[t_s, power_w, limit_w, phase], ...], at most 500
)

profile = sa.Table(
    "zeus_profile_sample",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("zeus_job.job_id"), nullable=False),
    sa.Column("device_model", sa.Text, nullable=False),
    sa.Column("device_count", sa.Integer, nullable=False),
    sa.Column("energy_source", sa.Text, nullable=False),  # "": not known; NULL would never compare equal
    sa.Column("batch_size", sa.BigInteger, nullable=False),
    sa.Column("limit_w", sa.Double, nullable=False),
    sa.Column("samples", sa.BigInteger, nullable=False),
    sa.Column("energy_j", sa.Double, nullable=False),
    sa.Column("time_s", sa.Double, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("capped", sa.Double),  # share of the time in which the board was power-capped
    sa.Column("sm_clock_mhz", sa.Double),
    sa.Column("job_version", sa.Text, nullable=False, server_default=""),
)
sa.Index(
    "ix_zeus_profile_device",
    profile.c.job_id,
    profile.c.device_model,
    profile.c.device_count,
    profile.c.energy_source,
    profile.c.batch_size,
)

checkpoint = sa.Table(
    "zeus_checkpoint",
    metadata,
    sa.Column("job_id", sa.Text, sa.ForeignKey("zeus_job.job_id"), primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),  # belief_tag(job): what a belief depends on besides the log
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),  # the belief after this trial
    sa.Column("told_seq", sa.BigInteger, nullable=False),  # highest among the trials in it
    sa.Column("belief", sa.Text, nullable=False),
)

signal = sa.Table(  # series of prices and carbon intensities, asked for once for all jobs
    "zeus_signal",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("asked_at", sa.Double, nullable=False),  # when a task last took it on to ask
    sa.Column("series", sa.Text),  # JSON; NULL: no answer yet
)


def upgrade() -> None:
    """Create the tables and their indexes."""
    from alembic import op

    for table in metadata.sorted_tables:
        op.execute(sa.schema.CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: index.name or ""):
            op.execute(sa.schema.CreateIndex(index))
