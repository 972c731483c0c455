"""All tables.

Times are UTC seconds since the epoch by the store's clock; energies joules, powers watts.

A missing figure is NULL and ``reasons`` says why.

Until the first upload to a package index a change of the tables edits this revision and gives it
the next number, here, in the name of the file and in ``schema.py``: so a log of an earlier state is
recognised, refused and left as it is. From then on it stays as it is, and ``schema.py`` adds a
later revision's columns to copies of its tables.
"""

import sqlalchemy as sa
from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, ForeignKey, Integer, Text

revision = "0017"
down_revision = None

metadata = sa.MetaData()


def _row_id() -> Column[int]:
    """A number that the database gives each row."""
    # SQLite counts rows by itself in a column of exactly this type.
    counted = BigInteger().with_variant(Integer, "sqlite")
    return Column("id", counted, primary_key=True, autoincrement=True)


job = sa.Table(
    "zeus_job",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("told_seq", BigInteger, nullable=False),  # number of closings so far
    Column("last_number", BigInteger, nullable=False),  # number of the newest trial
    Column("events", Text),  # JSON: which events hold, by DAG; NULL: no run has looked yet
)

trial = sa.Table(
    "zeus_trial",
    metadata,
    _row_id(),
    Column("job_id", Text, ForeignKey("zeus_job.job_id"), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("ti_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("dag_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("run_type", Text, nullable=False),
    Column("data_slice", Text),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("asked_after_seq", BigInteger, nullable=False),
    Column("told_seq", BigInteger),
    Column("opened_at", Double, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("lease_s", Double, nullable=False, server_default="86400"),  # length of the lease
    Column("closed_at", Double),
    Column("batch_size", BigInteger),  # NULL where the task was measured alone
    Column("phase", Text, nullable=False),
    Column("planned", JSON, nullable=False),
    Column("decision", JSON, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("epochs", Double),
    Column("samples", BigInteger),
    Column("samples_per_epoch", Double),
    Column("energy_j", Double),
    Column("time_s", Double),
    Column("rest_j", Double),
    Column("rest_s", Double),
    Column("excess_j", Double),
    Column("excess_s", Double),
    Column("paused_j", Double),  # while the training stood still
    Column("paused_s", Double),
    Column("metric", Double),
    Column("target_value", Double),
    Column("power_limit_w", Double),
    Column("device_model", Text),
    Column("device_count", Integer),
    Column("max_power_w", Double),
    Column("energy_source", Text),
    Column("gpu_uuid", Text),
    # of several GPUs: what each of them drew
    Column("gpu_energy_j", JSON(none_as_null=True)),
    Column("limit_found_w", Double),
    Column("learning_rate", Double),
    Column("start", Text),  # cold, shrunk or warm, as it was taken
    Column("served", Double),  # metric of the earlier model on the new data
    Column("from_ti_id", Text),  # the trial that trained the earlier model
    Column("from_attempt", Integer),
    Column("from_start", Text),
    Column("from_generations", Integer),  # of the earlier model since a cold start
    Column("from_age", Integer),  # runs of the job since that trial
    Column("start_id", Text),
    # of a run without a batch size: which kind of step its profile is of
    Column("step_kind", BigInteger),
    Column("gpu_busy", Double),  # share of the time in which the GPU worked
    Column("data_wait_s", Double),  # waited for batches
    Column("host_j", Double),  # of processors and memory beside the GPU; no part of energy_j
    Column("host_source", Text),
    # the metric of each epoch, at most 1000
    Column("epoch_metrics", JSON(none_as_null=True)),
    Column("out_of_memory", Boolean, nullable=False),
    Column("returned", Text),  # JSON of at most 4 kB: what the training function returned
    Column("price_per_kwh", Double),  # mean over the hours in which the energy was drawn
    Column("price_currency", Text),
    Column("price_source", Text),
    Column("price_at_once", Double),  # the same, had the run not waited for a cheaper start
    Column("g_co2e_per_kwh", Double),
    Column("g_co2e_source", Text),
    Column("g_co2e_at_once", Double),
    Column("reasons", JSON, nullable=False),
    # true: [zeus] measure named its task, and its figures are in zeus_outside_sum too; else NULL
    Column("outside", Boolean),
    sa.UniqueConstraint("ti_id", "attempt", name="uq_zeus_trial_key"),
    sa.UniqueConstraint("job_id", "number", name="uq_zeus_trial_number"),
)
# open trials of a job
sa.Index("ix_zeus_trial_state", trial.c.job_id, trial.c.state, trial.c.number)
sa.Index("ix_zeus_trial_run", trial.c.dag_id, trial.c.run_id)  # a run's page in the UI
# a DAG's page in the UI
sa.Index("ix_zeus_trial_dag", trial.c.dag_id, trial.c.job_id, trial.c.run_id, trial.c.number)
# runs to compare with
sa.Index("ix_zeus_trial_size", trial.c.job_id, trial.c.batch_size, trial.c.number)
# closed after a checkpoint
sa.Index("ix_zeus_trial_told", trial.c.job_id, trial.c.told_seq, trial.c.number)
# the page of all jobs reads these rows alone, however many tasks are measured from outside
_is_chosen = trial.c.outside.is_(None)
sa.Index(
    "ix_zeus_trial_chosen",
    trial.c.outside,  # else SQLite takes an index of all rows
    trial.c.dag_id,
    trial.c.job_id,
    trial.c.number,
    sqlite_where=_is_chosen,
    postgresql_where=_is_chosen,
)
sa.Index(
    "ix_zeus_trial_opened",
    trial.c.opened_at,
    sqlite_where=_is_chosen,
    postgresql_where=_is_chosen,
)

# Of trials measured from outside, also of those whose rows are deleted by now: a sum for each task
# and day, and one for all such tasks of a DAG in a month, whose job_id is "". An empty source or
# currency: there is none.
outside_sum = sa.Table(
    "zeus_outside_sum",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("dag_id", Text, primary_key=True),
    Column("begin_s", BigInteger, primary_key=True, autoincrement=False),
    Column("energy_source", Text, primary_key=True),
    Column("price_currency", Text, primary_key=True),
    Column("trials", BigInteger, nullable=False),
    # trials that are the first of their run
    Column("runs", BigInteger, nullable=False),
    # trials that reported no time
    Column("unknown", BigInteger, nullable=False),
    # trials that reported a time, and no energy though they have a source
    Column("without_energy", BigInteger, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("time_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False),
    # for the energy whose hours were priced, which is paid_j
    Column("paid", Double, nullable=False),
    Column("paid_j", Double, nullable=False),
    # of paid, by waiting for a cheaper start
    Column("start_saved", Double, nullable=False),
    Column("g_co2e", Double, nullable=False),
    Column("g_co2e_j", Double, nullable=False),
    Column("start_saved_g", Double, nullable=False),
)
sa.Index("ix_zeus_outside_sum_dag", outside_sum.c.dag_id, outside_sum.c.begin_s)

power = sa.Table(
    "zeus_trial_power",
    metadata,
    Column(
        "trial_id",
        BigInteger,
        ForeignKey("zeus_trial.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    # [[t_s, power_w, limit_w, phase], ...], at most 500
    Column("points", JSON, nullable=False),
)

profile = sa.Table(
    "zeus_profile_sample",
    metadata,
    _row_id(),
    Column("job_id", Text, ForeignKey("zeus_job.job_id"), nullable=False),
    Column("device_model", Text, nullable=False),
    Column("device_count", Integer, nullable=False),
    # "": not known; NULL would never compare equal
    Column("energy_source", Text, nullable=False),
    Column("batch_size", BigInteger, nullable=False),
    Column("limit_w", Double, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("time_s", Double, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("capped", Double),  # share of the time in which the board was power-capped
    Column("sm_clock_mhz", Double),
    Column("job_version", Text, nullable=False, server_default=""),
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
    Column("job_id", Text, ForeignKey("zeus_job.job_id"), primary_key=True),
    # belief_tag(job): what a belief depends on besides the log
    Column("tag", Text, primary_key=True),
    # the belief after this trial
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("told_seq", BigInteger, nullable=False),  # highest among the trials in it
    Column("belief", Text, nullable=False),
)

signal = sa.Table(  # series of prices and carbon intensities, asked for once for all jobs
    "zeus_signal",
    metadata,
    Column("name", Text, primary_key=True),
    Column("asked_at", Double, nullable=False),  # when a task last took it on to ask
    Column("series", Text),  # JSON; NULL: no answer yet
)


def upgrade() -> None:
    """Create the tables and their indexes."""
    from alembic import op

    for table in metadata.sorted_tables:
        op.execute(sa.schema.CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: index.name or ""):
            op.execute(sa.schema.CreateIndex(index))
