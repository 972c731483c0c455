"""``airflow zeus doctor``: checks this host and the log and names remedies. It changes nothing."""

from __future__ import annotations

import platform
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airflow_provider_zeus.cli import checks_host, checks_measure
from airflow_provider_zeus.cli.finding import Finding, error, ok, show, undecided, warning
from airflow_provider_zeus.cli.shell import MIGRATE, command, not_migrated
from airflow_provider_zeus.errors import StoreError, ZeusError
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.power.device import Device, default_state_dir
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.signals.prices import in_force, of_airflow
from airflow_provider_zeus.store.base import UPGRADE, trial_label
from airflow_provider_zeus.store.open import (
    DEFAULT_CONN_ID,
    find_connection,
    open_store,
    runs_here,
    store_url,
)
from airflow_provider_zeus.store.pending import pending_places
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.task_patterns import TaskPatterns
from airflow_provider_zeus.units import counted


@command
def doctor(args: Namespace) -> int:
    """Run all checks. Exit status 1 if one is an error."""
    findings = list(examine(args.conn_id, args.measure))
    return show(findings, as_json=args.json)


def examine(conn_id: str, measure: str | None = None) -> Iterator[Finding]:
    """Run the checks one by one and yield their findings.

    :param measure: patterns to look at in place of those of ``[zeus] measure``.
    """
    yield _safely("versions", versions)
    try:
        config = ZeusConfig.read()
        yield ok(
            "configuration",
            f"[zeus] heartbeat every {config.heartbeat_s:g} s; an attempt without one for "
            f"{config.lease_s:g} s is dead",
        )
    except ZeusError as problem:
        folder = Path(default_state_dir())
        config = ZeusConfig(
            state_dir=folder, heartbeat_s=15.0, lease_s=90.0, cpu_watts=None, power_read_only=True
        )
        yield error("configuration", str(problem))
    state_dir = config.state_dir
    socket = config.power_socket
    # Opened once for all checks of it: a driver takes its time to start.
    devices = list[Device]()

    def find() -> Finding:
        devices.append(open_device("auto", state_dir=state_dir, host=config))
        return checks_host.device(devices[0])

    # a host without a GPU is no error: batch sizes are tuned on time alone
    yield _safely("device", find)
    if devices:
        yield _safely("energy", checks_host.energy, devices[0])
        # without clocks a locked one cannot be told from a cap
        if devices[0].clocks() is not None:
            yield _safely("cap", checks_host.cap, devices[0])
        yield _safely("permission", checks_host.permission, devices[0], socket)
    yield _safely("state_dir", checks_host.state, state_dir)
    of_log = [
        _safely("store", store, conn_id),
        _safely("schema", schema, conn_id),
        _safely("runs", trials, conn_id),
        _safely("executor", executor, conn_id),
        _safely("pending costs", pending, state_dir),
        _safely("measure", named_tasks, measure),
        _safely("refused DAGs", refused),
        _safely("factors", factors),
    ]
    yield from _explained(of_log)


def _explained(of_log: Sequence[Finding]) -> Iterator[Finding]:
    """The findings of the log; if they failed since Airflow has no database yet, that is one."""
    # Many errors would hide the one cause that they have.
    failed = [finding for finding in of_log if finding.status == "error"]
    cause = not_migrated() if failed else None
    if cause is not None:
        yield error("airflow", cause, MIGRATE)
    for finding in of_log:
        if cause is not None and finding in failed:
            yield undecided(finding.check, "needs Airflow's metadata database: see airflow")
        else:
            yield finding


def _safely(check: str, run: Callable[..., Finding], *of: object) -> Finding:
    try:
        return run(*of)
    except ZeusError as problem:  # its message names the remedy
        return error(check, str(problem))
    except Exception as problem:  # one failed check does not stop the others
        return error(
            check,
            f"the check itself failed: {type(problem).__name__}: {problem}",
            "report this as a bug",
        )


def versions(airflow: str | None = None) -> Finding:
    """Whether this version of Airflow is supported and tested.

    ``airflow``: by default the installed version.
    """
    airflow = airflow or version("apache-airflow-core")
    # Patches of a version are compatible.
    minor = tuple(int(part) for part in airflow.split(".")[:2])
    installed = []
    for package in ("airflow-provider-zeus", "torch", "nvidia-ml-py"):
        try:
            installed.append(f"{package} {version(package)}")
        # torch and the driver's binding are optional.
        except PackageNotFoundError:
            installed.append(f"{package} not installed")
    finding = f"Airflow {airflow}, Python {platform.python_version()}, {', '.join(installed)}"
    minors = ((3, 2), (3, 3))
    prerelease = "3.4.0b2"
    tested = f"3.2, 3.3 and {prerelease}"
    if not (3, 2) <= minor < (4, 0):
        return error("versions", finding, f"use Airflow >=3.2,<4 (tested: {tested})")
    if minor not in minors and airflow != prerelease:
        return warning(
            "versions", f"{finding}: this version of Airflow is not tested", f"tested are {tested}"
        )
    return ok("versions", finding)


def store(conn_id: str) -> Finding:
    """Which store is used, and whether it can be reached. Raises StoreError."""
    url = store_url(conn_id)
    if url is None:
        variables = open_store(conn_id, create=False)
        jobs = counted(len(variables.jobs()), "job")
        return ok(
            "store",
            f"{variables.identity}, {jobs}: runs of a job must not overlap",
        )
    identity, present = _schema_of(url)
    # An empty database on one host is made by its first run; a shared one is not.
    if present is None and _is_made_by_a_run(url):
        return ok("store", f"{identity}: not there yet, the first run of a job creates it")
    return ok("store", f"{identity} can be reached")


def schema(conn_id: str) -> Finding:
    """Whether the tables have the schema of this version. Raises StoreError."""
    url = store_url(conn_id)
    if url is None:
        return ok("schema", "Variables have no tables")
    from airflow_provider_zeus.store.sql.migrate import OTHER_VERSION
    from airflow_provider_zeus.store.sql.schema import HEAD

    _, present = _schema_of(url)
    if present == HEAD:
        return ok("schema", f"{HEAD}, up to date")
    if present is not None:
        return error("schema", f"{present}; this version knows {HEAD} alone", OTHER_VERSION)
    if _is_made_by_a_run(url):
        return ok("schema", "no tables yet: the next run makes them")
    return error("schema", "no tables yet", f"run '{UPGRADE}' once")


def _is_made_by_a_run(url: str) -> bool:
    """Whether the first run of a job makes the log: a file on the one host that runs tasks."""
    return url.startswith("sqlite") and runs_here()


def trials(conn_id: str) -> Finding:
    """Whether all trials of the log can be read; it reads them all. Raises StoreError."""
    from airflow_provider_zeus.store.sql.migrate import missing_file

    url = store_url(conn_id)
    if url is not None and missing_file(url) is not None:
        return ok("runs", "no log yet")
    # A check must not make a log.
    with closing(open_store(conn_id, create=False)) as store:
        count = sum(len(store.trials(job_id)) for job_id in store.jobs())
        left_out = [f"{trial_label(damage)}: {damage.problem}" for damage in store.unreadable]
    if not left_out:
        return ok("runs", f"{counted(count, 'attempt')}, all can be read")
    whole = counted(count + len(left_out), "attempt")
    verb = "is" if len(left_out) == 1 else "are"
    finding = f"{len(left_out)} of {whole} cannot be read and {verb} ignored: {'; '.join(left_out)}"
    return warning("runs", finding, "restore these rows from a backup, or delete them")


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
    others = f"{name}: tasks run on other hosts"
    remedy = f"define Connection {conn_id!r} to a PostgreSQL database"
    try:
        url = store_url(conn_id)
    # Without a Connection there is the default file alone, which other hosts do not see.
    except StoreError:
        return error("executor", f"{others}, and no store is defined that they all reach", remedy)
    if url is not None and url.startswith("sqlite"):
        return error("executor", f"{others}, and each would write its own SQLite file", remedy)
    return ok("executor", f"{others} and share the store")


def pending(state_dir: Path) -> Finding:
    """Whether costs wait to be stored in the log. Raises StoreError."""
    waiting = pending_places(AirflowVariables(), state_dir)
    if not waiting:
        return ok("pending costs", "none")
    finding = f"{len(waiting)} wait to be stored in the log: {', '.join(waiting[:3])}"
    if len(waiting) > 3:
        finding += f" and {len(waiting) - 3} more"
    return warning("pending costs", finding, "run 'airflow zeus repair', or run the job again")


def named_tasks(text: str | None) -> Finding:
    """The tasks that ``[zeus] measure`` names, or a text in its place. Raises StoreError."""
    if text is None:
        text = of_airflow("measure")
    patterns = TaskPatterns.parse(text)
    if not patterns.included:
        return checks_measure.of_patterns(patterns, (), in_variables=False)
    in_variables = store_url(DEFAULT_CONN_ID) is None
    dags = checks_measure.known_dags()
    return checks_measure.of_patterns(patterns, dags, in_variables=in_variables)


def refused() -> Finding:
    """Which DAGs Airflow refuses while ``[zeus] measure`` is set."""
    is_set = bool(TaskPatterns.parse(of_airflow("measure")).included)
    return checks_measure.of_refused(checks_measure.known_dags(), is_set=is_set)


def factors() -> Finding:
    """Whether energy can be shown as money and as CO2e."""
    prices = in_force()
    has_price = prices.price_per_kwh is not None or find_connection("zeus_price") is not None
    has_carbon = prices.g_co2e_per_kwh is not None or find_connection("zeus_carbon") is not None
    return checks_measure.of_factors(has_price=has_price, has_carbon=has_carbon)
