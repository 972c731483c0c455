"""Doctor's checks of the ways to set power limits, and ``--restore``. The checks set no limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from airflow_provider_zeus.cli.checks_device import orphans
from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.helpers import ZEUSD

SIDECAR, ZEUSD_SOCKET = "/run/zeus/power.sock", "/run/zeusd/zeusd.sock"  # where they listen by default
_CAP_SYS_ADMIN = 21

Ask = Callable[[str, list[str]], object]  # [zeus] power_socket, UUIDs; raises DeviceError


def permission(
    device: Device,
    power_socket: str = "",
    *,
    euid: int | None = None,
    status: Path = Path("/proc/self/status"),
    environ: Mapping[str, str] = os.environ,
    ask: Ask | None = None,
) -> Finding:
    """Which ways to set power limits this user has: itself, the sidecar, zeusd, or none."""
    uuids = (device.uuid or "").split(",")
    if device.limit_range() is None and not (power_socket and "power_socket" in device.missing.get("limit_range", "")):
        return ok("permission", "this device has no power limit to set")
    privilege = _privilege(os.geteuid() if euid is None else euid, status)
    zeusd = ZEUSD + (environ.get("ZEUSD_SOCK_PATH") or ZEUSD_SOCKET)
    sockets = dict.fromkeys([power_socket, SIDECAR, zeusd] if power_socket else [SIDECAR, zeusd])
    problems = {socket: _problem(socket, uuids, ask) for socket in sockets}
    ways = [f"this user itself: {privilege or 'no, neither root nor CAP_SYS_ADMIN'}"]
    ways += [f"{_named(socket)}: {problem or 'yes'}" for socket, problem in problems.items()]
    finding, remedy = "; ".join(ways), _remedy(problems, privilege)
    if power_socket:
        if not problems[power_socket]:
            return ok("permission", f"limits are set by {_named(power_socket)}, as [zeus] power_socket says. {finding}")
        return warning("permission", f"[zeus] power_socket does not set limits. {finding}", remedy)
    if privilege:
        return ok("permission", f"limits are set by the training itself. {finding}")
    return warning("permission", f"the driver will refuse to set power limits. {finding}", remedy)


def limits_of(job: ZeusJob, device: Device, power_socket: str = "") -> Finding:
    """Whether the power limits of a job can be set on a device of this host. Raises JobSpecError: out of its range."""
    if (limits := device.limit_range()) is not None:
        limits.check(job.power_limits_w or (), device.info.model)
    found = replace(permission(device, power_socket), check="power limit")
    if device.info.energy_source == "simulated":
        return ok("power limit", f"{device.info.model}: it can be set")
    if limits is None and "limit_range" in device.missing:
        return warning("power limit", f"{device.info.model}: no limit may be set", device.missing["limit_range"])
    return replace(found, finding=f"on this host, {device.info.model}: {found.finding}")


def signal(name: str) -> Finding:
    """Whether the Connection of a signal is defined. Raises StoreError where Airflow cannot look it up."""
    from airflow.sdk import conf

    from airflow_provider_zeus.signals.reading import CONNECTIONS
    from airflow_provider_zeus.store.open import find_connection

    conn_id = CONNECTIONS.get(name, name)
    if find_connection(conn_id) is not None:
        return ok(f"Connection {conn_id}", f"the signal {name!r} has one")
    if name == "price" and conf.get("zeus", "tariff", fallback="").strip():
        return ok(f"Connection {conn_id}", "[zeus] tariff takes its place")
    remedy = f"define {conn_id} with type Zeus signal, or correct the name in the job (docs/signals.md)"
    return error(f"Connection {conn_id}", f"there is none, so the signal {name!r} is not followed", remedy)


def restore(state_dir: Path) -> Finding:
    """Restore the power limits that dead trainings left behind: the only change that ``--restore`` makes."""
    from airflow_provider_zeus.power.limits.record import restore_orphans

    restored = restore_orphans(state_dir)
    left = [name for names in orphans(state_dir) for name in names]
    finding = f"{restored} limit record{'' if restored == 1 else 's'} of dead trainings restored"
    if not left:
        return ok("restore", finding)
    finding += f", {len(left)} left: {', '.join(left)}"
    return warning("restore", finding, "see the log above; run it as the owner of the record")


def _remedy(problems: Mapping[str, str], privilege: str) -> str:
    usable = next((socket for socket, problem in problems.items() if not problem), None)
    if usable:
        return f"set [zeus] power_socket = {usable}"
    if privilege:
        return "leave [zeus] power_socket empty: this user may set limits itself"
    return (
        "start zeus-power-sidecar as root and set [zeus] power_socket, or give the workers CAP_SYS_ADMIN; "
        "mode='measure' works without"
    )


def _problem(power_socket: str, uuids: list[str], ask: Ask | None) -> str:
    """Why the helper at a socket cannot set limits; empty where it can."""
    path = power_socket.removeprefix(ZEUSD)
    if not os.path.exists(path):
        return "no, no socket there"
    from airflow_provider_zeus.power.limits.helpers import helper_at

    try:
        (ask or helper_at)(power_socket, uuids)
    except DeviceError as error:
        return f"no, {error}"
    return ""


def _named(power_socket: str) -> str:
    kind = "zeusd" if power_socket.startswith(ZEUSD) else "the sidecar"
    return f"{kind} at {power_socket.removeprefix(ZEUSD)}"


def _privilege(euid: int, status: Path) -> str:
    """What lets this user set limits itself: root or CAP_SYS_ADMIN; empty where nothing does."""
    if euid == 0:
        return "root"
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
        capabilities = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    except (OSError, ValueError, IndexError):  # not Linux
        return ""
    return "CAP_SYS_ADMIN" if capabilities >> _CAP_SYS_ADMIN & 1 else ""
