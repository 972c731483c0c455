"""The record of a changed limit, from which another process gives the limit found back.

One JSON document per training, ``<state_dir>/limit-<random>.json``: ``restore`` (the device's ``restore_record()``),
``limit_found_w``, and ``limits_set_w``: the limit in force and the next one, written *before* each set, so one of the
two is in force whenever the trainer dies. The guardian holds the record's ``flock``. A record that is not locked is an
orphan: its host or container went down. A pid in the record would not do, since it means nothing in another container.
``restore["boot_id"]`` names the boot of the host in which the record was written: after another boot the driver has its
default limit again, and there is nothing to give back.

A file with such a name that is no record (a folder, a pipe, unreadable text) is logged and not touched. The same holds
for another user's file unless a group shares the folder: it would set limits with this user's rights.

Standard library only: the guardian uses it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import logging
import math
import os
from collections.abc import Sequence
from typing import Any, Protocol

from airflow_provider_zeus import private_files
from airflow_provider_zeus.power.simulated.state_file import StateFile
from airflow_provider_zeus.printable import visible

log = logging.getLogger(__name__)

SAME_W = 0.5  # limits closer than this are equal: drivers round
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BYTES = 4096  # records are padded to this size, so that one write replaces the whole record


class LimitPort(Protocol):
    """Reads and sets the power limit of one device, without the device object."""

    def limit_w(self) -> float:
        """The power limit in force [W]."""

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]."""


def parts_of(restore: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a ``restore_record()`` into those of the single devices of a group."""
    return list(restore["of"]) if restore["kind"] == "several" else [restore]


def open_port(restore: dict[str, Any]) -> LimitPort:
    """Open the limit of one device from its ``restore_record()``. Raises OSError, ValueError."""
    if restore["kind"] == "simulated":
        return StateFile(restore["path"])
    if restore["kind"] == "nvml":
        from airflow_provider_zeus.power.limits.helper import open_helper
        from airflow_provider_zeus.power.nvml.limit_port import NvmlPort  # imports ctypes

        helper = restore.get("helper")
        return NvmlPort(restore["uuid"], open_helper(helper) if helper else None)
    raise ValueError(f"unknown kind of device {restore['kind']!r} in a limit record")


def boot_id() -> str | None:
    """The kernel's identifier of the present boot; None where it has none."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def same_w(one_w: float, other_w: float) -> bool:
    """Whether two limits [W] are equal to a driver that rounds."""
    return abs(one_w - other_w) < SAME_W


def create(path: str, record: dict[str, Any]) -> int:
    """Write a record that appears under ``path`` complete and locked; returns the descriptor that holds the lock.

    Raises OSError, also where the disk is full; then no file is left.
    """
    temporary = f"{path}.new"
    descriptor = private_files.open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(descriptor, record)
        os.rename(temporary, path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return descriptor


def write(descriptor: int, record: dict[str, Any]) -> None:
    """Replace the record in one write. Not synced: after a crash of the host a driver has its default limit anyway.

    Raises OSError, ValueError: the record is too long.
    """
    data = json.dumps(record).encode().ljust(_BYTES)
    if len(data) > _BYTES:
        raise ValueError(f"limit record of {len(data)} bytes; {_BYTES} fit")
    if os.pwrite(descriptor, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def candidates(state_dir: str | os.PathLike[str]) -> list[str]:
    """Paths in the folder that are named like limit records, sorted."""
    return sorted(glob.glob(os.path.join(glob.escape(os.fspath(state_dir)), "limit-*.json")))


def is_record(descriptor: int) -> bool:
    """Whether the file can be read as a limit record."""
    try:
        return isinstance(json.loads(os.pread(descriptor, _BYTES, 0))["limit_found_w"], int | float)
    except Exception:  # of any kind: the file may hold anything, deeply nested JSON for instance
        return False


def give_back(descriptor: int, ports: Sequence[LimitPort] = ()) -> str:
    """Restore the limit found unless another process has set another limit; returns what was done, for the log.

    :param ports: the limits of ``parts_of(restore)`` where they are open already.

    Raises OSError where a device does not answer, and any error of a file that is no record.
    """
    record = json.loads(os.pread(descriptor, _BYTES, 0))
    done, failed = [], None
    for index, part in enumerate(parts_of(record["restore"])):
        try:
            done.append(_give_back_part(part, record, ports[index] if ports else None))
        except OSError as error:  # the other devices get their limit back
            failed = error
    if failed is not None:
        raise failed
    return "; ".join(done)


def _give_back_part(restore: dict[str, Any], record: dict[str, Any], port: LimitPort | None) -> str:
    written_in, now_in = restore.get("boot_id"), boot_id()
    if written_in and now_in and written_in != now_in:
        return "the host was booted since, so the driver has its default limit: left alone"
    found_w = float(record["limit_found_w"])
    if not (math.isfinite(found_w) and found_w > 0):
        raise ValueError(f"limit_found_w = {found_w} is no power limit")
    port = port or open_port(restore)
    present_w = port.limit_w()
    if same_w(present_w, found_w):
        return f"the limit is {found_w:g} W as it was found"
    if not any(same_w(present_w, set_w) for set_w in record["limits_set_w"]):
        return f"the limit is {present_w:g} W, which was not set by us: left alone"
    port.set_limit_w(found_w)
    return f"restored {found_w:g} W from {present_w:g} W"


def restore_orphans(state_dir: str | os.PathLike[str]) -> int:
    """Give back the limit of every record that no living guardian holds; returns how many. Raises nothing."""
    return sum(_restore_orphan(path) for path in candidates(state_dir))


def _restore_orphan(path: str) -> bool:
    try:
        descriptor = private_files.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False  # another process has just restored it
    except OSError as error:
        level = logging.DEBUG if error.errno == errno.EACCES else logging.WARNING  # another user's training may run
        log.log(level, "%s is no limit record of this user (%s) and is left alone.", visible(path), error.strerror)
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(descriptor).st_nlink:  # another process restored it after it was opened here
            return False
        try:
            done = give_back(descriptor)
        except OSError as error:  # the device may answer later: the record stays
            log.warning(
                "A training died with its guardian (%s), and its device cannot be reached: %s.", visible(path), error
            )
            return False
        except Exception as error:  # of any kind: the file may hold anything, deeply nested JSON for instance
            problem = f"{type(error).__name__}: {error}"[:200]
            log.warning(
                "%s is no limit record that can be read (%s) and is left alone: remove it.", visible(path), problem
            )
            return False
        log.warning("A training died with its guardian (%s): %s.", visible(path), done)
        os.unlink(path)
        return True
    except OSError:
        return False  # its guardian lives; or locks or removals are refused here, which must not stop a training
    finally:
        os.close(descriptor)
