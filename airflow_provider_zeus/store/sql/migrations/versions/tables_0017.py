"""All tables.

Times are UTC seconds since the epoch by the store's clock; energies joules, powers watts.

A missing figure is NULL and ``reasons`` says why. The figures of a trial are those of
:class:`.Observation`, the columns ``from_*`` those of :class:`.Lineage`. ``zeus_outside_sum`` holds
sums of trials measured from outside: one for each task and day, and one for all such tasks of a DAG
in a month, whose ``job_id`` is "".

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
    Column("told_seq", BigInteger, nullable=False),  # by it a checkpoint is known to be out of date
    Column("last_number", BigInteger, nullable=False),  # a deleted trial's number is used up
    Column("events", Text),  # JSON: an event that holds is not sent again; NULL: no run has looked
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
    # A lease that ends far later than this allows was written by a clock that was ahead.
    Column("lease_s", Double, nullable=False, server_default="86400"),
    Column("closed_at", Double),
    Column("batch_size", BigInteger),  # NULL: measured alone, so there was none to choose
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
    Column("paused_j", Double),  # apart: a host that slept says nothing of a batch size
    Column("paused_s", Double),
    Column("metric", Double),
    Column("target_value", Double),
    Column("power_limit_w", Double),
    Column("device_model", Text),
    Column("device_count", Integer),
    Column("max_power_w", Double),
    Column("energy_source", Text),
    Column("gpu_uuid", Text),
    # Of several GPUs one that draws much more than its siblings has a fault.
    Column("gpu_energy_j", JSON(none_as_null=True)),
    Column("limit_found_w", Double),
    Column("learning_rate", Double),
    Column("start", Text),  # as it was taken: one that was only planned teaches nothing
    Column("served", Double),  # by the earlier model, on new data: was training worth it?
    Column("from_ti_id", Text),  # a key, as a row's id is another one in another log
    Column("from_attempt", Integer),
    Column("from_start", Text),
    Column("from_generations", Integer),  # warm starts in a row wear a model out
    Column("from_age", Integer),  # in runs: an old model may not know the newest data
    Column("start_id", Text),
    # Without a batch size nothing else says which samples of a profile compare.
    Column("step_kind", BigInteger),
    Column("gpu_busy", Double),  # an idle GPU waits for its data, and no limit helps
    Column("data_wait_s", Double),  # the GPU is paid for meanwhile, and does nothing
    Column("host_j", Double),  # no part of energy_j: the host serves other tasks too
    Column("host_source", Text),
    # Of 1000 epochs at most. A target that the first epoch reaches is too easy.
    Column("epoch_metrics", JSON(none_as_null=True)),
    Column("out_of_memory", Boolean, nullable=False),
    Column("returned", Text),  # at most 4 kB: the next run's environment has to hold it
    Column("price_per_kwh", Double),  # as known at the end: a later price changes no cost
    Column("price_currency", Text),
    Column("price_source", Text),
    Column("price_at_once", Double),  # the difference is what a later start saved
    Column("g_co2e_per_kwh", Double),
    Column("g_co2e_source", Text),
    Column("g_co2e_at_once", Double),
    Column("reasons", JSON, nullable=False),
    # True if [zeus] measure named its task, else NULL: pages of jobs must pass over such rows.
    Column("outside", Boolean),
    sa.UniqueConstraint("ti_id", "attempt", name="uq_zeus_trial_key"),
    sa.UniqueConstraint("job_id", "number", name="uq_zeus_trial_number"),
)
# Each request reads a job's open trials while it holds the job's lock.
sa.Index("ix_zeus_trial_state", trial.c.job_id, trial.c.state, trial.c.number)
sa.Index("ix_zeus_trial_run", trial.c.dag_id, trial.c.run_id)  # else a run's page reads all trials
# A DAG's page finds its newest runs here, without the long rows.
sa.Index("ix_zeus_trial_dag", trial.c.dag_id, trial.c.job_id, trial.c.run_id, trial.c.number)
sa.Index("ix_zeus_trial_size", trial.c.job_id, trial.c.batch_size, trial.c.number)
# Each request asks whether a trial was closed after a checkpoint that includes it.
sa.Index("ix_zeus_trial_told", trial.c.job_id, trial.c.told_seq, trial.c.number)
# The page of all jobs reads these rows alone, however many tasks are measured from outside.
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

# Kept as trials are written: a page reads a few sums and not a million rows, and old rows may go. A
# source or currency that is missing is empty, since a key cannot be NULL.
outside_sum = sa.Table(
    "zeus_outside_sum",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("dag_id", Text, primary_key=True),
    Column("begin_s", BigInteger, primary_key=True, autoincrement=False),
    Column("energy_source", Text, primary_key=True),
    Column("price_currency", Text, primary_key=True),
    Column("trials", BigInteger, nullable=False),
    # The first trials of their runs: people count runs, not tries.
    Column("runs", BigInteger, nullable=False),
    # They reported no time: no sum holds them, and pages say how many they are.
    Column("unknown", BigInteger, nullable=False),
    # They reported no energy though they have a source: energy_j beside them is a lower bound.
    Column("without_energy", BigInteger, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("time_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False),
    # For paid_j alone: hours without a price would make paid / energy_j too low.
    Column("paid", Double, nullable=False),
    Column("paid_j", Double, nullable=False),
    # Apart, since it is a cheaper start's saving and not a batch size's.
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
    # In a table of their own: they are most of a trial, and few readers want them.
    Column("points", JSON, nullable=False),
)

profile = sa.Table(
    "zeus_profile_sample",
    metadata,
    _row_id(),
    Column("job_id", Text, ForeignKey("zeus_job.job_id"), nullable=False),
    Column("device_model", Text, nullable=False),
    Column("device_count", Integer, nullable=False),
    # Empty if it is not known: NULL would never compare equal.
    Column("energy_source", Text, nullable=False),
    Column("batch_size", BigInteger, nullable=False),
    Column("limit_w", Double, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("time_s", Double, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("capped", Double),  # a limit that never binds saves nothing
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
    # Another target, version or window makes another belief of the same log (belief_tag).
    Column("tag", Text, primary_key=True),
    # Only the trials behind this one have to be learnt again.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("told_seq", BigInteger, nullable=False),  # shows whether a trial in it was closed since
    Column("belief", Text, nullable=False),
)

signal = sa.Table(  # kept, since each request to a service for a price or a carbon intensity costs
    "zeus_signal",
    metadata,
    Column("name", Text, primary_key=True),
    Column("asked_at", Double, nullable=False),  # set before a task asks, so that no other one does
    Column("series", Text),  # NULL: the row is there before an answer, as a lock
)


def upgrade() -> None:
    """Create the tables and their indexes."""
    from alembic import op

    for table in metadata.sorted_tables:
        op.execute(sa.schema.CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: index.name or ""):
            op.execute(sa.schema.CreateIndex(index))
