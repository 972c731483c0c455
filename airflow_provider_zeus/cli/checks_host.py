"""Doctor's checks of this host: its device, limit records and ways to set power limits."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.errors import DeviceError, StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.helpers import ZEUSD
from airflow_provider_zeus.power.limits.record import candidates, is_record
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.training.profiling.measurement_windows import BOUND, WORKING, CapWatch, never_binds
from airflow_provider_zeus.training.profiling.search import UNBOUND
from airflow_provider_zeus.untrusted_files import open_plain


def device(device: Device) -> Finding:
    """The device that ``device="auto"`` finds on this host."""
    info, limits = device.info, device.limit_range()
    finding = f"device='auto' is {info.count} x {info.model}"
    finding += f", energy from {info.energy_source}" if info.energy_source else "; nothing measures energy here"
    if limits:
        finding += f", power limits {limits.min_w:g} to {limits.max_w:g} W"
    missing = device.missing
    if info.energy_source is None:
        remedy = missing.get("energy_j", "train on an NVIDIA GPU").removeprefix("no source of energy. ")
        return warning("device", f"{finding}, so batch sizes are tuned on time alone", remedy)
    if limits is None and "limit_range" in missing:
        return warning("device", f"{finding}, no power limit may be set", missing["limit_range"])
    return ok("device", finding)


def energy(device: Device, pause: Callable[[float], object] = time.sleep) -> Finding:
    """Whether the energy counter can be read and increases. ``pause`` sleeps a number of seconds."""
    source, first_j = device.info.energy_source, device.energy_j()
    if source is None:
        return warning("energy", "no reading: nothing measures energy here", "see device")
    if first_j is None:
        return warning("energy", f"{source} gives no reading", device.missing.get("energy_j", "see the driver's log"))
    for _ in range(10):
        pause(0.1)  # GPUs update their counters every 20 to 100 ms
        now_j = device.energy_j()
        if now_j is not None and now_j != first_j:
            return ok("energy", f"{source} works: {now_j - first_j:.3g} J while it was read")
    return warning("energy", f"{source} stays at {first_j:g} J for 1 s", "check the driver's counter")


def cap(device: Device, pause: Callable[[float], object] = time.sleep) -> Finding:
    """Whether the power limit holds back what the GPU does now, or a clock that somebody has locked."""
    watch, limits, limit_w = CapWatch(device), device.limit_range(), device.limit_w() or 0.0
    begun_s, begun_j = device.now_s(), device.energy_j()
    for _ in range(3):
        watch.open(device.now_s())
        pause(0.4)
        watch.close(limit_w, device.now_s())
    now_j, busy = device.energy_j(), device.busy()
    if not (busy or 0.0) >= WORKING:
        return ok("cap", "the GPU does not work now: called while a training runs, this says whether the cap binds")
    if why := watch.at[limit_w].why_locked(busy):
        return warning("cap", f"{why}; no power limit is chosen", "nvidia-smi -rgc, unless the lock is needed")
    share, clock = watch.at[limit_w].share, watch.at[limit_w].clock_mhz
    at = "" if clock is None else f", at a mean clock of {clock:.0f} MHz"
    if share is not None and share > BOUND:
        return ok("cap", f"the limit of {limit_w:g} W binds {100 * share:.0f} % of the time{at}")
    draw_w = None if now_j is None or begun_j is None else (now_j - begun_j) / (device.now_s() - begun_s)
    if limits is not None and draw_w is not None and draw_w < UNBOUND * limits.min_w:
        never = never_binds(draw_w, limits.min_w)
        return ok("cap", f"{never}{at}; no limit can save anything of what runs now")
    return ok("cap", f"the limit of {limit_w:g} W does not bind now{at}; a lower one may")


def state(state_dir: Path) -> Finding:
    """Whether limit records can be written, and whether one is orphaned: its training has died."""
    folder = next((p for p in (state_dir, *state_dir.parents) if p.exists()), state_dir)
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return Finding(
            "state_dir",
            "error",
            f"{folder} is not a folder that this user can write to: power limits need a record there",
            "make it writable for the workers, or set [zeus] state_dir to a path of the host",
        )
    records, invalid = orphans(state_dir)
    if records:
        finding = f"{state_dir} has limit records of dead trainings: {', '.join(records)}"
        return warning("state_dir", finding, "run 'airflow zeus repair' on this host")
    if invalid:
        finding = f"{state_dir} has files that are named like limit records but are not: {', '.join(invalid)}"
        return warning("state_dir", finding, "remove them: they are ignored")
    return ok("state_dir", f"{state_dir} is writable" if folder == state_dir else f"{state_dir} is created when needed")


def orphans(state_dir: Path) -> tuple[list[str], list[str]]:
    """Names of the limit records whose lock no process holds, and of files that are not valid records.

    The check takes each lock for a moment.
    """
    records: list[str] = []
    invalid: list[str] = []
    for path in candidates(state_dir):
        try:
            with open(open_plain(path), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                (records if is_record(file.fileno()) else invalid).append(visible(Path(path).name))
        except ValueError:
            invalid.append(visible(Path(path).name))
        except OSError:  # its guardian holds the lock, or it was removed just now
            continue
    return records, invalid


SIDECAR = "/run/zeus/power.sock"  # where it listens by default

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
    zeusd = ZEUSD + (environ.get("ZEUSD_SOCK_PATH") or "/run/zeusd/zeusd.sock")
    sockets = dict.fromkeys([power_socket, SIDECAR, zeusd] if power_socket else [SIDECAR, zeusd])
    problems = {socket: _problem(socket, uuids, ask) for socket in sockets}
    ways = [f"this user itself: {privilege or 'no, neither root nor CAP_SYS_ADMIN'}"]
    ways += [f"{_named(socket)}: {problem or 'yes'}" for socket, problem in problems.items()]
    finding, usable = "; ".join(ways), next((socket for socket, problem in problems.items() if not problem), None)
    remedy = (
        "start zeus-power-sidecar as root and set [zeus] power_socket, or give the workers CAP_SYS_ADMIN; "
        "mode='measure' works without"
    )
    if usable:
        remedy = f"set [zeus] power_socket = {usable}"
    elif privilege:
        remedy = "leave [zeus] power_socket empty: this user may set limits itself"
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
    """Whether the Connection of a signal is defined."""
    from airflow.sdk import conf

    from airflow_provider_zeus.signals.reading import CONNECTIONS
    from airflow_provider_zeus.store.open import find_connection

    conn_id = CONNECTIONS.get(name, name)
    try:
        if find_connection(conn_id) is not None:
            return ok(f"Connection {conn_id}", f"the signal {name!r} has one")
    except StoreError as problem:  # Airflow cannot look it up
        return error(f"Connection {conn_id}", str(problem))
    if name == "price" and conf.get("zeus", "tariff", fallback="").strip():
        return ok(f"Connection {conn_id}", "[zeus] tariff takes its place")
    remedy = f"define {conn_id} with type Zeus signal, or correct the name in the job (docs/signals.md)"
    return error(f"Connection {conn_id}", f"there is none, so the signal {name!r} is not followed", remedy)


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
    return "CAP_SYS_ADMIN" if capabilities >> 21 & 1 else ""
