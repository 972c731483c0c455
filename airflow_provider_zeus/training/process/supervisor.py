"""Runs one command. Ends all its processes on request, or if the supervisor's starter dies.

:mod:`airflow_provider_zeus.training.process.child` starts it as a script, in a new session, without
site packages: ``supervisor.py PARENT_PID GRACE_S COMMAND...``. The command's exit status becomes
its own (128 + n after signal n). On Linux it adopts all processes that the command leaves behind,
daemons in other sessions too, so that none of them keeps a GPU: each gets SIGTERM, and SIGKILL
after ``GRACE_S`` seconds. The guardian of a power limit gets more time: it ends by itself once it
has restored the limit.

A request to stop is end of file on stdin (the starter closed it, or died), or SIGTERM. Standard
library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple

GUARDIAN_S = 5.0  # a guardian that is killed gives no limit back
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """A process. Its start tells it from a later one of the same pid."""

    pid: int
    start: int  # [ticks since boot]; a pid alone may be used again


class ProcessTree:
    """The command and all its descendants.

    ``status``: the command's exit status; None while it runs.
    """

    def __init__(self, command: list[str]) -> None:
        self.status: int | None = None
        self._process = subprocess.Popen(  # noqa: S603  the user's own command
            command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
        )

    def wait(self, wake: int, pidfd: int | None) -> None:
        """Wait until the command has ended, or a request to stop comes.

        :param wake: gets the number of each signal.
        :param pidfd: of the starter.
        """
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(wake, select.POLLIN)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        while self.status is None:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if wake in ready and signal.SIGTERM in os.read(wake, 4096):
                return
            if pidfd in ready:
                return
            if 0 in ready and not os.read(0, 4096):
                return
            self.reap()

    def reap(self) -> bool:
        """Collect processes that have ended; return whether any still runs.

        All of them are children of the supervisor, or below one, so the kernel knows.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._process.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.status = code if code >= 0 else 128 - code
                    # Else Popen would wait for a pid that another process may have by now.
                    self._process.returncode = self.status
        except ChildProcessError:
            return False

    def end(self, grace_s: float) -> None:
        """Send SIGTERM to all processes, and SIGKILL to those that run after ``grace_s`` [s]."""
        kill_s = time.monotonic() + grace_s
        signalled = set[Process]()
        poll_s = 0.02
        # Again and again: a process may start another one between the look and the signal.
        while self.reap():
            now_s = time.monotonic()
            for process in self._running():
                if now_s >= kill_s:
                    if now_s >= kill_s + GUARDIAN_S or not _is_guardian(process.pid):
                        _signal(process, signal.SIGKILL)
                elif process not in signalled:
                    # Once: a second SIGTERM may interrupt a handler that saves a checkpoint.
                    _signal(process, signal.SIGTERM)
                    signalled.add(process)
            time.sleep(poll_s)

    def _running(self) -> list[Process]:
        """The processes that may still run; without ``/proc`` the command alone."""
        if os.path.isdir("/proc/self"):
            return _descendants()
        if self.status is not None:
            return []
        # Its start is not needed: while the command is not collected its pid is not used again.
        return [Process(self._process.pid, 0)]


def main() -> int:
    """Run the command; return its exit status."""
    parent = int(sys.argv[1])
    grace_s = float(sys.argv[2])
    command = sys.argv[3:]
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        # No SIG_IGN, which the command would inherit.
        signal.signal(number, lambda *_: None)
    pidfd = _pidfd(parent)
    # Else init would adopt what the command leaves behind, and no one would end it.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1  # it died before its pidfd was opened, which may be of another process by now
    try:
        tree = ProcessTree(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        # A shell's statuses: whoever reads them knows that no command ran.
        return 127 if isinstance(error, FileNotFoundError) else 126
    tree.wait(wake, pidfd)
    tree.end(grace_s)
    return 1 if tree.status is None else tree.status


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        # Not supported, or forbidden in a container: end of file on stdin remains.
        return None


def _descendants() -> list[Process]:
    """The processes below this one.

    A process whose parent died has become our child. A zombie may still be a parent, until its last
    thread has ended.
    """
    children: dict[int, list[Process]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            pid = int(name)
            parent, start = _parent_and_start(pid)
            children.setdefault(parent, []).append(Process(pid, start))
    below = children.pop(os.getpid(), [])
    for process in below:  # the list grows while it is walked, and so reaches each generation
        below += children.pop(process.pid, [])
    return below


def _parent_and_start(pid: int) -> tuple[int, int]:
    """Pid of the parent of a process, and the start of the process [ticks since boot].

    Raises OSError: the process is gone.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # Behind the last bracket: the name before it may hold spaces and brackets.
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal a process unless its pid belongs to another one by now."""
    # First: the process of an open pidfd stays the same, so the check holds until the signal.
    pidfd = _pidfd(process.pid)
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        if not process.start or process.start == _parent_and_start(process.pid)[1]:
            if pidfd is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
    if pidfd is not None:
        os.close(pidfd)


def _is_guardian(pid: int) -> bool:
    guardian = b"airflow_provider_zeus/power/limits/guardian.py"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return any(argument.endswith(guardian) for argument in file.read().split(b"\0"))
    return False


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; on Linux alone."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main())
