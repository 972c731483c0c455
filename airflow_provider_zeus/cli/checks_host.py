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
from airflow_provider_zeus.training.profiling.measurement_windows import (
    BOUND,
    WORKING,
    CapWatch,
    never_binds,
)
from airflow_provider_zeus.training.profiling.search import UNBOUND
from airflow_provider_zeus.untrusted_files import open_plain


def device(device: Device) -> Finding:
    """The device that ``device="auto"`` finds on this host."""
    info = device.info
    limits = device.limit_range()
    finding = f"device='auto' is {info.count} x {info.model}"
    # A device without a meter still has a clock, so a job can run.
    if info.energy_source:
        finding += f", energy from {info.energy_source}"
    else:
        finding += "; nothing measures energy here"
    if limits:
        finding += f", power limits {limits.min_w:g} to {limits.max_w:g} W"
    missing = device.missing
    if info.energy_source is None:
        remedy = missing.get("energy_j", "train on an NVIDIA GPU")
        return warning(
            "device",
            f"{finding}, so batch sizes are tuned on time alone",
            remedy.removeprefix("no source of energy. "),
        )
    # A device that never had limits is not at fault.
    if limits is None and "limit_range" in missing:
        return warning("device", f"{finding}, no power limit may be set", missing["limit_range"])
    return ok("device", finding)


def energy(device: Device, pause: Callable[[float], object] = time.sleep) -> Finding:
    """Whether the energy counter can be read and increases.

    ``pause`` sleeps a number of seconds.
    """
    source = device.info.energy_source
    # Two readings: a counter that stands still reads as well as any.
    first_j = device.energy_j()
    if source is None:
        finding = (
            "no reading: nothing measures energy here; a task that is only measured has an"
            " estimate, by the time of its processors"
        )
        return warning("energy", finding, "see device")
    if first_j is None:
        return warning(
            "energy",
            f"{source} gives no reading",
            device.missing.get("energy_j", "see the driver's log"),
        )
    # a slow counter may stay for 100 ms, a dead one stays for ever
    for _ in range(10):
        pause(0.1)  # GPUs update their counters every 20 to 100 ms
        now_j = device.energy_j()
        if now_j is not None and now_j != first_j:
            return ok("energy", f"{source} works: {now_j - first_j:.3g} J while it was read")
    return warning(
        "energy", f"{source} stays at {first_j:g} J for 1 s", "check the driver's counter"
    )


def cap(device: Device, pause: Callable[[float], object] = time.sleep) -> Finding:
    """Whether the power limit holds the GPU back now, or a clock that somebody has locked."""
    watch = CapWatch(device)
    limits = device.limit_range()
    limit_w = device.limit_w() or 0.0
    begun_s = device.now_s()
    begun_j = device.energy_j()
    # the driver's reasons are those of a moment, so several windows are added
    for _ in range(3):
        watch.open(device.now_s())
        pause(0.4)
        watch.close(limit_w, device.now_s())
    now_j = device.energy_j()
    took_s = device.now_s() - begun_s
    busy = device.busy()
    # An idle GPU is held back by nothing, which says nothing of a training.
    if busy is None or busy < WORKING:
        return ok(
            "cap",
            "the GPU does not work now: called while a training runs, this says whether the cap "
            "binds",
        )
    capped = watch.at[limit_w]
    why = capped.why_locked(busy)
    if why:
        remedy = "nvidia-smi -rgc, unless the lock is needed"
        return warning("cap", f"{why}; no power limit is chosen", remedy)
    at = ""
    if capped.clock_mhz is not None:
        at = f", at a mean clock of {capped.clock_mhz:.0f} MHz"
    if capped.share is not None and capped.share > BOUND:
        percent = f"{100 * capped.share:.0f} %"
        return ok("cap", f"the limit of {limit_w:g} W binds {percent} of the time{at}")
    # Not even the lowest limit would hold back a load that draws much less.
    if limits is not None and now_j is not None and begun_j is not None:
        draw_w = (now_j - begun_j) / took_s
        if draw_w < UNBOUND * limits.min_w:
            never = never_binds(draw_w, limits.min_w)
            return ok("cap", f"{never}{at}; no limit can save anything of what runs now")
    return ok("cap", f"the limit of {limit_w:g} W does not bind now{at}; a lower one may")


def state(state_dir: Path) -> Finding:
    """Whether limit records can be written, and whether one is orphaned: its training has died."""
    # the folder may be made later, in the nearest parent that exists
    folder = next((p for p in (state_dir, *state_dir.parents) if p.exists()), state_dir)
    # A record that cannot be written means a limit that cannot be given back.
    is_writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    if not is_writable:
        return error(
            "state_dir",
            f"{folder} is not a folder that this user can write to: power limits need a record "
            "there",
            "make it writable for the workers, or set [zeus] state_dir to a path of the host",
        )
    records, invalid = orphans(state_dir)
    if records:
        finding = f"{state_dir} has limit records of dead trainings: {', '.join(records)}"
        return warning("state_dir", finding, "run 'airflow zeus repair' on this host")
    if invalid:
        finding = (
            f"{state_dir} has files that are named like limit records but are not: "
            f"{', '.join(invalid)}"
        )
        return warning("state_dir", finding, "remove them: they are ignored")
    if folder != state_dir:
        return ok("state_dir", f"{state_dir} is created when needed")
    return ok("state_dir", f"{state_dir} is writable")


def orphans(state_dir: Path) -> tuple[list[str], list[str]]:
    """Names of the limit records whose lock no process holds, and of files that are not valid
    records.

    The check takes each lock for a moment.
    """
    records: list[str] = []
    invalid: list[str] = []
    for path in candidates(state_dir):
        is_valid = False
        try:
            with open(open_plain(path), "rb") as file:
                # A guardian that lives holds the lock: who gets it has found an orphan.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_valid = is_record(file.fileno())
        except ValueError:  # a link or a pipe by that name is listed, and never read
            pass
        except OSError:  # its guardian holds the lock, or it was removed just now
            continue
        names = records if is_valid else invalid
        names.append(visible(Path(path).name))
    return records, invalid


SIDECAR = "/run/zeus/power.sock"  # it is asked even if nobody named it: it may run already

Ask = Callable[[str, list[str]], object]


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
    # a helper that does not answer hides the limits of the device
    helper_fails = power_socket and "power_socket" in device.missing.get("limit_range", "")
    if device.limit_range() is None and not helper_fails:
        return ok("permission", "this device has no power limit to set")
    # With a privilege no helper is needed: it is no fault then that none answers.
    privilege = _privilege(euid, status)
    zeusd = ZEUSD + (environ.get("ZEUSD_SOCK_PATH") or "/run/zeusd/zeusd.sock")
    sockets = dict.fromkeys(filter(None, (power_socket, SIDECAR, zeusd)))
    # each is asked, so that the remedy names one that works
    problems = {socket: _problem(socket, uuids, ask) for socket in sockets}
    ways = [f"this user itself: {privilege or 'no, neither root nor CAP_SYS_ADMIN'}"]
    ways += [f"{_named(socket)}: {problem or 'yes'}" for socket, problem in problems.items()]
    finding = "; ".join(ways)
    usable = [socket for socket, problem in problems.items() if not problem]
    remedy = (
        "start zeus-power-sidecar as root and set [zeus] power_socket, or give the workers "
        "CAP_SYS_ADMIN; mode='measure' works without"
    )
    if usable:
        remedy = f"set [zeus] power_socket = {usable[0]}"
    elif privilege:
        remedy = "leave [zeus] power_socket empty: this user may set limits itself"
    # What the configuration names is what trainings will use.
    if power_socket in usable:
        return ok(
            "permission",
            f"limits are set by {_named(power_socket)}, as [zeus] power_socket says. {finding}",
        )
    if power_socket:
        return warning("permission", f"[zeus] power_socket does not set limits. {finding}", remedy)
    if privilege:
        return ok("permission", f"limits are set by the training itself. {finding}")
    return warning("permission", f"the driver will refuse to set power limits. {finding}", remedy)


def limits_of(job: ZeusJob, device: Device, power_socket: str = "") -> Finding:
    """Whether the power limits of a job can be set on a device of this host.

    Raises JobSpecError: out of its range.
    """
    model = device.info.model
    limits = device.limit_range()
    if limits is not None:
        limits.check(job.power_limits_w or (), model)
    # a simulated limit needs no privilege
    if device.info.energy_source == "simulated":
        return ok("power limit", f"{model}: it can be set")
    if limits is None and "limit_range" in device.missing:
        remedy = device.missing["limit_range"]
        return warning("power limit", f"{model}: no limit may be set", remedy)
    ways = permission(device, power_socket)
    return replace(ways, check="power limit", finding=f"on this host, {model}: {ways.finding}")


def signal(name: str) -> Finding:
    """Whether the Connection of a signal is defined."""
    from airflow.sdk import conf

    from airflow_provider_zeus.signals.reading import CONNECTIONS
    from airflow_provider_zeus.store.open import find_connection

    # "price" and "carbon" are short names of a job: no Connection is called so.
    conn_id = CONNECTIONS.get(name, name)
    try:
        if find_connection(conn_id) is not None:
            return ok(f"Connection {conn_id}", f"the signal {name!r} has one")
    except StoreError as problem:  # Airflow cannot look it up, which says nothing of the Connection
        return error(f"Connection {conn_id}", str(problem))
    # a tariff of the configuration needs no service
    if name == "price" and conf.get("zeus", "tariff", fallback="").strip():
        return ok(f"Connection {conn_id}", "[zeus] tariff takes its place")
    remedy = (
        f"define {conn_id} with type Zeus signal, or correct the name in the job "
        "(docs/levers/signals.md)"
    )
    return error(
        f"Connection {conn_id}", f"there is none, so the signal {name!r} is not followed", remedy
    )


def _problem(power_socket: str, uuids: list[str], ask: Ask | None) -> str:
    """Why the helper at a socket cannot set limits; empty if it can."""
    # A socket that is not there says more than a refused connection.
    path = power_socket.removeprefix(ZEUSD)
    if not os.path.exists(path):
        return "no, no socket there"
    from airflow_provider_zeus.power.limits.helpers import helper_at

    ask = ask or helper_at
    try:
        ask(power_socket, uuids)
    except DeviceError as error:
        return f"no, {error}"
    return ""


def _named(power_socket: str) -> str:
    if power_socket.startswith(ZEUSD):
        return f"zeusd at {power_socket.removeprefix(ZEUSD)}"
    return f"the sidecar at {power_socket}"


def _privilege(euid: int | None, status: Path) -> str:
    """The privilege by which this user sets limits itself: root or CAP_SYS_ADMIN; empty if it
    has none.
    """
    if euid is None:
        euid = os.geteuid()
    if euid == 0:
        return "root"
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
        effective = [line for line in lines if line.startswith("CapEff:")]
        capabilities = int(effective[0].split()[1], 16)
    except (OSError, ValueError, IndexError):  # not Linux: nobody can tell
        return ""
    # bit 21 is CAP_SYS_ADMIN (capabilities(7))
    if capabilities >> 21 & 1:
        return "CAP_SYS_ADMIN"
    return ""
