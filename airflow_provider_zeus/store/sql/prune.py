"""Delete power points and decisions of old trials, and the rows of those measured from outside.

The other rows stay with all figures, and of those measured from outside a sum for each day: so
costs, savings and sums over the life of a job do not change. Open trials, and those in the policy's
window, stay complete. Transactions are short, so that writers do not wait for the whole work.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Self

import sqlalchemy as sa

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import Phase, State, Trial
from airflow_provider_zeus.optimizer.policy import prior
from airflow_provider_zeus.store.base import Unreadable
from airflow_provider_zeus.store.sql import checkpoints, outside_sums, schema, trials
from airflow_provider_zeus.store.sql.engine import explained, file_of, transaction

TRIALS_A_STEP = 200  # some 4 MB: memory and transactions stay small
PAGES_A_STEP = 256  # 1 MB of an SQLite file, whose writers wait meanwhile

_T = schema.trial
_t = _T.c
_P = schema.power
_C = schema.checkpoint
_ended_at = sa.func.coalesce(_t.closed_at, _t.opened_at)
_decided = sa.and_(  # the policy learns from the decision of a failed try, so it stays
    _t.decision["attempts"].as_string() != "[]", _t.state != State.FAILED.value
)
Progress = Callable[["Pruned"], object]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The deleted parts of one job; bytes are those of the text in the database.

    ``folded`` are rows of trials measured from outside; ``whole`` are equally old trials that stay
    complete: open, or in the policy's window.
    """

    job_id: str
    points: int = 0
    point_bytes: int = 0
    decisions: int = 0
    decision_bytes: int = 0
    checkpoints: int = 0  # none of a job that still runs: its next run would read the whole log
    checkpoint_bytes: int = 0
    folded: int = 0  # a sum a day stays of them, so no cost changes
    folded_bytes: int = 0
    whole: int = 0  # shown, as a person may wonder why old trials stay

    @property
    def bytes(self) -> int:
        """All deleted bytes."""
        texts = self.point_bytes + self.decision_bytes + self.checkpoint_bytes
        return texts + self.folded_bytes

    def with_rows(self, rows: Sequence[Any], *, decisions: bool) -> Self:
        """The sums with these rows of ``_OLD`` added."""
        sizes = [_saved(row) for row in rows] if decisions else []
        return replace(
            self,
            points=self.points + sum(row.has_points for row in rows),
            point_bytes=self.point_bytes + sum(row.point_bytes for row in rows),
            decisions=self.decisions + sum(size > 0 for size in sizes),
            decision_bytes=self.decision_bytes + sum(max(size, 0) for size in sizes),
        )


def prune(
    engine: sa.Engine,
    job_id: str,
    before_s: float,
    *,
    decisions: bool = True,
    dry_run: bool = False,
    progress: Progress = lambda pruned: None,
) -> Pruned:
    """Delete power points of a job's trials that ended before ``before_s`` [s since the epoch].

    :param decisions: delete decisions too, and the checkpoints of a job that has not run since.
    :param dry_run: only count.
    :param progress: called after each step with the sums so far.

    Raises StoreError.
    """
    where = _where(engine, job_id, before_s)
    of_version = (
        sa.func.coalesce(_t.spec["job_version"].as_string(), where["version"]) == where["version"]
    )
    in_window = sa.and_(_t.number >= where["window"], of_version, _t.phase != Phase.MEASURED.value)
    whole = sa.select(sa.func.count()).where(
        _t.job_id == job_id,
        _ended_at < where["before"],
        sa.or_(_t.state == State.RUNNING.value, in_window),
    )
    with transaction(engine) as connection:
        pruned = Pruned(job_id, whole=connection.scalar(whole) or 0)
    folds: sa.ColumnElement[bool] = sa.false()
    if decisions:
        folds = outside_sums.is_old(job_id, before_s)  # a dry run must not count their points twice
        pruned = _folded(engine, pruned, before_s, dry_run=dry_run)
    for rows in _steps(engine, where | {"decisions": decisions, "folds": folds}):
        if not dry_run and not _delete(engine, job_id, rows, decisions=decisions):
            return pruned
        pruned = pruned.with_rows(rows, decisions=decisions)
        progress(pruned)
    if not decisions:
        return pruned
    return _without_checkpoints(engine, pruned, before_s, dry_run=dry_run)


def _folded(engine: sa.Engine, pruned: Pruned, before_s: float, *, dry_run: bool) -> Pruned:
    """Delete the rows of trials measured from outside; a sum for each day stays."""
    texts = (_t.planned, _t.decision, _t.spec, _t.reasons, _P.c.points)
    lengths = [sa.func.coalesce(sa.func.length(sa.cast(text, sa.Text)), 0) for text in texts]
    is_old = outside_sums.is_old(pruned.job_id, before_s)
    size = sa.func.coalesce(sa.func.sum(sum(lengths[1:], lengths[0])), 0)
    counted = sa.select(sa.func.count(), size).select_from(_T.outerjoin(_P)).where(is_old)
    with transaction(engine) as connection:
        count, size_bytes = connection.execute(counted).one()
    to_delete = 0 if dry_run else count
    while to_delete > 0:
        with transaction(engine, write=True) as connection:
            # A rename came between two steps: the rows belong to another job now.
            if not trials.lock_known(connection, pruned.job_id):
                return pruned
            outside_sums.fold(connection, pruned.job_id, before_s, most=TRIALS_A_STEP)
        to_delete -= TRIALS_A_STEP
    return replace(pruned, folded=count, folded_bytes=int(size_bytes))


def _where(engine: sa.Engine, job_id: str, before_s: float) -> dict[str, Any]:
    """Parameters of the statements.

    ``window``: number of the oldest trial in the policy's window.
    """
    with transaction(engine) as connection:
        newest = _newest(connection, job_id)
        if newest is None:
            return {"job": job_id, "before": before_s, "window": 0, "version": ""}
        nothing = {"job": job_id, "before": float("-inf"), "window": 0, "version": ""}
        # Its version may have a window that reaches further back: nothing is deleted.
        if isinstance(newest, Unreadable):
            return nothing
        try:
            job = newest.job
        except JobSpecError:  # of a newer version: its window is not known
            return nothing
        belief = checkpoints.belief_of(connection, job_id, prior(job), keep=False)
        window = belief.window_start()
    return {"job": job_id, "before": before_s, "window": window, "version": job.job_version}


def _newest(connection: sa.Connection, job_id: str) -> trials.Found | None:
    """The newest trial of a job; None if it has none."""
    for trial in trials.newest(connection, job_id, 1):
        return trial
    return None


def _steps(engine: sa.Engine, where: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """Rows with something to delete, in steps; reading them needs no lock."""
    has_points = _P.c.trial_id.is_not(None)
    outside = _t.spec["job_version"].as_string() != where["version"]
    old = (
        sa.select(
            _t.id,
            _t.number,
            _t.decision,
            _t.state,
            has_points.label("has_points"),
            sa.func.coalesce(sa.func.length(sa.cast(_P.c.points, sa.Text)), 0).label("point_bytes"),
        )
        .select_from(_T.outerjoin(_P))
        .where(
            _t.job_id == where["job"],
            _t.number > sa.bindparam("after"),
            _t.state != State.RUNNING.value,
            _ended_at < where["before"],
            sa.or_(_t.number < where["window"], outside, _t.phase == Phase.MEASURED.value),
            sa.or_(has_points, _decided) if where["decisions"] else has_points,
            sa.not_(where["folds"]),
        )
        .order_by(_t.number)
        .limit(TRIALS_A_STEP)
    )
    after = 0
    while True:
        with transaction(engine) as connection:
            rows = connection.execute(old, {"after": after}).all()
        if not rows:
            return
        yield rows
        # Rows that a dry run leaves must not come again.
        after = rows[-1].number


def _delete(engine: sa.Engine, job_id: str, rows: Sequence[Any], *, decisions: bool) -> bool:
    """Delete the power points and decisions of old rows; False if the job has got another name
    meanwhile: its next prune does it.
    """
    ids = [row.id for row in rows if row.has_points]
    long = [row for row in rows if _saved(row) > 0] if decisions else []
    short = [{"row": row.id, "short": _short(row.decision)} for row in long]
    with transaction(engine, write=True) as connection:
        if not trials.lock_known(connection, job_id):
            return False
        if ids:
            connection.execute(sa.delete(_P).where(_P.c.trial_id.in_(ids)))
        if short:
            of_row = sa.update(_T).where(_t.id == sa.bindparam("row"))
            connection.execute(of_row.values(decision=sa.bindparam("short")), short)
    return True


def _short(decision: dict[str, Any]) -> dict[str, Any]:
    """A decision without its attempts; the row itself has the one that it ran."""
    return {"attempts": [], "seed": decision["seed"], "policy": decision["policy"]}


def _saved(row: Any) -> int:
    """The bytes that a row's decision takes without need."""
    decision = row.decision
    if row.state == State.FAILED.value:
        return 0
    is_whole = isinstance(decision, dict) and decision.keys() >= {"seed", "policy"}
    if not is_whole:  # damaged: a person may repair it
        return 0
    return len(json.dumps(decision)) - len(json.dumps(_short(decision)))


def _without_checkpoints(
    engine: sa.Engine, pruned: Pruned, before_s: float, *, dry_run: bool
) -> Pruned:
    """Delete the checkpoints of a job that has not run since; they only save time."""
    with transaction(engine, write=not dry_run) as connection:
        if not dry_run and not trials.lock_known(connection, pruned.job_id):
            return pruned
        newest = _newest(connection, pruned.job_id)
        if not isinstance(newest, Trial):
            return pruned
        # The next run would have to learn the whole log again while a task waits.
        if newest.opened_at >= before_s or newest.state is State.RUNNING:
            return pruned
        idle = _C.c.job_id == pruned.job_id
        size_of_all = sa.func.coalesce(sa.func.sum(sa.func.length(_C.c.belief)), 0)
        count, size = connection.execute(sa.select(sa.func.count(), size_of_all).where(idle)).one()
        if not dry_run:
            connection.execute(sa.delete(_C).where(idle))
        return replace(pruned, checkpoints=count, checkpoint_bytes=size)


def give_back(engine: sa.Engine) -> int | None:
    """Release the free pages of an SQLite file to the disk, in steps; return the bytes that stay
    free.

    None if the database does so itself (PostgreSQL). Pages stay free if the file was created
    without
    ``auto_vacuum``: new trials use them. Raises StoreError.
    """
    if file_of(engine.url) is None:
        return None
    free = _answer(engine, "PRAGMA freelist_count")
    before = free + 1
    # A file without auto_vacuum gives back nothing, and the loop must end.
    while 0 < free < before:
        with transaction(engine, write=True) as connection:
            step = f"PRAGMA incremental_vacuum({PAGES_A_STEP:d})"
            _run(connection, step)
        before = free
        free = _answer(engine, "PRAGMA freelist_count")
    # In WAL mode a file shrinks at a checkpoint alone; a PASSIVE one waits for no reader.
    with engine.connect() as connection:
        _run(connection, "PRAGMA wal_checkpoint(PASSIVE)")
    return free * _answer(engine, "PRAGMA page_size")


def _run(connection: sa.Connection, pragma: str) -> None:
    """Run a pragma and read all its rows: an incremental vacuum frees one page per row."""
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(pragma)
            cursor.fetchall()
    except sqlite3.Error as error:
        raise explained(error, connection.engine.url) from None


def _answer(engine: sa.Engine, pragma: str) -> int:
    with transaction(engine) as connection:
        return int(connection.exec_driver_sql(pragma).scalar() or 0)
