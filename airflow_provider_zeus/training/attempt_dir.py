"""A folder for the files of one attempt: empty when it begins, removed when it is given up, left when it is kept.

Beside each folder lies a marker file that its process keeps locked. The kernel unlocks it when the process dies, so the
next run on this host finds the folders of dead attempts by their markers and removes them. A kept folder has no marker.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import JobSpecError

_PREFIX, _MARKER = "zeus-attempt-", ".lock"

log = logging.getLogger(__name__)


class AttemptDir:
    """A new folder under ``root``: mode 0700, or 2770 where ``root`` is shared by a group.

    :param root: default: the folder for temporary files.

    Raises JobSpecError where no folder can be made.
    """

    def __init__(self, root: str | None) -> None:
        place = Path(root or "")
        try:
            place = Path(root or tempfile.gettempdir())  # raises where none can be written to
            private_files.make_folder(place)
            remove_orphans(place)
            self._lock, marker = tempfile.mkstemp(_MARKER, _PREFIX, place)  # private: O_EXCL, mode 0600
            self._marker = Path(marker)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._lock, os.uname().nodename.encode())
            self.kept = False  # its model is kept: the folder belongs to the caller
            self.path = self._marker.with_suffix("")
            private_files.new_folder(self.path)
        except OSError as error:
            raise JobSpecError.of(
                "[zeus] attempt_root",
                str(place),
                f"no folder can be made there: {error.strerror}",
                "name a writable one",
            ) from error

    def keep(self) -> None:
        """Leave the folder to the caller, since the attempt's model is kept. Raises nothing."""
        if not self.kept:
            self.kept = True
            self._remove_marker()

    def remove(self) -> None:
        """Remove the folder, unless it is kept. Raises nothing: what cannot be removed is logged."""
        if not self.kept:
            _remove(self.path)
            self._remove_marker()

    def _remove_marker(self) -> None:
        """Remove the marker. If that fails it no longer names this host, so no run takes the folder for an orphan."""
        try:
            os.ftruncate(self._lock, 0)
            self._marker.unlink()
        except OSError as error:
            log.warning("Zeus could not remove %s: %s", self._marker, error)
        with suppress(OSError):
            os.close(self._lock)


def remove_orphans(root: Path) -> int:
    """Remove the folders of attempts whose process died on this host; return how many. Raises nothing.

    Folders of other users, of other hosts and of running processes are left alone.
    """
    removed, how = 0, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for marker in root.glob(f"{_PREFIX}*{_MARKER}"):
        with suppress(OSError), open(os.open(marker, how), "rb", buffering=0) as lock:
            found = os.fstat(lock.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if lock.read(256).decode(errors="replace") != os.uname().nodename:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its process runs
            log.info("Zeus removes %s, left behind by an attempt that died.", marker.with_suffix(""))
            _remove(marker.with_suffix(""))
            marker.unlink(missing_ok=True)
            removed += 1
    return removed


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("Zeus could not remove %s, the folder of an attempt that was given up: %s", path, error)
