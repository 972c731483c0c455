"""The record of a changed limit, from which another process gives the limit found back.

One JSON document per training, ``<state_dir>/limit-<random>.json``: a record as the sidecar writes
it (``boot_id``, ``found_w``, ``set_w``; see :func:`.new_record` there) and ``restore``, the
device's ``restore_record()``. ``set_w`` is the limit in force and the next one, written *before*
each set, so one of the two is in force whenever the trainer dies. The guardian holds the record's
``flock``. A record that is not locked is an orphan: its host or container went down. A pid in the
record would not do, since it means nothing in another container.

A file with such a name that is no record (a folder, a pipe, unreadable text) is logged and not
touched. The same holds for another user's file unless a group shares the folder: it would set
limits with this user's rights.

Standard library only: the guardian uses it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus import private_files
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.power.limits.driver import Nvml
from airflow_provider_zeus.power.limits.limit_format import boot_id, read_record, to_give_back
from airflow_provider_zeus.power.simulated.state_file import StateFile
from airflow_provider_zeus.printable import visible

if TYPE_CHECKING:
    from airflow_provider_zeus.power.limits.helpers import LimitHelper

log = guarded_log(__name__)

_BYTES = 4096  # records are padded to this size, so that one write replaces the whole record


class NvmlPort:
    """Reads and restores the limit of one GPU. Raises OSError if NVML, or the helper, does not
    answer.

    If a helper sets limits, it also restores them; reading them needs no permission and is done
    here.

    :param helper: the description of the helper, for :func:`.helpers.open_helper`.
    :param driver: opens the driver library.
    """

    def __init__(
        self, uuid: str, helper: dict[str, Any] | None = None, driver: Callable[[], Nvml] = Nvml
    ) -> None:
        self._uuid = uuid
        self._nvml = driver()
        self._helper: LimitHelper | None = None
        self._nvml.handle(uuid)
        if helper is not None:
            # Here: it imports an HTTP client, which a guardian without a helper does not need.
            from airflow_provider_zeus.power.limits.helpers import open_helper

            self._helper = open_helper(helper)
            self._helper.check()
            # No connection while the guardian waits: the sidecar has few places.
            self._helper.close()

    def limit_w(self) -> float:
        """The power limit that is set [W]."""
        return self._nvml.limit_w(self._uuid)

    def set_limit_w(self, limit_w: float) -> None:
        """Restore the limit found [W]."""
        if self._helper is None:
            self._nvml.set_limit_w(self._uuid, limit_w)
            return
        self._helper.restore_w(limit_w)
        self._helper.close()


# A guardian has no device object: these alone read and set a limit.
LimitPort = NvmlPort | StateFile


def open_port(restore: dict[str, Any], driver: Callable[[], Nvml] = Nvml) -> LimitPort:
    """Open the limit of one device of a ``restore_record()``. Raises OSError, ValueError."""
    if restore["kind"] == "simulated":
        return StateFile(restore["path"])
    if restore["kind"] == "nvml":
        return NvmlPort(restore["uuid"], restore.get("helper"), driver)
    raise ValueError(f"unknown kind of device {restore['kind']!r} in a limit record")


def create(path: str, record: dict[str, Any]) -> int:
    """Write a record that appears under ``path`` complete and locked; returns the descriptor that
    holds the lock.

    Raises OSError, also if the disk is full; then no file is left.
    """
    temporary = f"{path}.new"
    descriptor = private_files.open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        # Before it has its name: a record that is not locked is an orphan to every other training.
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
    """Replace the record in one write. Not synced: after a crash of the host a driver has its
    default limit anyway.

    Raises OSError, ValueError: the record is too long.
    """
    data = json.dumps(record).encode().ljust(_BYTES)
    if len(data) > _BYTES:
        raise ValueError(f"limit record of {len(data)} bytes; {_BYTES} fit")
    # On a full disk a part may be written, and from half a record nothing can be restored.
    if os.pwrite(descriptor, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def candidates(state_dir: str | os.PathLike[str]) -> list[str]:
    """Paths in the folder that are named like limit records, sorted."""
    return sorted(glob.glob(os.path.join(glob.escape(os.fspath(state_dir)), "limit-*.json")))


def is_record(descriptor: int) -> bool:
    """Whether the file can be read as a limit record."""
    try:
        return bool(read_record(os.pread(descriptor, _BYTES, 0)))
    except (OSError, ValueError):
        return False


def give_back(
    descriptor: int, ports: Sequence[LimitPort] = (), driver: Callable[[], Nvml] = Nvml
) -> str:
    """Restore the limit found unless another process has set another limit; returns a text for the
    log.

    :param ports: the limits of the devices if they are open already.

    Raises OSError if a device does not answer, and any error of a file that is no record.
    """
    record = read_record(os.pread(descriptor, _BYTES, 0))
    written_in = record["boot_id"]
    now_in = boot_id()
    # Empty if it is not known: then the limit in force decides.
    is_booted = "" not in (written_in, now_in) and written_in != now_in
    done = []
    failed = None
    for index, part in enumerate(record["restore"]):
        if is_booted and part["kind"] == "nvml":
            done.append(
                "the host was booted since, so the driver has its default limit: left alone"
            )
            continue
        try:
            port = ports[index] if ports else open_port(part, driver)
            limit_w, text = to_give_back(record, port.limit_w())
            if limit_w is not None:
                port.set_limit_w(limit_w)
            done.append(text)
        except OSError as error:  # the other devices get their limit back
            failed = error
    if failed is not None:
        raise failed
    return "; ".join(done)


def restore_orphans(state_dir: str | os.PathLike[str], driver: Callable[[], Nvml] = Nvml) -> int:
    """Give back the limit of every record that no living guardian holds; returns how many. Raises
    nothing.

    :param driver: opens the driver library; a training opens one whose calls do not hang.
    """
    return sum(_restore_orphan(path, driver) for path in candidates(state_dir))


def _restore_orphan(path: str, driver: Callable[[], Nvml]) -> bool:
    try:
        descriptor = private_files.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False  # restored by another process since the folder was listed: nothing is left
    except OSError as error:
        # Another user's record is usual on a shared host: a warning each time would be noise.
        level = logging.DEBUG if error.errno == errno.EACCES else logging.WARNING
        log.log(
            level,
            "%s is no limit record of this user (%s) and is left alone.",
            visible(path),
            error.strerror,
        )
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Restored by another process after it was opened: the limit may be a new training's by now.
        if not os.fstat(descriptor).st_nlink:
            return False
        try:
            done = give_back(descriptor, driver=driver)
        except OSError as error:  # the device may answer later: the record stays
            log.warning(
                "A training died with its guardian (%s), and its device cannot be reached: %s.",
                visible(path),
                visible(str(error)),
            )
            return False
        except Exception as error:
            # Of any kind: the file may hold anything, deeply nested JSON for instance.
            problem = visible(f"{type(error).__name__}: {error}"[:200])
            log.warning(
                "%s is no limit record that can be read (%s) and is left alone: remove it.",
                visible(path),
                problem,
            )
            return False
        log.warning("A training died with its guardian (%s): %s.", visible(path), done)
        os.unlink(path)
        return True
    except OSError:
        # Its guardian lives; or locks or removals are refused here, which must not stop a training.
        return False
    finally:
        os.close(descriptor)
