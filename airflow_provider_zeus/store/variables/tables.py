"""The document of a job as rows of the SQL store: a database in memory is filled, changed, and
written back.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.partial_sums import thinned, usable
from airflow_provider_zeus.model.trial import OUTSIDE, State, Trial
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.store.base import JobProfile
from airflow_provider_zeus.store.rows import DAMAGE, points_from_lists, points_to_lists, read_row
from airflow_provider_zeus.store.sql import measurements, schema
from airflow_provider_zeus.store.sql.engine import new_engine, transaction
from airflow_provider_zeus.store.sql.migrate import check
from airflow_provider_zeus.store.variables.document import (
    KEPT_POINTS,
    SAMPLES,
    LogDocument,
    packed,
    position,
)

KEPT_TRIALS = 500
RETURNED = 2  # the next run reads the newest alone, and values are long

_J = schema.job
_T = schema.trial
_t = _T.c
_P = schema.power
_C = schema.checkpoint
_COLUMNS = tuple(c.name for c in _T.c)
_JSON = {c.name for c in _T.c if isinstance(c.type, sa.JSON)}
_NEEDED = sorted({c.name for c in _T.c if not c.nullable} - {"id", "job_id"})
_ADD = str(sa.insert(_T).compile(dialect=sqlite.dialect(), column_keys=_COLUMNS))
# By a row's id the packed trial and its spec, so that a row that nobody changed, a damaged one too,
# is written back as it came.
Rows = dict[int, tuple[Any, Any]]

log = guarded_log(__name__)


@contextmanager
def empty_tables(*, write: bool = False) -> Iterator[sa.Connection]:
    """A transaction on tables in memory that are empty; nothing of it stays. Raises StoreError."""
    with transaction(_database(), write=write) as connection:
        yield connection
        connection.rollback()  # the next one finds them empty again


@cache
def _database() -> sa.Engine:
    """An engine each of whose connections is a database of its own in memory, with our tables and
    no row.
    """
    url = sa.make_url("sqlite:///:memory:")
    # Any thread may be the one that copies it.
    empty = sqlite3.connect(":memory:", check_same_thread=False)
    check(new_engine(url, lambda: empty), create=True)
    # Rows that do not change are not packed again, so changes are noted. An index takes longer to
    # fill with 500 rows than it saves.
    empty.executescript("""
    CREATE TABLE changed (id INTEGER PRIMARY KEY);
    DROP INDEX ix_zeus_trial_state;
    DROP INDEX ix_zeus_trial_dag;
    DROP INDEX ix_zeus_trial_size;
    DROP INDEX ix_zeus_trial_told;
    DROP INDEX ix_zeus_trial_chosen;
    DROP INDEX ix_zeus_trial_opened;
    CREATE TRIGGER note AFTER UPDATE ON zeus_trial BEGIN
        INSERT OR IGNORE INTO changed VALUES (new.id);
    END;
""")

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        empty.backup(connection)
        return connection

    # A child must not copy from a connection that its parent uses.
    os.register_at_fork(after_in_child=_database.cache_clear)
    return new_engine(url, connect)


def load(connection: sa.Connection, job_id: str, document: LogDocument) -> Rows:
    """Fill the tables from the document of a job. A damaged trial gives a row that cannot be read.

    Damaged samples and points are left out. Raises errors of the database.
    """
    events = document.events if isinstance(document.events, str) else None
    job = {
        "job_id": job_id,
        "told_seq": document.seq,
        "last_number": document.newest,
        "events": events,
    }
    connection.execute(sa.insert(_J), job)
    present = connection.execute(sa.select(_t.ti_id, _t.attempt))
    keys = {(row.ti_id, row.attempt) for row in present}
    loaded: Rows = {}
    ids: dict[Any, int] = {}
    rows = []
    specs = [json.dumps(spec) for spec in document.specs]
    last_id = connection.scalar(sa.func.max(_t.id)) or 0
    for row_id, data in enumerate(document.trials, last_id + 1):
        spec = None
        try:
            row = _row(data, specs)
            spec = document.specs[data["spec"]]
            if data["decision"]["policy"] == OUTSIDE:
                row["outside"] = True
            # The database would refuse the row, and with it the whole log.
            if row["number"] in ids or (row["ti_id"], row["attempt"]) in keys:
                raise ValueError("another row has its number or its key")
        except DAMAGE:
            row = _damaged(data, row_id, {*ids, *keys})
        loaded[row_id] = (data, spec)
        ids[row["number"]] = row_id
        keys.add((row["ti_id"], row["attempt"]))
        row |= {"id": row_id, "job_id": job_id}
        rows.append(tuple(row.values()))
    if rows:
        connection.exec_driver_sql(_ADD, rows)
    _load_measurements(connection, job_id, document, ids)
    if document.checkpoint:
        checkpoint = zip(_C.c.keys(), (job_id, *document.checkpoint), strict=True)
        connection.execute(sa.insert(_C), dict(checkpoint))
    return loaded


def _row(data: Any, specs: Sequence[str]) -> dict[str, Any]:
    """Column values of a packed trial. Raises an error of :data:`DAMAGE` if it is no row."""
    decision = data["decision"]
    attempts = [*decision["attempts"], decision.get("stand_in"), *decision["reliefs"]]
    planned = attempts[data["planned"]]
    own = {"planned": planned, "batch_size": planned["batch_size"], "phase": planned["phase"]}
    row = _values({**data, **own}) | {"spec": specs[data["spec"]]}
    data["ti_id"].encode()  # raises for half a character, which no database takes
    is_whole = None not in [row[name] for name in _NEEDED]
    if not is_whole or not _counts(row["number"], row["attempt"]):
        raise ValueError("a value is missing or no number")
    return row


def _damaged(data: Any, row_id: int, present: set[Any]) -> dict[str, Any]:
    """Column values of data that are no row: those that can be stored, a plan that is no JSON, a
    number and a key.

    :param present: numbers and keys of other rows.
    """
    row = _values(data if isinstance(data, dict) else {})
    row |= {name: "?" for name in _NEEDED if row[name] is None} | {"planned": "?"}
    if not _counts(row["number"]) or row["number"] in present:
        row["number"] = -0.5 - row_id  # no whole number, so it takes no trial's; below all of them
    is_key = _counts(row["attempt"]) and isinstance(row["ti_id"], str)
    if not is_key or (row["ti_id"], row["attempt"]) in present:
        row["ti_id"] = f"? {row_id}"
    return row


def _values(data: Mapping[str, Any]) -> dict[str, Any]:
    """All columns in order, with values that SQLite stores: a value of a wrong kind stays so, and
    is found there.
    """
    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    for name, value in data.items():
        if name in row and value is not None:
            row[name] = json.dumps(value) if name in _JSON else _storable(value)
    return row


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode(errors="replace").decode()
    fits = isinstance(value, (int, float)) and abs(value) < 2**63  # not NaN: SQLite makes it NULL
    if fits:
        return value
    return json.dumps(value)


def _counts(*numbers: Any) -> bool:
    return all(type(number) is int for number in numbers)


def _load_measurements(
    connection: sa.Connection, job_id: str, document: LogDocument, ids: Mapping[Any, int]
) -> None:
    for values in document.samples:
        with suppress(*DAMAGE):
            # A newer version may add values.
            named = dict(zip(SAMPLES, values, strict=False)) | {"job_id": job_id}
            profile = decode(JobProfile, named)
            samples = [sample for sample in profile.samples if usable(sample)]
            where = profile.where
            measurements.add_profile(
                connection, job_id, where, version=profile.job_version, new=samples
            )
    curves = {}
    for values in document.points:
        with suppress(*DAMAGE):
            number, points = values
            if isinstance(points, list):
                curves[ids[number]] = points
    if curves:
        rows = [{"trial_id": row_id, "points": points} for row_id, points in curves.items()]
        connection.execute(sa.insert(_P), rows)


def dump(connection: sa.Connection, job_id: str, rows: Rows, forgotten: int) -> LogDocument:
    """The document of a job: its newest 500 trials, with power points and the metric of each epoch
    the newest 20.

    :param rows: the result of :func:`load`, of all jobs that were loaded.
    :param forgotten: trials that are no longer in the log.
    """
    counted = sa.select(_J.c.told_seq, _J.c.last_number, _J.c.events).where(_J.c.job_id == job_id)
    seq, newest, events = connection.execute(counted).one()
    more = _forget(connection, job_id, newest)
    if more and not forgotten:
        log.warning(
            "Job %s: the Variable store keeps the newest %d attempts and drops older ones from now "
            "on; use PostgreSQL to keep all.",
            visible(job_id),
            KEPT_TRIALS,
        )
    trials, specs = _trials(connection, job_id, rows)
    profiles = [encode(profile) for profile in measurements.profiles(connection, job_id)]
    curves = sa.select(_t.number, _P.c.points).join(_P).where(_t.job_id == job_id)
    points = connection.execute(curves.order_by(_t.number)).all()
    beliefs = sa.select(_C.c.tag, _C.c.number, _C.c.told_seq, _C.c.belief)
    newest_first = beliefs.where(_C.c.job_id == job_id).order_by(_C.c.number.desc())
    checkpoint = connection.execute(newest_first.limit(1)).one_or_none()
    samples = [[of[name] for name in SAMPLES] for of in profiles if of["samples"]]
    return LogDocument(
        job_id=job_id,
        seq=seq,
        newest=newest,
        forgotten=forgotten + more,
        specs=specs,
        trials=trials,
        samples=samples,
        points=[[number, _few(curve)] for number, curve in points],
        events=events,
        checkpoint=tuple(checkpoint or ()),
    )


def _forget(connection: sa.Connection, job_id: str, newest: int) -> int:
    """Delete the rows that are too many for a Variable; return how many trials that are."""
    # The whole Variable is written at each question, so only the newest 20 keep their long parts.
    old = (_t.job_id == job_id, _t.number <= newest - 20)
    connection.execute(sa.delete(_P).where(_P.c.trial_id.in_(sa.select(_t.id).where(*old))))
    connection.execute(
        sa.update(_T).where(*old, _t.epoch_metrics.is_not(None)).values(epoch_metrics=sa.null())
    )
    kept = sa.text(  # by "began": a cleared run keeps its place, as for left_a_model()
        """
        WITH runs AS (
            SELECT *, CASE run_id WHEN '' THEN number
                ELSE min(number) OVER (PARTITION BY dag_id, run_id) END AS began
            FROM zeus_trial WHERE job_id = :job
        ), kept AS (
            SELECT id, row_number() OVER (
                PARTITION BY dag_id, map_index, run_type ORDER BY began DESC, number DESC
            ) AS nth
            FROM runs WHERE returned IS NOT NULL AND state IN :left
        )
        UPDATE zeus_trial SET returned = NULL
        WHERE id IN (SELECT id FROM kept WHERE nth > :returned)
        """
    ).bindparams(
        sa.bindparam("left", [state.value for state in State if state.left_model], expanding=True)
    )
    connection.execute(kept, {"job": job_id, "returned": RETURNED})
    newest_first = sa.select(_t.number).where(_t.job_id == job_id).order_by(_t.number.desc())
    too_many = newest_first.offset(KEPT_TRIALS).limit(1).scalar_subquery()
    more = connection.execute(
        sa.delete(_T).where(_t.job_id == job_id, _t.number <= too_many)
    ).rowcount
    if more:  # a belief has to follow from the trials that are left
        connection.execute(sa.delete(_C).where(_C.c.job_id == job_id))
    return more


def _trials(connection: sa.Connection, job_id: str, rows: Rows) -> tuple[list[Any], list[Any]]:
    """The packed trials in order of number, and the specs that they refer to.

    Damaged ones stay as they were.
    """
    changed = {*connection.exec_driver_sql("SELECT id FROM changed").scalars()}
    of_job = sa.select(_t.id).where(_t.job_id == job_id).order_by(_t.number)
    ids = list(connection.scalars(of_job))
    as_loaded = rows.keys() - changed
    new = connection.execute(sa.select(_T).where(_t.id.in_(set(ids) - as_loaded))).mappings()
    new_rows: dict[int, Mapping[Any, Any]] = {row["id"]: row for row in new}
    trials: list[Any] = []
    specs: list[Any] = []
    for row_id in ids:
        row = new_rows.get(row_id, {})
        trial = read_row(row) if row else None
        if isinstance(trial, Trial):
            trials.append(packed(trial, specs))
            continue
        data, spec = rows[row_id]
        if isinstance(data, dict):
            data = _moved(data, row)
            if spec is not None:
                data["spec"] = position(spec, specs)
        trials.append(data)
    return trials, specs


def _moved(data: Mapping[str, Any], row: Mapping[Any, Any]) -> dict[str, Any]:
    """A trial that stays as it was, but for the names that a rename has changed in its row."""
    moved = dict(data)
    for name in ("dag_id", "task_id"):
        if isinstance(data.get(name), str) and isinstance(row.get(name), str):
            moved[name] = row[name]
    return moved


def _few(points: Any) -> Any:
    if not isinstance(points, list) or len(points) <= KEPT_POINTS:
        return points
    return points_to_lists(thinned(points_from_lists(points), KEPT_POINTS))
