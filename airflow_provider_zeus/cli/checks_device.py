"""Doctor's checks of the device and of limit records on this host. They set no limit."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from airflow_provider_zeus.cli.finding import Finding, ok, warning
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.record import candidates, is_record
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.untrusted_files import open_plain

_READINGS = 10
_PAUSE_S = 0.1  # GPUs update their counters every 20 to 100 ms


def device(device: Device) -> Finding:
    """The device that ``device="auto"`` finds on this host."""
    info, limits = device.info, device.limit_range()
    finding = f"device='auto' is {info.count} x {info.model}, energy from {info.energy_source or 'no source'}"
    if limits:
        finding += f", power limits {limits.min_w:g} to {limits.max_w:g} W"
    missing = device.missing
    if info.energy_source is None:
        remedy = missing.get("energy_j", "train on an NVIDIA GPU")
        return warning("device", f"{finding}: batch sizes are tuned on time alone", remedy)
    if limits is None and "limit_range" in missing:
        return warning("device", f"{finding}, no power limit may be set", missing["limit_range"])
    return ok("device", finding)


def energy(device: Device, pause: Callable[[float], object] = time.sleep) -> Finding:
    """Whether the energy counter can be read and increases. ``pause`` sleeps a number of seconds."""
    source, first_j = device.info.energy_source, device.energy_j()
    if source is None:
        return warning("energy", "nothing to read", "see device")
    if first_j is None:
        return warning("energy", f"{source} gives no reading", device.missing.get("energy_j", "see the driver's log"))
    for _ in range(_READINGS):
        pause(_PAUSE_S)
        now_j = device.energy_j()
        if now_j is not None and now_j != first_j:
            return ok("energy", f"{source} works: {now_j - first_j:.3g} J while it was read")
    waited_s = _READINGS * _PAUSE_S
    return warning("energy", f"{source} stays at {first_j:g} J for {waited_s:g} s", "check the driver's counter")


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
        return warning("state_dir", finding, "run 'airflow zeus doctor --restore' on this host")
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
