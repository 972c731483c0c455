"""One training at a time on a GPU of this host: a ``flock`` per GPU in ``[zeus] state_dir``.

The driver alone does not suffice: it lists another training only once that computes, and two
trainings that begin together would each measure the other's energy. The holder of
``gpu-<uuid>.lock`` writes its name into the first bytes. A training that shares the GPU
(``gpu_lock="share"``, or after waiting too long) appends one byte to tell the holder. A GPU whose
lock cannot be opened may be in use and counts as shared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from airflow_provider_zeus import private_files
from airflow_provider_zeus.log_guard import guarded_log

log = guarded_log(__name__)

POLL_S = 1.0
_NAME_BYTES = 256
ALONE = "train on a GPU of its own to have energy measured and power limits set"

# The locks of this process by path: a second device of the same process is not another training.
_held: weakref.WeakValueDictionary[str, GpuLock] = weakref.WeakValueDictionary()


class GpuLock:
    """Takes the locks of one or several GPUs, or finds that another training uses one of them.

    ``why_shared`` is empty if the GPUs are this training's alone; ``waited`` is whether another
    training had one.

    :param state_dir: a path of the host, shared by its containers.
    :param how: ``wait`` for at most ``wait_s`` seconds, or ``share`` at once.
    :param above: UUIDs of GPUs whose lock the parent process holds for this training, as an
        operator for its command.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        uuids: Sequence[str],
        *,
        how: str,
        wait_s: float,
        above: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.why_shared = ""
        self.waited = False
        self._clock = clock
        self._sleep = sleep
        self._files: dict[str, int] = {}  # the lock lasts while its descriptor is open
        # A device that is never closed must not hold its GPU until the process ends.
        self._close_files = weakref.finalize(self, _close, self._files)
        until_s = clock()
        if how == "wait":
            until_s += wait_s
        try:
            # Always in the same order, so that no two trainings wait for each other.
            for uuid in sorted(set(uuids)):
                path = os.path.abspath(os.path.join(state_dir, f"gpu-{uuid}.lock"))
                holder = "" if path in _held else self._acquire(path)
                # The parent holds it for this training: a wait for it would never end.
                if not holder or uuid in above:
                    continue
                self.waited = True
                # Without the lock it trains all the same: a GPU that is busy fails no training.
                if self._wait(path, holder, uuid, until_s):
                    # The holder must know: the energy that it measures is no longer its own.
                    tell_holder(state_dir, uuid)
                    used = f"another training of this host uses {uuid}"
                    self.why_shared = f"{used}: {ALONE}, or set gpu_lock='wait'"
                    log.warning(
                        "Power limits are not set and energy is not measured: %s.", self.why_shared
                    )
        except BaseException:  # a task that is stopped while it waits must keep no lock
            self.close()
            raise
        for path in self._files:
            _held[path] = self

    def check(self) -> str:
        """Update and return ``why_shared``: empty while no other training shares the GPUs."""
        for path, descriptor in self._files.items():
            try:
                # A byte more is all that two processes of different users can tell each other.
                size = os.fstat(descriptor).st_size
            except OSError as error:  # closed, or its file system is gone: the last answer counts
                log.debug("The lock %s cannot be read: %s", path, error)
                continue
            if size > _NAME_BYTES:  # a name fills these: only tell_holder() of another appends
                gpu = Path(path).stem
                came = f"another training of this host came to share the GPU ({gpu})"
                self.why_shared = f"{came}: {ALONE}"
        return self.why_shared

    def close(self) -> None:
        """Release the locks."""
        for path in self._files:
            _held.pop(path, None)
        self._close_files()

    def _acquire(self, path: str) -> str:
        """Try to take the lock.

        Returns its holder; empty if it was taken, or cannot be, as ``why_shared`` says.
        """
        descriptor = None
        try:
            private_files.make_folder(os.path.dirname(path))
            descriptor = private_files.open_file(path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if descriptor is not None and isinstance(error, BlockingIOError):
                with open(descriptor, "rb", buffering=0) as file:
                    holder = file.read(_NAME_BYTES).decode("utf-8", "replace").strip()
                return holder or "another training"
            if descriptor is not None:  # a file system without locks, which tells of no other
                os.close(descriptor)
            self.why_shared = (
                f"whether another training of this host uses the GPU is not known ({path}: "
                f"{error.strerror}): to have energy measured and power limits set, let [zeus] "
                "state_dir name a folder that this user can write to"
            )
            log.warning("Power limits are not set and energy is not measured: %s.", self.why_shared)
            return ""
        ids = (os.environ.get("AIRFLOW_CTX_DAG_ID"), os.environ.get("AIRFLOW_CTX_TASK_ID"))
        task = ".".join(filter(None, ids))
        name = f"process {os.getpid()} on {socket.gethostname()}"
        if task:
            name += f" ({task})"  # at the end, which may be cut off: tell_holder() reads the rest
        with contextlib.suppress(OSError):  # the disk is full; the lock is taken all the same
            os.ftruncate(descriptor, 0)  # bytes for an earlier holder must not tell this one
            os.pwrite(descriptor, name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES), 0)
        self._files[path] = descriptor
        return ""

    def _wait(self, path: str, holder: str, uuid: str, until_s: float) -> str:
        """Wait until the lock is taken or the time is over, with a log line each minute.

        Returns the last holder.
        """
        start_s = self._clock()
        logged_s = start_s
        # Without a wait a line about waiting would mislead.
        if start_s >= until_s:
            return holder
        log.info(
            "Zeus waits for %s, at most %.0f min: %s trains on it.",
            uuid,
            (until_s - start_s) / 60,
            holder,
        )
        log_every_s = 60.0
        while holder and self._clock() < until_s:
            self._sleep(POLL_S)
            holder = self._acquire(path)
            if holder and self._clock() - logged_s >= log_every_s:
                logged_s = self._clock()
                log.info(
                    "Zeus has waited for %s for %.0f min: %s trains on it.",
                    uuid,
                    (logged_s - start_s) / 60,
                    holder,
                )
        waited_min = (self._clock() - start_s) / 60
        if holder:
            log.warning(
                "Zeus stops waiting for %s after %.0f min: %s trains on it.",
                uuid,
                waited_min,
                holder,
            )
        else:
            log.info("Zeus has %s for itself after %.1f min.", uuid, waited_min)
        return holder


def tell_holder(state_dir: str | os.PathLike[str], uuid: str, ours: Collection[int] = ()) -> None:
    """Let another process that holds the lock of a GPU know, by one more byte, that it is not
    alone. Raises nothing.

    :param ours: processes of this training, one of which may hold it.
    """
    path = os.path.abspath(os.path.join(state_dir, f"gpu-{uuid}.lock"))
    if path in _held:  # this training would find itself shared by its own byte
        return
    with contextlib.suppress(OSError):  # no lock, so nobody holds it and is to be told
        file = private_files.open_file(path, os.O_RDWR | os.O_APPEND)
        with private_files.closing(file) as descriptor:
            holder = os.pread(descriptor, _NAME_BYTES, 0).decode("utf-8", "replace")
            # A task must not report itself as a stranger.
            if not any(f"process {pid} on {socket.gethostname()}" in holder for pid in ours):
                os.write(descriptor, b"+")


def held_here() -> tuple[str, ...]:
    """UUIDs of the GPUs whose lock this process holds."""
    return tuple(Path(path).stem.removeprefix("gpu-") for path in _held)


def _close(files: dict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def _after_fork() -> None:
    """Close the locks in a forked worker: one that outlives the training must not hold them."""
    for path, lock in list(_held.items()):
        with contextlib.suppress(OSError):
            os.close(lock._files.pop(path))
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
