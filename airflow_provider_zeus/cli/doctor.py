"""``airflow zeus doctor``: checks this host and the log and names remedies. It changes nothing."""

from __future__ import annotations

import platform
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airflow_provider_zeus.cli import checks_host
from airflow_provider_zeus.cli.finding import Finding, error, ok, show, undecided, warning
from airflow_provider_zeus.cli.shell import MIGRATE, command, not_migrated
from airflow_provider_zeus.errors import StoreError, ZeusError
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.power.device import Device, default_state_dir
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.store.base import UPGRADE, trial_label
from airflow_provider_zeus.store.open import open_store, runs_here, store_url
from airflow_provider_zeus.store.pending import pending_places
from airflow_provider_zeus.store.variables.airflow import AirflowVariables


@command
def doctor(args: Namespace) -> int:
    """Run all checks. Exit status 1 where one is an error."""
    findings = list(examine(args.conn_id))
    return show(findings, as_json=args.json)


def examine(conn_id: str) -> Iterator[Finding]:
    """Run the checks one by one and yield their findings."""
    yield _safely("versions", versions)
    try:
        config = ZeusConfig.read()
        finding = f"heartbeat every {config.heartbeat_s:g} s; a trial without one for {config.lease_s:g} s is dead"
        yield ok("configuration", f"[zeus] {finding}")
    except ZeusError as problem:
        folder = Path(default_state_dir())
        config = ZeusConfig(state_dir=folder, heartbeat_s=15.0, lease_s=90.0, cpu_watts=None, power_read_only=True)
        yield error("configuration", str(problem))
    state_dir, socket, devices = config.state_dir, config.power_socket, list[Device]()

    def find() -> Finding:
        devices.append(open_device("auto", state_dir=state_dir, host=config))
        return checks_host.device(devices[0])

    yield _safely("device", find)
    if devices:
        yield _safely("energy", lambda: checks_host.energy(devices[0]))
        if devices[0].clocks() is not None:
            yield _safely("cap", lambda: checks_host.cap(devices[0]))
        yield _safely("permission", lambda: checks_host.permission(devices[0], socket))
    yield _safely("state_dir", lambda: checks_host.state(state_dir))
    of_log = [
        _safely("store", lambda: store(conn_id)),
        _safely("schema", lambda: schema(conn_id)),
        _safely("trials", lambda: trials(conn_id)),
        _safely("executor", lambda: executor(conn_id)),
        _safely("pending costs", lambda: pending(state_dir)),
    ]
    cause = not_migrated() if any(f.status == "error" for f in of_log) else None
    if cause is not None:  # where they failed since Airflow has no database yet, that is the finding
        yield error("airflow", cause, MIGRATE)
        missing = "needs Airflow's metadata database: see airflow"
        of_log = [undecided(f.check, missing) if f.status == "error" else f for f in of_log]
    yield from of_log


def _safely(check: str, run: Callable[[], Finding]) -> Finding:
    try:
        return run()
    except ZeusError as problem:  # its message names the remedy
        return error(check, str(problem))
    except Exception as problem:  # one failed check does not stop the others
        return error(check, f"the check itself failed: {type(problem).__name__}: {problem}", "report this as a bug")


def versions(airflow: str | None = None) -> Finding:
    """Whether this version of Airflow is supported and tested. ``airflow``: by default the installed version."""
    airflow = airflow or version("apache-airflow-core")
    minor = tuple(int(part) for part in airflow.split(".")[:2])
    installed = []
    for package in ("airflow-provider-zeus", "torch", "nvidia-ml-py"):
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            installed.append(f"{package} not installed")
    finding = f"Airflow {airflow}, Python {platform.python_version()}, {', '.join(installed)}"
    minors = ((3, 2), (3, 3))
    tested = " and ".join(f"{major}.{minor}" for major, minor in minors)
    if not (3, 2) <= minor < (4, 0):
        return error("versions", finding, f"use Airflow >=3.2,<4 (tested: {tested})")
    if minor not in minors:
        return warning("versions", f"{finding}: this version of Airflow is not tested", f"tested are {tested}")
    return ok("versions", finding)


def store(conn_id: str) -> Finding:
    """Which store is used, and whether it can be reached. Raises StoreError."""
    url = store_url(conn_id)
    if url is None:
        variables = open_store(conn_id, create=False)
        return ok("store", f"{variables.identity}, {len(variables.jobs())} jobs: runs of a job must not overlap")
    identity, found = _schema_of(url)
    if found is None and url.startswith("sqlite") and runs_here():
        return ok("store", f"{identity}: not there yet, the first run of a job creates it")
    return ok("store", f"{identity} can be reached")


def schema(conn_id: str) -> Finding:
    """Whether the tables have the schema of this version. Raises StoreError."""
    url = store_url(conn_id)
    if url is None:
        return ok("schema", "Variables have no tables")
    from airflow_provider_zeus.store.sql.migrate import OTHER_VERSION
    from airflow_provider_zeus.store.sql.schema import HEAD

    _, found = _schema_of(url)
    if found == HEAD:
        return ok("schema", f"{HEAD}, up to date")
    if found is not None:
        return error("schema", f"{found}; this version knows {HEAD} alone", OTHER_VERSION)
    if url.startswith("sqlite") and runs_here():
        return ok("schema", "no tables yet: the next run makes them")
    return error("schema", "no tables yet", f"run '{UPGRADE}' once")


def trials(conn_id: str) -> Finding:
    """Whether all trials of the log can be read; it reads them all. Raises StoreError."""
    from airflow_provider_zeus.store.sql.migrate import missing_file

    url = store_url(conn_id)
    if url is not None and missing_file(url) is not None:
        return ok("trials", "no log yet")
    with closing(open_store(conn_id, create=False)) as store:
        count = sum(len(store.trials(job_id)) for job_id in store.jobs())
        left_out = [f"{trial_label(damage)}: {damage.problem}" for damage in store.unreadable]
    if not left_out:
        return ok("trials", f"all {count} can be read")
    finding = f"{len(left_out)} of {count + len(left_out)} cannot be read and are ignored: {'; '.join(left_out)}"
    return warning("trials", finding, "restore these rows from a backup, or delete them")


def _schema_of(url: str) -> tuple[str, str | None]:
    """Address of the log and schema of its tables or None. Creates no file. Raises StoreError."""
    from airflow_provider_zeus.store.sql.engine import engine_of, forget, read_url, shown
    from airflow_provider_zeus.store.sql.migrate import present_version

    parsed = read_url(url)
    engine = engine_of(parsed)
    try:
        return shown(parsed), present_version(engine)
    finally:
        forget(engine)


def executor(conn_id: str) -> Finding:
    """Whether all hosts on which tasks run can reach the store."""
    from airflow.sdk import conf

    name = conf.get("core", "executor", fallback="") or "LocalExecutor"
    if runs_here():
        return ok("executor", f"{name}: every task runs on this host, so a file is enough")
    try:
        url = store_url(conn_id)
    except StoreError:
        finding = f"{name}: tasks run on other hosts, and no store is defined that they all reach"
        return error("executor", finding, f"define Connection {conn_id!r} to a PostgreSQL database")
    if url is not None and url.startswith("sqlite"):
        finding = f"{name}: tasks run on other hosts, and each would write its own SQLite file"
        return error("executor", finding, f"define Connection {conn_id!r} to a PostgreSQL database")
    return ok("executor", f"{name}: tasks run on other hosts and share the store")


def pending(state_dir: Path) -> Finding:
    """Whether costs wait to be stored in the log. Raises StoreError."""
    waiting = pending_places(AirflowVariables(), state_dir)
    if not waiting:
        return ok("pending costs", "none")
    shown = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    finding = f"{len(waiting)} wait to be stored in the log: {shown}"
    return warning("pending costs", finding, "run 'airflow zeus repair', or run the job again")
