"""The record of a changed limit: what lets another process give back the limit found.

One JSON document per change of hands, ``<state_dir>/limit-<random>.json``: ``restore`` (the device's
``restore_record()``), ``limit_found_w``, and ``limits_set_w``, the limit in force and the one about to be set, written
*before* each set: one of the two is in force whenever the trainer dies. The guardian that answers for a record holds
its ``flock``; a record that nobody holds is an orphan (its host or container went down). A pid would not do: it means
nothing in another container. A record may name the boot of the host that it was made in (``restore["boot_id"]``): after
another one the driver has its own limit again, and nothing is to be given back.

A file of that name that is no record (a folder, a pipe, text that cannot be read) is named in the log and left alone;
so is one of another user, unless a group shares the folder: it would set limits with this user's rights.

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

from airflow_provider_zeus import private
from airflow_provider_zeus.power.plain_file import named
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
    """Write a record that appears under ``path`` whole and already held; the descriptor that holds it.

    Raises OSError, where the disk is full too; then no file stays behind.
    """
    temporary = f"{path}.new"
    descriptor = private.open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
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
    """Restore the limit found unless somebody else has set another; what was done, in words, device by device.

    Raises OSError where a device cannot be reached, and any error of a file that is no record.
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
    found_w = float(record["limit_found_w"])
    if not (math.isfinite(found_w) and found_w > 0):
        raise ValueError(f"limit_found_w = {found_w} is no power limit")
    port = port or _open_port(restore)
    present_w = port.limit_w()
    if same_w(present_w, found_w):
        return f"the limit is {found_w:g} W as it was found"
    if not any(same_w(present_w, set_w) for set_w in record["limits_set_w"]):
        return f"the limit is {present_w:g} W, which was not set by us: left alone"
    port.set_limit_w(found_w)
    return f"restored {found_w:g} W from {present_w:g} W"


def restore_orphans(state_dir: str | os.PathLike[str]) -> int:
    """Serve every record that no living guardian holds; how many there were. Called when a limit control opens.

    Raises nothing: what is no record is named in the log and left alone.
    """
    return sum(_served(path) for path in candidates(state_dir))


def _served(path: str) -> bool:
    try:
        descriptor = private.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False  # just served by another process
    except OSError as error:
        level = logging.DEBUG if error.errno == errno.EACCES else logging.WARNING  # another user's training may live
        log.log(level, "%s is no limit record for this user (%s) and is left alone.", named(path), error.strerror)
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return bool(os.fstat(descriptor).st_nlink) and _serve_orphan(descriptor, path)  # 0: served while we opened it
    except OSError:
        return False  # its guardian lives; or locks or removals are refused here, which is no reason not to train
    finally:
        os.close(descriptor)


def _serve_orphan(descriptor: int, path: str) -> bool:
    try:
        log.warning("A training died with its guardian (%s): %s.", named(path), give_back(descriptor))
    except OSError as error:  # the device may be back later: the record stays
        log.warning("A training died with its guardian (%s), and its device cannot be reached: %s.", named(path), error)
        return False
    except Exception as error:  # of any kind: the file may hold anything, deeply nested JSON for instance
        said = f"{type(error).__name__}: {error}"[:200]
        log.warning("%s is no limit record that can be read (%s) and is left alone: remove it.", named(path), said)
        return False
    os.unlink(path)
    return True
