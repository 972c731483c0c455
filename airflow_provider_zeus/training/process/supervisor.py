"""Runs one command, and ends all its processes on request or when the process that started the supervisor dies.

:mod:`airflow_provider_zeus.training.process.child` starts it as a script, in a new session, without site packages:
``supervisor.py PARENT_PID GRACE_S COMMAND...``. The command's exit status becomes its own (128 + n after signal n). On
Linux it adopts all processes that the command leaves behind, daemons in other sessions too, so that none of them keeps
a GPU: each gets SIGTERM, and SIGKILL after ``GRACE_S`` seconds. The guardian of a power limit gets more time: it ends
by itself once it has restored the limit.

A request to stop is end of file on stdin (the starter closed it, or died), or SIGTERM. Standard library only.
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


class ProcessTree:
    """The command and all its descendants. ``status``: the command's exit status, None while it runs."""

    def __init__(self, command: list[str]) -> None:
        self.status: int | None = None
        self._process = subprocess.Popen(  # noqa: S603  the user's own command
            command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
        )

    def reap(self) -> bool:
        """Collect processes that have ended; return whether any is left. All of them are children of the supervisor, or
        below one, so the kernel knows.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._process.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.status = self._process.returncode = 128 - code if code < 0 else code
        except ChildProcessError:
            return False

    def end(self, grace_s: float) -> None:
        """Send SIGTERM to all processes that are left, SIGKILL to those that still run after ``grace_s`` seconds."""
        start_s, signalled = time.monotonic(), set[tuple[int, int]]()
        poll_s = 0.02
        guardian_s = 5.0  # how much longer than the other processes it may take
        while self.reap():
            late_s = time.monotonic() - start_s - grace_s
            if os.path.isdir("/proc/self"):
                left = _descendants()
            else:  # the command alone; while it is not collected its pid is not reused
                left = [] if self.status is not None else [(self._process.pid, 0)]
            if late_s >= 0:
                _signal([each for each in left if late_s >= guardian_s or not _is_guardian(each[0])], signal.SIGKILL)
            else:
                _signal([each for each in left if each not in signalled], signal.SIGTERM)
                signalled.update(left)
            time.sleep(poll_s)


def main() -> int:
    """Run the command; return its exit status."""
    parent, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)  # gets the number of each signal that arrives
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # replaced by the default in the command: a handler is not inherited
    pidfd = _pidfd(parent)
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: adopt what the command leaves behind
    if os.getppid() != parent:
        return 1  # the parent died before its pidfd was opened
    try:
        tree = ProcessTree(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127 if isinstance(error, FileNotFoundError) else 126  # as in a shell
    poll = select.poll()
    for descriptor in (0, wake, *([] if pidfd is None else [pidfd])):
        poll.register(descriptor, select.POLLIN)
    while tree.status is None:  # until the command has ended, or a request to stop comes
        ready = [descriptor for descriptor, _ in poll.poll()]
        if wake in ready and signal.SIGTERM in os.read(wake, 4096):
            break
        if pidfd in ready or (0 in ready and not os.read(0, 4096)):
            break
        tree.reap()
    tree.end(grace_s)
    return 1 if tree.status is None else tree.status


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):  # not supported, or forbidden in a container: end of file on stdin remains
        return None


def _descendants() -> list[tuple[int, int]]:
    """(pid, start) of the processes below this one. A process whose parent died has become our child. A zombie may
    still be a parent, until its last thread has ended.
    """
    parents: dict[int, tuple[int, int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(name)] = _parent_and_start(int(name))
    found = [(os.getpid(), 0)]
    for above, _ in found:  # grows while it is walked
        found += [(pid, start) for pid, (parent, start) in parents.items() if parent == above]
    return found[1:]


def _parent_and_start(pid: int) -> tuple[int, int]:
    """The parent of a process, and its start time [ticks since boot]. Raises OSError: the process is gone."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def _signal(processes: list[tuple[int, int]], number: signal.Signals) -> None:
    """Signal the processes whose start time is unchanged; the pid of one that ended may belong to another by now."""
    for pid, start in processes:
        pidfd = _pidfd(pid)
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if not start or start == _parent_and_start(pid)[1]:
                os.kill(pid, number) if pidfd is None else signal.pidfd_send_signal(pidfd, number)
        if pidfd is not None:
            os.close(pidfd)


def _is_guardian(pid: int) -> bool:
    guardian = b"airflow_provider_zeus/power/limits/guardian.py"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return any(argument.endswith(guardian) for argument in file.read().split(b"\0"))
    return False


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies. Does nothing where the system is not Linux."""
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main())
