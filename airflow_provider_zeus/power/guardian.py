"""The process that gives a power limit back when the training that changed it dies, by SIGKILL too.

Started by :mod:`airflow_provider_zeus.power.guard` as a script, in a session of its own, without site packages. It
reads one line of JSON from stdin (``trainer`` pid, ``pidfd``, ``path``, ``record``), watches the trainer, creates the
record and holds its lock, answers ``ready``, and waits:

- ``done`` on stdin: the trainer has given the limit back itself;
- the trainer's pidfd is readable: it is dead, whatever it forked and left behind;
- where the kernel has no pidfd: end of file on stdin, whose other end the trainer's forked children close.

It ignores SIGTERM: a service manager sends it to every process of the worker, and this one must be the last. It ends
by itself as soon as the trainer has.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys

DONE = b"done\n"
READY = b"ready\n"


def main() -> int:
    """Guard one trainer; the exit status is 0 when its record is gone."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from airflow_provider_zeus.power import record  # now, not at the end: the package may be replaced meanwhile

    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.chdir("/")
    request = json.loads(_line())
    pidfd = pidfd_of(request["trainer"]) if request["pidfd"] else None
    if os.getppid() != request["trainer"]:
        return 1  # it died before we watched, hence before it set anything
    ports = record.open_ports(request["record"]["restore"])
    descriptor = record.create(request["path"], request["record"])
    with contextlib.suppress(BrokenPipeError):  # it died before it set anything, as its pidfd will tell
        os.write(1, READY)
    os.close(1)
    if not _told_to_finish(pidfd):
        record.give_back(descriptor, ports)  # on an error the record stays, for the next trainer to serve
    os.unlink(request["path"])
    return 0


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            raise EOFError("the trainer died before it said what to guard")
        line += part
    return line


def pidfd_of(pid: int) -> int | None:
    """A descriptor of a process; None where the kernel has none, or a container forbids it."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _told_to_finish(pidfd: int | None) -> bool:
    """Wait for the trainer's word or end: True when it said ``done``."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if pidfd is not None:
        poll.register(pidfd, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if 0 in ready and os.read(0, 64) == DONE:  # looked at first: said just before it ended
            return True
        if pidfd is None or pidfd in ready:
            return False
        poll.unregister(0)  # end of file while the trainer lives: only its pidfd counts


if __name__ == "__main__":
    raise SystemExit(main())
