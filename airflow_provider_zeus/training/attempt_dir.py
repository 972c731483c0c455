"""A folder for the files of one attempt: empty when it begins, removed when it is given up, left
when it is kept.

Beside each folder lies a marker file that its process keeps locked. The kernel unlocks it when the
process dies, so the next run on this host finds the folders of dead attempts by their markers and
removes them.

The marker of a kept folder says so until the run has ended. If its process is killed before that,
no run removes the folder, and ``airflow zeus repair`` names it. After that a kept folder has no
marker.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log

_PREFIX = "zeus-attempt-"
_MARKER = ".lock"
_KEPT = b"kept by "  # a folder on a share may be kept by another host, which the marker names

log = guarded_log(__name__)


class AttemptDir:
    """A new folder under ``root``: mode 0700, or 2770 if ``root`` is shared by a group.

    :param root: default: the folder for temporary files.

    Raises JobSpecError if no folder can be made.
    """

    def __init__(self, root: str | None) -> None:
        place = Path(root or "")
        try:
            # Within the try: it raises if no folder for temporary files can be written to.
            place = Path(root or tempfile.gettempdir())
            private_files.make_folder(place)
            remove_orphans(place)
            self._lock, self._marker = _locked_marker(place)
            os.write(self._lock, _host())
            self.kept = False  # a kept model belongs to the caller, who removes it
            self._has_marker = True
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
        if self.kept:
            return
        self.kept = True
        try:
            # In one call, so that a kill leaves the old text or the new one.
            os.pwrite(self._lock, _KEPT + _host(), 0)
        except OSError as error:
            log.warning("Zeus could not write %s: %s", self._marker, error)

    def release(self) -> None:
        """Remove the marker of a kept folder, since its run has ended. Raises nothing."""
        if self.kept:
            self._remove_marker()

    def remove(self) -> None:
        """Remove the folder, unless it is kept.

        Raises nothing: if it cannot be removed, that is logged.
        """
        if not self.kept:
            _remove(self.path)
            self._remove_marker()

    def _remove_marker(self) -> None:
        """Remove the marker. If that fails it no longer names this host, so no run takes the folder
        for an orphan.

        Once: afterwards the number of its descriptor may be that of another file.
        """
        if not self._has_marker:
            return
        self._has_marker = False
        try:
            os.ftruncate(self._lock, 0)
            self._marker.unlink()
        except OSError as error:
            log.warning("Zeus could not remove %s: %s", self._marker, error)
        with suppress(OSError):
            os.close(self._lock)


class KeptFolder(NamedTuple):
    """A kept folder whose process was killed before its run had ended."""

    path: Path
    size_bytes: int


def remove_orphans(root: Path) -> int:
    """Remove the folders of attempts whose process died on this host; return how many. Raises
    nothing.

    Folders of other users, of other hosts and of running processes are left alone, and those that
    were kept.
    """
    removed = 0
    for marker, text in _markers_of_the_dead(root):
        folder = marker.with_suffix("")
        with suppress(OSError):
            if text == _host():
                log.info("Zeus removes %s, left behind by an attempt that died.", folder)
                _remove(folder)
                removed += 1
            elif text or os.path.lexists(folder):
                continue
            # Without both, its process was killed before it could write to its marker, and so
            # before it made the folder.
            marker.unlink(missing_ok=True)
    return removed


def kept_by_the_dead(root: Path) -> list[KeptFolder]:
    """Folders of this host that were kept, and whose process was killed before its run had ended.

    Raises nothing.
    """
    markers = sorted(
        marker for marker, text in _markers_of_the_dead(root) if text == _KEPT + _host()
    )
    folders = [marker.with_suffix("") for marker in markers]
    # A link is none that was made here, and could name any folder as a kept one.
    plain = [folder for folder in folders if not folder.is_symlink()]
    return [KeptFolder(folder, _size_of(folder)) for folder in plain if folder.is_dir()]


def _host() -> bytes:
    return os.uname().nodename.encode()


def _locked_marker(place: Path) -> tuple[int, Path]:
    """A new marker file, and its descriptor, which holds the lock. Raises OSError."""
    while True:
        # O_EXCL and mode 0600: in a shared folder no other user can plant the marker, or lock it.
        descriptor, name = tempfile.mkstemp(_MARKER, _PREFIX, place)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor, Path(name)
        # Another run took it for one that was left behind, before it was locked.
        os.close(descriptor)


def _markers_of_the_dead(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Markers of this user that no process holds, each locked while it is looked at, and their
    text.
    """
    # Others may write to a shared root: no link is followed, and no pipe blocks the open.
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for marker in root.glob(f"{_PREFIX}*{_MARKER}"):
        with suppress(OSError), open(os.open(marker, how), "rb", buffering=0) as lock:
            status = os.fstat(lock.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                continue
            # Raises while its process runs, so that its folder is left alone.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield marker, lock.read(256)


def _size_of(folder: Path) -> int:
    """Bytes of all files in a folder; links are not followed."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process may have removed it: a size is only told
                size_bytes += os.lstat(os.path.join(parent, name)).st_size
    return size_bytes


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning(
            "Zeus could not remove %s, the folder of an attempt that was given up: %s", path, error
        )
