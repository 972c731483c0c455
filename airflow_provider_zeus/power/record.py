"""The record of a changed limit: what lets another process give back the limit found.

One JSON document per change of hands, ``<state_dir>/limit-<random>.json``: ``restore`` (the device's
``restore_record()``), ``limit_found_w``, and ``limits_set_w``, the limit in force and the one about to be set, written
*before* each set: one of the two is in force whenever the trainer dies. The guardian that answers for a record holds
its ``flock``; a record that nobody holds is an orphan (its host or container went down). A pid would not do: it means
nothing in another container. A record may name the boot of the host that it was made in (``restore["boot_id"]``): after
another one the driver has its own limit again, and nothing is to be given back.

Standard library only: the guardian uses it.
"""

from __future__ import annotations

import fcntl
import glob
import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol

from airflow_provider_zeus.power.state_file import StateFile

log = logging.getLogger(__name__)

SAME_W = 0.5  # limits closer than this are one: drivers round
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BYTES = 4096  # records are padded to this, so that one write replaces one record and none is ever half old


class LimitPort(Protocol):
    """The one thing that a process without the device needs of it."""

    def limit_w(self) -> float:
        """The power limit now in force [W]."""

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]."""


def open_ports(restore: dict[str, Any]) -> list[LimitPort]:
    """Reach each limit that ``restore`` (a device's ``restore_record()``) describes. Raises OSError, ValueError."""
    return [_open_port(part) for part in _parts(restore)]


def _parts(restore: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of a group, one by one."""
    return list(restore["of"]) if restore["kind"] == "several" else [restore]


def _open_port(restore: dict[str, Any]) -> LimitPort:
    if restore["kind"] == "simulated":
        return StateFile(restore["path"])
    if restore["kind"] == "nvml":
        from airflow_provider_zeus.power.helper import open_helper
        from airflow_provider_zeus.power.nvml_port import NvmlPort  # brings ctypes

        described = restore.get("helper")
        return NvmlPort(restore["uuid"], open_helper(described) if described else None)
    raise ValueError(f"unknown kind of device {restore['kind']!r} in a limit record")


def boot_id() -> str | None:
    """What the kernel names its present boot; None where it does not."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def same_w(one_w: float, other_w: float) -> bool:
    """Whether two limits [W] are one to a driver that rounds."""
    return abs(one_w - other_w) < SAME_W


def create(path: str, record: dict[str, Any]) -> int:
    """Write a record that appears under ``path`` whole and already held; the descriptor that holds it."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    write(descriptor, record)
    os.rename(temporary, path)
    return descriptor


def write(descriptor: int, record: dict[str, Any]) -> None:
    """Replace the record in one write. Not synced: after a crash of the host a driver has its default limit anyway."""
    data = json.dumps(record).encode().ljust(_BYTES)
    if len(data) > _BYTES:
        raise ValueError(f"limit record of {len(data)} bytes; {_BYTES} fit")
    os.pwrite(descriptor, data, 0)


def give_back(descriptor: int, ports: Sequence[LimitPort] = ()) -> str:
    """Restore the limit found unless somebody else has set another; what was done, in words, device by device.

    Raises OSError, ValueError, KeyError, TypeError, AttributeError: the record cannot be read, or its device not be
    reached.
    """
    record = json.loads(os.pread(descriptor, _BYTES, 0))
    done, failed = [], None
    for index, part in enumerate(_parts(record["restore"])):
        try:
            done.append(_give_back_one(part, record, ports[index] if ports else None))
        except OSError as error:  # the others get theirs all the same
            failed = error
    if failed is not None:
        raise failed
    return "; ".join(done)


def _give_back_one(restore: dict[str, Any], record: dict[str, Any], port: LimitPort | None) -> str:
    made_in, now_in = restore.get("boot_id"), boot_id()
    if made_in and now_in and made_in != now_in:
        return "the host was booted since, and the driver has its own limit again: left alone"
    found_w, port = float(record["limit_found_w"]), port or _open_port(restore)
    present_w = port.limit_w()
    if same_w(present_w, found_w):
        return f"the limit is {found_w:g} W as it was found"
    if not any(same_w(present_w, set_w) for set_w in record["limits_set_w"]):
        return f"the limit is {present_w:g} W, which was not set by us: left alone"
    port.set_limit_w(found_w)
    return f"restored {found_w:g} W from {present_w:g} W"


def restore_orphans(state_dir: str | os.PathLike[str]) -> int:
    """Serve every record that no living guardian holds; how many there were. Called when a limit control opens."""
    served = 0
    for path in glob.glob(os.path.join(glob.escape(os.fspath(state_dir)), "limit-*.json")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just served by another process, or another user's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # else served while we opened it
                served += _serve_orphan(descriptor, path)
        except OSError:
            pass  # its guardian lives; or locks or removals are refused here, which is no reason not to train
        finally:
            os.close(descriptor)
    return served


def _serve_orphan(descriptor: int, path: str) -> bool:
    try:
        log.warning("A training died with its guardian (%s): %s.", path, give_back(descriptor))
    except OSError as error:  # the device may be back later: the record stays
        log.warning("A training died with its guardian (%s), and its device cannot be reached: %s.", path, error)
        return False
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("Dropping a limit record that cannot be read (%s): %r.", path, error)
    os.unlink(path)
    return True
