"""Which ways to set power limits are open here, and limits left behind. None is set to find out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_provider_zeus.cli.checks_device import orphans
from airflow_provider_zeus.cli.finding import Finding, ok, warning
from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.helper import ZEUSD

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
    """Which of the ways to set power limits is open to this user: itself, the sidecar, zeusd, or none."""
    uuids = (device.uuid or "").split(",")
    if device.limit_range() is None and not (power_socket and "power_socket" in device.missing.get("limit_range", "")):
        return ok("permission", "there is no power limit to set here")
    itself = _itself(os.geteuid() if euid is None else euid, status)
    zeusd = ZEUSD + (environ.get("ZEUSD_SOCK_PATH") or ZEUSD_SOCKET)
    sockets = dict.fromkeys([power_socket, SIDECAR, zeusd] if power_socket else [SIDECAR, zeusd])
    problems = {each: _problem(each, uuids, ask) for each in sockets}
    ways = [f"this user itself: {itself or 'no, neither root nor CAP_SYS_ADMIN'}"]
    ways += [f"{_named(each)}: {problem or 'yes'}" for each, problem in problems.items()]
    said = "; ".join(ways)
    if power_socket:
        if not problems[power_socket]:
            return ok("permission", f"limits are set by {_named(power_socket)}, as [zeus] power_socket says. {said}")
        return warning("permission", f"[zeus] power_socket does not set limits. {said}", _remedy(problems, itself))
    if itself:
        return ok("permission", f"limits are set by the training itself. {said}")
    return warning("permission", f"the driver will refuse to set power limits. {said}", _remedy(problems, itself))


def restore(state_dir: Path) -> Finding:
    """Give back the limits that dead trainings left behind: the one thing that ``--restore`` changes."""
    from airflow_provider_zeus.power.record import restore_orphans

    served = restore_orphans(state_dir)
    left = [name for names in orphans(state_dir) for name in names]
    said = f"{served} limit record{'' if served == 1 else 's'} of dead trainings served"
    if not left:
        return ok("restore", said)
    return warning(
        "restore",
        f"{said}, {len(left)} left: {', '.join(left)}",
        "see the log above; run it as the owner of the record",
    )


def _remedy(problems: Mapping[str, str], itself: str) -> str:
    usable = next((each for each, problem in problems.items() if not problem), None)
    if usable:
        return f"set [zeus] power_socket = {usable}"
    if itself:
        return "leave [zeus] power_socket empty: this user may set limits itself"
    return (
        "start docker/power_limit_sidecar.py as root and set [zeus] power_socket, or give the workers CAP_SYS_ADMIN; "
        "mode='measure' works without"
    )


def _problem(power_socket: str, uuids: list[str], ask: Ask | None) -> str:
    """Why a helper does not set limits; empty where it does."""
    path = power_socket.removeprefix(ZEUSD)
    if not os.path.exists(path):
        return "no, nothing there"
    from airflow_provider_zeus.power.nvml_helper import helper_at

    try:
        (ask or helper_at)(power_socket, uuids)
    except DeviceError as error:
        return f"no, {error}"
    return ""


def _named(power_socket: str) -> str:
    kind = "zeusd" if power_socket.startswith(ZEUSD) else "the sidecar"
    return f"{kind} at {power_socket.removeprefix(ZEUSD)}"


def _itself(euid: int, status: Path) -> str:
    if euid == 0:
        return "root"
    return "CAP_SYS_ADMIN" if _capabilities(status) >> _CAP_SYS_ADMIN & 1 else ""


def _capabilities(status: Path) -> int:
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    except (OSError, ValueError, IndexError):  # not Linux
        return 0
