"""Checks of the device and of what it leaves on this host. A limit is never set here."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from airflow_provider_zeus.cli.finding import Finding, ok, warning
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.plain_file import named, open_plain
from airflow_provider_zeus.power.record import candidates, is_record

_READINGS = 10
_PAUSE_S = 0.1  # counters of GPUs are renewed every 20 to 100 ms


def device(device: Device) -> Finding:
    """What ``device="auto"`` finds here."""
    info, limits = device.info, device.limit_range()
    said = f"device='auto' is {info.count} x {info.model}, energy from {info.energy_source or 'no source'}"
    if limits:
        said += f", power limits {limits.min_w:g} to {limits.max_w:g} W"
    missing = device.missing
    if info.energy_source is None:
        remedy = missing.get("energy_j", "train on an NVIDIA GPU")
        return warning("device", f"{said}: batch sizes are tuned on time alone", remedy)
    if limits is None and "limit_range" in missing:
        return warning("device", f"{said}, no power limit may be set", missing["limit_range"])
    return ok("device", said)


def energy(device: Device, pause: Callable[[float], object] = time.sleep) -> Finding:
    """Whether the energy counter can be read and moves."""
    source, first_j = device.info.energy_source, device.energy_j()
    if source is None:
        return warning("energy", "nothing to read", "see device")
    if first_j is None:
        return warning("energy", f"{source} gives no reading", device.missing.get("energy_j", "see the driver's log"))
    for _ in range(_READINGS):
        pause(_PAUSE_S)
        now_j = device.energy_j()
        if now_j is not None and now_j != first_j:
            return ok("energy", f"{source} moves: {now_j - first_j:.3g} J while it was watched")
    waited_s = _READINGS * _PAUSE_S
    return warning(
        "energy", f"{source} stands still at {first_j:g} J for {waited_s:g} s", "see that the driver's counter works"
    )


def state(state_dir: Path) -> Finding:
    """Whether limit records can be kept, and whether one waits to be served."""
    there = next((p for p in (state_dir, *state_dir.parents) if p.exists()), state_dir)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Finding(
            "state_dir",
            "error",
            f"{there} is not a folder that this user can write to: power limits are not set without their record",
            "make it writable for the workers, or set [zeus] state_dir to a path of the host",
        )
    left, rubbish = orphans(state_dir)
    if left:
        said = f"{state_dir} has limit records that no living process answers for: {', '.join(left)}"
        return warning("state_dir", said, "run 'airflow zeus doctor --restore' on this host")
    if rubbish:
        said = f"{state_dir} has what is named like a limit record and is none: {', '.join(rubbish)}"
        return warning("state_dir", said, "remove it: it is left alone")
    return ok("state_dir", f"{state_dir} is writable" if there == state_dir else f"{state_dir} is made when needed")


def orphans(state_dir: Path) -> tuple[list[str], list[str]]:
    """Names of the limit records whose lock nobody holds, and of what is no record.

    Looking takes the lock for an instant and gives it back.
    """
    found: list[str] = []
    rubbish: list[str] = []
    for path in candidates(state_dir):
        try:
            with open(open_plain(path), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                (found if is_record(file.fileno()) else rubbish).append(named(Path(path).name))
        except ValueError:
            rubbish.append(named(Path(path).name))
        except OSError:  # its guardian lives, or it has just been served
            continue
    return found, rubbish
