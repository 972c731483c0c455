"""The trainer's side of the guardian: start it, record each limit before it is set, end it."""

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

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.limits import guardian, record
from airflow_provider_zeus.power.limits.limit_format import new_record

START_S = 5.0  # a start takes some 50 ms; a host under load needs longer

_pipes: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()
# In a forked child they are closed: without a pidfd, an end that stays open there hides the
# trainer's death.
os.register_at_fork(after_in_child=lambda: [pipe.close() for pipe in list(_pipes)])


class GuardianClient:
    """Starts the guardian process of one device's limit and talks to it. Raises DeviceError: it
    cannot be started.

    :param restore: the device's ``restore_record()``.
    :param limit_found_w: the limit that the guardian gives back [W].
    :param limits_set_w: limits that were set already, one of which is in force [W].
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        restore: list[dict[str, Any]],
        limit_found_w: float,
        limits_set_w: Sequence[float] = (),
    ) -> None:
        self._state_dir = state_dir
        self._path = os.path.abspath(os.path.join(state_dir, f"limit-{uuid.uuid4().hex}.json"))
        self._record = {**new_record(limit_found_w, *limits_set_w), "restore": restore}
        try:
            private_files.make_folder(state_dir)
            self._process = subprocess.Popen(  # noqa: S603  this package's own file, no shell
                [sys.executable, "-I", "-S", guardian.__file__],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C, or a signal to the trainer's group, must miss it
            )
        except OSError as error:
            raise DeviceError(f"the guardian of the power limit cannot start: {error}") from error
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        _pipes.add(self._stdin)
        self._pidfd = guardian.pidfd_of(self._process.pid)
        self._send_request()

    @property
    def alive(self) -> bool:
        """Whether the guardian runs and its record exists."""
        return not self._ended(0.0) and os.path.exists(self._path)

    def restarted(self) -> GuardianClient:
        """Start another guardian with the record of this dead one.

        Raises DeviceError: the record stays then.
        """
        another = GuardianClient(
            self._state_dir,
            self._record["restore"],
            self._record["found_w"],
            limits_set_w=self._record["set_w"],
        )
        # Last: until another guardian is ready, only this one's record tells of the limit.
        self._kill()
        self._close()
        return another

    def note(self, *limits_w: float) -> None:
        """Record the limits of which one will be in force from now on: the present and the next
        [W].
        """
        self._record["set_w"] = list(limits_w)
        file = private_files.open_file(self._path, os.O_RDWR)
        with private_files.closing(file) as descriptor:
            record.write(descriptor, self._record)

    def finish(self) -> None:
        """End the guardian and remove its record, after the limit was given back."""
        finish_s = 5.0
        try:
            with suppress(OSError):  # a dead guardian reads nothing: its record is removed below
                self._stdin.write(guardian.DONE)
                self._ended(finish_s)
            self._kill()
        finally:
            self._close()

    def _send_request(self) -> None:
        """Send the record to guard and wait for ``ready``."""
        request = {
            "trainer": os.getpid(),
            "pidfd": hasattr(os, "pidfd_open"),
            "path": self._path,
            "record": self._record,
        }
        stdout = self._process.stdout
        assert stdout is not None
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
            poll = select.poll()  # not select(): a training may have thousands of open files
            poll.register(stdout, select.POLLIN)
            answer: bytes | str = f"no answer within {START_S:g} s"
            if poll.poll(START_S * 1000):
                answer = stdout.read(len(guardian.READY))
        except OSError as error:
            answer = str(error)
        finally:
            stdout.close()
        if answer != guardian.READY:
            self._kill()
            self._close()
            raise DeviceError(
                "the guardian of the power limit did not start (is state_dir writable, and does "
                f"the GPU's driver answer?): {answer!r}"
            )

    def _close(self) -> None:
        self._stdin.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _kill(self) -> None:
        """Kill the guardian and remove its record.

        One that hangs in the driver ends later and is not waited for.
        """
        with suppress(OSError):
            if self._pidfd is None:
                self._process.kill()
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        killed_s = 1.0
        self._ended(killed_s)
        with suppress(OSError):  # never created, or its folder is gone: nothing is left to remove
            os.unlink(self._path)

    def _ended(self, within_s: float) -> bool:
        """Wait for the guardian's end; False after so many seconds.

        By its pidfd: the training may collect any child process, and another process may have the
        pid after that.
        """
        if self._pidfd is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
            return self._process.returncode is not None
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(within_s * 1000):
            return False
        with suppress(OSError):  # the training collected it already, which is as good
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        self._process.returncode = 0
        return True
