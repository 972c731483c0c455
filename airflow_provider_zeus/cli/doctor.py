"""``airflow zeus doctor``: what is found here, and what to do about it. Nothing is changed but by ``--restore``."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_zeus.cli import checks_device, checks_power, checks_store
from airflow_provider_zeus.cli.finding import Finding, error, ok
from airflow_provider_zeus.cli.shell import command, print_json, say
from airflow_provider_zeus.errors import ZeusError

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.recurrence import Settings
    from airflow_provider_zeus.power.device import Device


@command
def doctor(args: Namespace) -> int:
    """Run every check; 1 where one is an error."""
    findings = list(examine(args.conn_id, restore=args.restore))
    if args.json:
        print_json([asdict(f) for f in findings])
    else:
        for line in _lines(findings):
            say(line)
    return 1 if any(f.status == "error" for f in findings) else 0


def examine(conn_id: str, *, restore: bool = False) -> Iterator[Finding]:
    """What each check finds, in order."""
    yield _safely("versions", checks_store.versions)
    settings, configuration = _settings()
    state_dir = settings.state_dir
    yield configuration
    device, found = _device(settings)
    yield found
    if device is not None:
        yield _safely("energy", lambda: checks_device.energy(device))
        yield _safely("permission", lambda: checks_power.permission(device, settings.power_socket))
    if restore:
        yield _safely("restore", lambda: checks_power.restore(state_dir))
    yield _safely("state_dir", lambda: checks_device.state(state_dir))
    yield _safely("store", lambda: checks_store.store(conn_id))
    yield _safely("schema", lambda: checks_store.schema(conn_id))
    yield _safely("trials", lambda: checks_store.trials(conn_id))
    yield _safely("executor", lambda: checks_store.executor(conn_id))
    yield _safely("untold costs", lambda: checks_store.untold(state_dir))


def _safely(check: str, run: Callable[[], Finding]) -> Finding:
    try:
        return run()
    except ZeusError as problem:  # its message ends with the remedy
        return error(check, str(problem))
    except Exception as problem:  # a check that fails is a finding too
        return error(check, f"the check itself failed: {type(problem).__name__}: {problem}", "report this as a bug")


def _settings() -> tuple[Settings, Finding]:
    from airflow_provider_zeus.operators.recurrence import Settings
    from airflow_provider_zeus.power.device import default_state_dir

    try:
        settings = Settings.read()
    except ZeusError as problem:
        state_dir = Path(default_state_dir())
        default = Settings(state_dir=state_dir, heartbeat_s=15.0, lease_s=90.0, cpu_watts=None, power_read_only=True)
        return default, error("configuration", str(problem))
    beat, lease = f"{settings.heartbeat_s:g}", f"{settings.lease_s:g}"
    said = f"[zeus] heartbeat every {beat} s, a trial without one for {lease} s counts as dead"
    return settings, ok("configuration", said)


def _device(settings: Settings) -> tuple[Device | None, Finding]:
    from airflow_provider_zeus.power.open import open_device

    opened: list[Device] = []

    def find() -> Finding:
        device = open_device(
            "auto",
            state_dir=settings.state_dir,
            cpu_watts=settings.cpu_watts,
            read_only=settings.power_read_only,
            power_socket=settings.power_socket,
        )
        opened.append(device)
        return checks_device.device(device)

    finding = _safely("device", find)
    return (opened[0] if opened else None), finding


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = max(len(f.check) for f in findings)
    for f in findings:
        yield f"{f.status.upper() if f.status == 'ok' else f.status:<7}  {f.check:<{width}}  {f.finding}"
        if f.remedy:
            yield f"{'':<7}  {'':<{width}}  -> {f.remedy}"
    count = Counter(f.status for f in findings)
    yield f"{len(findings)} checks: {count['ok']} OK, {count['warning']} warnings, {count['error']} errors."
