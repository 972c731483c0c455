"""The guardian process: gives a power limit back when the training that changed it dies, by SIGKILL
too.

:mod:`~airflow_provider_zeus.power.limits.guardian_client` starts this file as a script, in its own
session and without site packages. The guardian reads one line of JSON from stdin (``trainer`` pid,
``pidfd``, ``path``, ``record``), watches the trainer, creates the record, locks it, and answers
``ready``. Then it waits for one of:

- ``done`` on stdin: the trainer has given the limit back itself;
- the trainer's pidfd is readable: the trainer is dead; children that it forked do not matter;
- if the kernel has no pidfd: end of file on stdin, whose other end the trainer's forked children
  close.

It ignores SIGTERM, which a service manager sends to every process of the worker: the guardian must
end last. It ends when the trainer ends. Standard library only.
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
    """Guard one trainer; the exit status is 0 once the record is removed."""
    sys.path.append(
        os.path.dirname(
            os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        )
    )
    # Now: the package may be replaced while this process waits.
    from airflow_provider_zeus.power.limits import record

    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.chdir("/")  # else the training's folder could not be unmounted while this process waits
    # Unbuffered: a buffer could swallow the DONE that is read below.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        request = json.loads(stdin.readline())
    pidfd = None
    if request["pidfd"]:
        pidfd = pidfd_of(request["trainer"])
    # If the trainer died before, its pid may be another process's by now: the parent's id tells.
    is_orphan = os.getppid() != request["trainer"]
    if is_orphan and not request["record"]["set_w"]:
        return 1  # no limit was set; with one, this guardian replaces a dead one and gives it back
    ports = [record.open_port(part) for part in request["record"]["restore"]]
    descriptor = record.create(request["path"], request["record"])
    # Nobody reads if the trainer has just died, which its pidfd reports below.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, READY)
    os.close(1)
    poll = select.poll()
    done = False
    poll.register(0, select.POLLIN)
    if pidfd is not None:
        poll.register(pidfd, select.POLLIN)
    while not is_orphan:  # a dead trainer says nothing: the wait could last for ever
        ready = dict(poll.poll())
        # First: the trainer may have written it just before it ended.
        done = 0 in ready and os.read(0, 64) == DONE
        is_dead = pidfd is None or pidfd in ready
        if done or is_dead:
            break
        poll.unregister(0)  # end of file while the trainer lives: only its pidfd counts
    if not done:
        record.give_back(descriptor, ports)  # on an error the record stays for the next training
    # Last: if this process is killed before, the next training gives the limit back.
    os.unlink(request["path"])
    return 0


def pidfd_of(pid: int) -> int | None:
    """Open a pidfd of a process; None if the kernel has none, or a container forbids it."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


if __name__ == "__main__":
    raise SystemExit(main())
