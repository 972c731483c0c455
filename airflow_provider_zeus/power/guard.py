"""The trainer's side of the guardian: start it, note each limit before it is set, release it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from airflow_provider_zeus import private
from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power import guardian, record

START_S = 5.0  # a start takes some 50 ms; a host under load needs longer
_FINISH_S = 5.0
_KILLED_S = 1.0

_pipes: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def _close_pipes() -> None:
    """In a forked child: without a pidfd, the trainer's end of the pipe in a child would hide its death."""
    for pipe in list(_pipes):
        pipe.close()


os.register_at_fork(after_in_child=_close_pipes)


class Guard:
    """A running guardian of one device's limit. Raises DeviceError when it cannot be started.

    :param restore: the device's ``restore_record()``.
    :param limit_found_w: what is given back [W].
    :param limits_set_w: limits that were set already, one of which is in force [W].
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        restore: dict[str, Any],
        limit_found_w: float,
        limits_set_w: Sequence[float] = (),
    ) -> None:
        self._state_dir = state_dir
        self._path = os.path.abspath(os.path.join(state_dir, f"limit-{uuid.uuid4().hex}.json"))
        self._record: dict[str, Any] = {
            "restore": restore,
            "limit_found_w": limit_found_w,
            "limits_set_w": list(limits_set_w),
        }
        request = {
            "trainer": os.getpid(),
            "pidfd": hasattr(os, "pidfd_open"),
            "path": self._path,
            "record": self._record,
        }
        try:
            private.make_folder(state_dir)
            self._process = subprocess.Popen(  # noqa: S603  this package's own file, no shell
                [sys.executable, "-I", "-S", guardian.__file__],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise DeviceError(f"the guardian of the power limit cannot start: {error}") from error
        self._pidfd = guardian.pidfd_of(self._process.pid)
        self._shake_hands(json.dumps(request).encode() + b"\n")

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return not self._ended(0.0) and os.path.exists(self._path)

    def restarted(self) -> Guard:
        """Another guardian with the record of this one, which is dead. Raises DeviceError: the record stays then."""
        another = Guard(
            self._state_dir, self._record["restore"], self._record["limit_found_w"], self._record["limits_set_w"]
        )
        self._kill()
        self._let_go()
        return another

    def note(self, *limits_w: float) -> None:
        """Write down the limits one of which will be in force from now on: the present and the next [W]."""
        self._record["limits_set_w"] = list(limits_w)
        descriptor = private.open_file(self._path, os.O_RDWR)
        try:
            record.write(descriptor, self._record)
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        """The limit has been given back: the record goes and the guardian ends."""
        try:
            with suppress(OSError):  # it is gone
                self._stdin.write(guardian.DONE)
                self._ended(_FINISH_S)
            self._kill()  # what is left of it
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._stdin.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _shake_hands(self, request: bytes) -> None:
        answers = self._process.stdout
        assert answers is not None
        _pipes.add(self._stdin)
        try:
            self._stdin.write(request)
            poll = select.poll()  # not select(): a training may have thousands of open files
            poll.register(answers, select.POLLIN)
            ready = poll.poll(START_S * 1000)
            answer = answers.read(len(guardian.READY)) if ready else f"no answer within {START_S:g} s"
        except OSError as error:
            answer = str(error)
        finally:
            answers.close()
        if answer != guardian.READY:
            self._kill()
            self._let_go()
            raise DeviceError(
                f"the guardian of the power limit did not start (is state_dir writable, and the GPU's driver within "
                f"reach?): {answer!r}"
            )

    def _kill(self) -> None:
        """End the guardian. One that hangs in the driver is not waited for: it ends as soon as that lets go of it."""
        with suppress(OSError):
            if self._pidfd is None:
                self._process.kill()
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._ended(_KILLED_S)
        with suppress(OSError):  # it was never made, or its folder is gone
            os.unlink(self._path)

    def _ended(self, within_s: float) -> bool:
        """Whether the guardian ends in that time. By its pidfd: the training may collect any child process, and the pid
        may be another one's after that.
        """
        if self._pidfd is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
            return self._process.returncode is not None
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(within_s * 1000):
            return False
        with suppress(OSError):  # collected already
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        self._process.returncode = 0
        return True
