"""``airflow zeus db upgrade``, ``reap``, ``prune`` and ``uninstall``: what is done to the log and what lies beside it.

Migrate the tables, clean up after the dead, delete old rows; say what lies where, and how to take it away.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing

from airflow_provider_zeus.cli.shell import command, known, of_all_jobs, opened, say
from airflow_provider_zeus.errors import JobSpecError, StoreError, UndefinedConnectionError
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.power.limits.record import restore_orphans
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, open_store, state_dir, store_url
from airflow_provider_zeus.store.pending import drain, pending_places
from airflow_provider_zeus.store.sql.engine import clock, engine_of, file_of, forget, read_url, shown, transaction
from airflow_provider_zeus.store.sql.migrate import check, missing_file, present_version
from airflow_provider_zeus.store.sql.prune import TRIALS_A_STEP, Pruned, give_back
from airflow_provider_zeus.store.sql.prune import prune as prune_job
from airflow_provider_zeus.store.sql.schema import HEAD, VERSION_TABLE, metadata
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.units import counted


@command
def upgrade(args: Namespace) -> None:
    """Create or migrate the tables of the trial log."""
    say(upgrade_tables(args.conn_id))


def upgrade_tables(conn_id: str = DEFAULT_CONN_ID) -> str:
    """Bring the database of a Connection (by default ``zeus.db``) to this version's schema.

    Returns a sentence that says what was done. Raises StoreError.
    """
    url = store_url(conn_id)
    if url is None:
        return f"Connection {conn_id!r} keeps the trial log in Airflow Variables: there is nothing to upgrade."
    parsed = read_url(url)
    engine = engine_of(parsed)
    try:
        before = present_version(engine)
        check(engine, create=True)
    finally:
        forget(engine)
    if before == HEAD:
        return f"The trial log at {shown(parsed)} is up to date: schema {HEAD}."
    return f"The trial log at {shown(parsed)} now has schema {HEAD} ({f'was {before}' if before else 'new'})."


@command
def reap(args: Namespace) -> int:
    """Restore power limits, store pending costs, close expired trials; exit status 1 where a cost or a job is left."""
    state_dir = ZeusConfig.read().state_dir
    restored = restore_orphans(state_dir)  # first: it needs no store
    say(f"Power limits in {state_dir}: {counted(restored, 'orphaned record')} restored.")
    url, variables = store_url(args.conn_id), AirflowVariables()
    path = None if url is None else missing_file(url)
    if path is not None:
        say(f"There is no trial log yet at {path}, which the first run of a job creates: no trial is open.")
        return _report_costs(0, str(path), pending_places(variables, state_dir))
    with opened(args) as store:
        stored = drain(store, variables, None, state_dir=state_dir)  # before the leases: a stored trial is not expired
        status = _report_costs(stored, store.identity, pending_places(variables, state_dir))
        reaped, damaged = of_all_jobs(store, store.reap)
    closed = [trial for trials in reaped.values() for trial in trials]
    say(f"Expired trials: {counted(len(closed), 'trial')} closed as abandoned.")
    for trial in closed:
        say(f"  {trial.job_id}: trial {trial.number} of run {trial.origin.run_id or '-'}")
    return max(status, damaged)


def _report_costs(stored: int, identity: str, left: list[str]) -> int:
    """Print how many pending costs were stored and which are left; return the exit status."""
    say(f"Pending costs: {counted(stored, 'cost')} stored in {identity}, {len(left)} left.")
    for where in left:
        say(f"  left: {where}")
    return 1 if left else 0


_SAY_EVERY = 2000  # trials between two lines of progress


@command
def prune(args: Namespace) -> None:
    """Delete power points and decisions of old trials; with ``--dry-run`` only report them."""
    age_s, url = seconds_of(args.older_than), store_url(args.conn_id)
    with opened(args) as store:
        jobs = store.jobs() if args.job is None else [known(store, args.job)]
        if url is None:
            say(
                "Nothing to prune: Airflow Variables keep the newest 500 trials of a job and the power points of its "
                "newest 20 anyway."
            )
            return
        engine = engine_of(read_url(url))
        with transaction(engine) as connection:
            before_s = clock(connection) - age_s
        done = []
        for job_id in jobs:
            options = {"decisions": not args.keep_trials, "dry_run": args.dry_run}
            done.append(prune_job(engine, job_id, before_s, progress=_progress, **options))
            say(_summary(done[-1]))
        total = size_text(sum(pruned.bytes for pruned in done))
        if args.dry_run:
            say(f"{total} would be deleted from {store.identity}; nothing was changed.")
            return
        say(f"{total} deleted from {store.identity}.")
        free = give_back(engine)
    if free:
        say(
            f"{size_text(free)} of the file are free for new trials. To make the file smaller, stop all runs, then: "
            f"sqlite3 {engine.url.database} 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'"
        )


def seconds_of(text: str) -> float:
    """Seconds of an age such as 12h, 90d or 2w. Raises JobSpecError."""
    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text.strip())
    if found is None or int(found[1]) == 0:
        raise JobSpecError.of("--older-than", text, "not an age", "Write hours, days or weeks: 12h, 90d, 2w")
    return int(found[1]) * {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}[found[2]]


def size_text(size: int) -> str:
    """Bytes as text."""
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= of:
            return f"{size / of:.3g} {unit}"
    return f"{size} bytes"


def _summary(pruned: Pruned) -> str:
    """What is deleted of one job."""
    parts = [f"power points of {pruned.points} trials ({size_text(pruned.point_bytes)})"]
    if pruned.decisions:
        parts.append(f"decisions of {pruned.decisions} ({size_text(pruned.decision_bytes)})")
    if pruned.checkpoints:
        parts.append(f"{pruned.checkpoints} checkpoints ({size_text(pruned.checkpoint_bytes)})")
    whole = f"; {pruned.whole} others of that age are kept (open, or in the policy's window)" if pruned.whole else ""
    return f"{pruned.job_id}: {', '.join(parts)}{whole}"


def _progress(pruned: Pruned) -> None:
    """Print a line of progress every :data:`_SAY_EVERY` trials."""
    seen = max(pruned.points, pruned.decisions)
    if seen >= _SAY_EVERY and seen % _SAY_EVERY < TRIALS_A_STEP:
        say(f"{pruned.job_id}: {seen} trials so far", file=sys.stderr)


# ------------------------------------------------------------------ what lies where
Step = tuple[str, str, str]  # what, where it lies, how to take it away


@command
def uninstall(args: Namespace) -> None:
    """Say what is to be removed, in the order in which it is."""
    if not args.dry_run:
        remedy = "call it with --dry-run, which lists what is where and how to remove it"
        raise JobSpecError.of("airflow zeus uninstall", "", "it removes nothing itself", remedy)
    for number, (what, where, how) in enumerate(_steps(args.conn_id), 1):
        say(f"{number}. {what}: {where}")
        say(f"   -> {how}")


def _steps(conn_id: str) -> Iterator[Step]:
    from airflow.sdk import conf

    def jobs_dags() -> str:
        with closing(open_store(conn_id, create=False)) as store:
            found = sorted({trial.origin.dag_id for trial in store.latest(last=1)})
        return f"{', '.join(found) or 'none'} in the log"

    folder = state_dir()
    how = "take @task.zeus, the Zeus operators and ZeusTrial out of them; to wait with that, set [zeus] enabled = False"
    yield "DAGs", _known(jobs_dags), how
    costs = _known(lambda: ", ".join(pending_places(AirflowVariables(), folder)) or "none")
    how = "airflow zeus reap on every host: it stores these costs, and gives back power limits of dead trainings"
    yield "pending costs", costs, how
    yield _log(conn_id)
    variables = _known(lambda: ", ".join(AirflowVariables().keys("zeus-")) or "none")
    yield "Variables", variables, "airflow variables delete KEY"
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    where = f"{folder}, {len(files)} files" if folder.is_dir() else f"{folder}, not there"
    yield "state folder of this host", where, f"rm -r {folder}, on every host that trains, after 'airflow zeus reap'"
    where = conf.get("zeus", "attempt_root", fallback="").strip()
    where = where or "folders zeus-attempt-... in the folder for temporary files of each host that trains"
    yield "kept models", where, "they are yours: remove those that no task reads any more"
    socket = conf.get("zeus", "power_socket", fallback="").strip()
    where = f"zeus-power-sidecar on hosts with GPUs, {f'socket {socket}' if socket else 'where it was set up'}"
    how = "stop it, which gives back the limits that it set; then rm -r /run/zeus /run/zeus-limits"
    yield "power sidecar", where, how
    how = "airflow connections list, then airflow connections delete CONN_ID"
    yield "Connections", "those of the types zeus and zeus_signal", how
    yield "settings", "section [zeus] of airflow.cfg, variables AIRFLOW__ZEUS__...", "delete them on every host"
    how = "pip uninstall airflow-provider-zeus, then restart Airflow's servers"
    yield "package", "every host of Airflow, and the images that train", how


def _known(find: Callable[[], str]) -> str:
    """What is found; where the store cannot be read, why it is not known. Raises UndefinedConnectionError: misspelt."""
    try:
        return find()
    except UndefinedConnectionError:
        raise
    except StoreError as error:
        return f"not known ({error})"


def _log(conn_id: str) -> Step:
    keep = "airflow zeus export --output trials.csv keeps its figures"
    try:
        url = store_url(conn_id)
    except StoreError as error:
        return "trial log", f"not known ({error})", keep
    if url is None:
        return "trial log", "Airflow Variables", f"{keep}; then delete the Variables below"
    parsed = read_url(url)
    file = file_of(parsed)
    if file is not None:
        there = "" if file.exists() else ", not there yet"
        return "trial log", f"{file}{there}", f"{keep}; then rm -f {file} {file}-wal {file}-shm {file}-journal"
    tables = ", ".join([*(table.name for table in reversed(metadata.sorted_tables)), VERSION_TABLE])
    return "trial log", shown(parsed), f"{keep}; then DROP TABLE {tables};"
