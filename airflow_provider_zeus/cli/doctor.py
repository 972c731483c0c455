"""``airflow zeus doctor``: checks this host and names remedies. Only ``--restore`` changes anything."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_zeus.cli import checks_device, checks_power, checks_store
from airflow_provider_zeus.cli.finding import Finding, error, ok, show, undecided
from airflow_provider_zeus.cli.servers import MIGRATE, not_migrated
from airflow_provider_zeus.cli.shell import command
from airflow_provider_zeus.errors import ZeusError

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.config import ZeusConfig
    from airflow_provider_zeus.power.device import Device


@command
def doctor(args: Namespace) -> int:
    """Run all checks. Exit status 1 where one is an error."""
    findings = list(examine(args.conn_id, restore=args.restore))
    return show(findings, as_json=args.json)


def examine(conn_id: str, *, restore: bool = False) -> Iterator[Finding]:
    """Run the checks one by one and yield their findings."""
    yield _safely("versions", checks_store.versions)
    config, finding = _config()
    state_dir = config.state_dir
    yield finding
    device, finding = _device(config)
    yield finding
    if device is not None:
        yield _safely("energy", lambda: checks_device.energy(device))
        yield _safely("permission", lambda: checks_power.permission(device, config.power_socket))
    if restore:
        yield _safely("restore", lambda: checks_power.restore(state_dir))
    yield _safely("state_dir", lambda: checks_device.state(state_dir))
    yield from _with_cause(
        [
            _safely("store", lambda: checks_store.store(conn_id)),
            _safely("schema", lambda: checks_store.schema(conn_id)),
            _safely("trials", lambda: checks_store.trials(conn_id)),
            _safely("executor", lambda: checks_store.executor(conn_id)),
            _safely("untold costs", lambda: checks_store.pending(state_dir)),
        ]
    )


def _with_cause(findings: list[Finding]) -> Iterator[Finding]:
    """The findings; where they failed since Airflow has no database yet, that is the finding."""
    problem = not_migrated() if any(f.status == "error" for f in findings) else None
    if problem is None:
        yield from findings
        return
    yield error("airflow", problem, MIGRATE)
    for f in findings:
        yield undecided(f.check, "needs Airflow's metadata database: see airflow") if f.status == "error" else f


def _safely(check: str, run: Callable[[], Finding]) -> Finding:
    try:
        return run()
    except ZeusError as problem:  # its message names the remedy
        return error(check, str(problem))
    except Exception as problem:  # one failed check does not stop the others
        return error(check, f"the check itself failed: {type(problem).__name__}: {problem}", "report this as a bug")


def _config() -> tuple[ZeusConfig, Finding]:
    from airflow_provider_zeus.operators.config import ZeusConfig
    from airflow_provider_zeus.power.device import default_state_dir

    try:
        config = ZeusConfig.read()
    except ZeusError as problem:
        state_dir = Path(default_state_dir())
        default = ZeusConfig(state_dir=state_dir, heartbeat_s=15.0, lease_s=90.0, cpu_watts=None, power_read_only=True)
        return default, error("configuration", str(problem))
    finding = f"[zeus] heartbeat every {config.heartbeat_s:g} s; a trial without one for {config.lease_s:g} s is dead"
    return config, ok("configuration", finding)


def _device(config: ZeusConfig) -> tuple[Device | None, Finding]:
    from airflow_provider_zeus.power.factory import open_device

    opened: list[Device] = []

    def find() -> Finding:
        device = open_device(
            "auto",
            state_dir=config.state_dir,
            cpu_watts=config.cpu_watts,
            read_only=config.power_read_only,
            power_socket=config.power_socket,
        )
        opened.append(device)
        return checks_device.device(device)

    finding = _safely("device", find)
    return (opened[0] if opened else None), finding
