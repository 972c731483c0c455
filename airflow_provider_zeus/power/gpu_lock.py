"""One training at a time on a GPU of this host: a ``flock`` per GPU in ``[zeus] state_dir``.

Without it the driver tells of another training only once that computes, and two that begin together would each take the
other's energy for theirs. Whoever holds ``gpu-<uuid>.lock`` has its name in the first bytes; whoever trains beside it
(``gpu_lock="share"``, or tired of waiting) appends one byte, by which the holder knows. A GPU whose lock
cannot be opened may be in use: it is not taken for this training's.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from airflow_provider_zeus import private

log = logging.getLogger(__name__)

LOOK_S = 1.0
SAY_EVERY_S = 60.0
_NAME_BYTES = 256
_ALONE = "train on a GPU of its own to have energy measured and power limits set"

# By path, of this process: a second device of it is no other training.
_held: weakref.WeakValueDictionary[str, GpuLock] = weakref.WeakValueDictionary()


class GpuLock:
    """The lock of one or several GPUs, or word that another training has one of them, or may have.

    :param state_dir: a path of the host, shared by its containers.
    :param how: ``wait`` for at most ``wait_s`` seconds, or ``share`` at once.
    :param above: UUIDs whose lock the process holds that started this one to train for it, as an operator a command.
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
        self.why_shared = ""  # empty: these GPUs are this training's
        self.waited = False
        self._files: dict[str, int] = {}  # path -> descriptor that holds the lock
        self._let_go = weakref.finalize(self, _close, self._files)  # of a device that nobody closed, too
        until_s = clock() + (wait_s if how == "wait" else 0.0)
        try:
            for uuid in sorted(set(uuids)):  # in one order, so that no two wait for each other
                path = os.path.abspath(os.path.join(state_dir, f"gpu-{uuid}.lock"))
                holder = "" if path in _held else self._take(path)
                if not holder or uuid in above:
                    continue
                self.waited = True
                if _wait(partial(self._take, path), holder, uuid, until_s, clock, sleep):
                    self._share(path, uuid)
        except BaseException:  # told to stop while it waited
            self.close()
            raise
        for path in self._files:
            _held[path] = self

    def look(self) -> str:
        """Why the GPUs are not this training's alone any more; empty while they are."""
        for path, descriptor in self._files.items():
            if os.fstat(descriptor).st_size > _NAME_BYTES:
                self.why_shared = f"another training of this host came to share the GPU ({Path(path).stem}): {_ALONE}"
        return self.why_shared

    def close(self) -> None:
        """Let go of the locks."""
        for path in self._files:
            _held.pop(path, None)
        self._let_go()

    def _take(self, path: str) -> str:
        """Take the lock; empty when it is taken, or cannot be and ``why_shared`` says so; else who holds it."""
        try:
            private.make_folder(os.path.dirname(path))
            descriptor = private.open_file(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            self._cannot_know(path, error)
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = ""
            if isinstance(error, BlockingIOError):
                holder = os.pread(descriptor, _NAME_BYTES, 0).decode("utf-8", "replace").strip() or "another training"
            else:  # a file system without locks
                self._cannot_know(path, error)
            os.close(descriptor)
            return holder
        with contextlib.suppress(OSError):  # the disk is full: locked it is
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _own_name().encode()[:_NAME_BYTES].ljust(_NAME_BYTES), 0)
        self._files[path] = descriptor
        return ""

    def _cannot_know(self, path: str, error: OSError) -> None:
        self.why_shared = (
            f"whether another training of this host uses the GPU is not known ({path}: {error.strerror}): to have "
            "energy measured and power limits set, let [zeus] state_dir name a folder that this user can write to"
        )
        log.warning("Power limits are not set and energy is not measured: %s.", self.why_shared)

    def _share(self, path: str, uuid: str) -> None:
        with contextlib.suppress(OSError):
            descriptor = private.open_file(path, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, b"+")
            os.close(descriptor)
        self.why_shared = f"another training of this host uses {uuid}: {_ALONE}, or set gpu_lock='wait'"
        log.warning("Power limits are not set and energy is not measured: %s.", self.why_shared)


def _wait(
    take: Callable[[], str],
    holder: str,
    uuid: str,
    until_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> str:
    """Try until the lock is taken or the time is over, with a line in the log at first and every minute; its holder."""
    begun_s = said_s = clock()
    if begun_s >= until_s:
        return holder
    log.info("Zeus waits for %s, at most %.0f min: %s trains on it.", uuid, (until_s - begun_s) / 60, holder)
    while holder and clock() < until_s:
        sleep(LOOK_S)
        holder = take()
        if holder and clock() - said_s >= SAY_EVERY_S:
            said_s = clock()
            log.info("Zeus has waited for %s for %.0f min: %s trains on it.", uuid, (said_s - begun_s) / 60, holder)
    waited_min = (clock() - begun_s) / 60
    if holder:
        log.warning("Zeus waits no longer for %s, after %.0f min: %s trains on it.", uuid, waited_min, holder)
    else:
        log.info("Zeus has %s for itself after %.1f min.", uuid, waited_min)
    return holder


def _own_name() -> str:
    task = ".".join(filter(None, (os.environ.get(f"AIRFLOW_CTX_{name}_ID") for name in ("DAG", "TASK"))))
    process = f"process {os.getpid()} on {socket.gethostname()}"
    return f"{task} ({process})" if task else process


def held_here() -> tuple[str, ...]:
    """UUIDs of the GPUs whose lock this process holds."""
    return tuple(Path(path).stem.removeprefix("gpu-") for path in _held)


def _close(files: dict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def _after_fork() -> None:
    """A forked worker that outlives the training must not hold its lock."""
    for path, lock in list(_held.items()):
        with contextlib.suppress(OSError):
            os.close(lock._files.pop(path))
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
