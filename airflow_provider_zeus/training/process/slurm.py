"""Submits a Slurm job, waits for it, and cancels it when the wait is stopped: ``slurm.py SBATCH ARGUMENT...``.

:func:`airflow_provider_zeus.operators.supervise.supervise` starts it in the place of ``sbatch``, under the supervisor.
``sbatch --wait`` itself leaves its job in the queue when it is killed. The exit status is that of ``sbatch --wait``:
the job's, or 1 where a signal ended the job; where Slurm itself ended it (scancel, its time limit, its node) it is
143, as of a command that SIGTERM ended. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

# how a job ends that scancel, its time limit or its node has ended
ENDED_BY_SLURM = ("BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT")


class Submission:
    """A running ``sbatch --wait``. ``job``: number and cluster of its job, once sbatch has printed them."""

    def __init__(self, command: list[str]) -> None:
        self.job: tuple[str, str] | None = None
        self._sbatch = command[0]
        self._process = subprocess.Popen(  # noqa: S603  the user's own command
            [command[0], "--wait", *command[1:]], stdout=subprocess.PIPE, preexec_fn=ignore_sigterm
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._text = b""

    def follow(self, wake: int) -> bool:
        """Pass output on until sbatch closes it; False where ``wake`` asked for the end before."""
        poll = select.poll()
        for descriptor in (self._output, wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if wake in ready:
                return False
            if not self._read():
                return True

    def end(self) -> int:
        """Wait for sbatch; return its exit status, and say on stdout where it is not 0.

        The status of a job that Slurm itself ended is that of SIGTERM.
        """
        status = self._process.wait()
        if not status or not self.job:
            return 128 - status if status < 0 else status
        say(f"Slurm job {self.job[0]} ended with status {status}. Its output is in the file that --output names.")
        state = self._state()
        if state in ENDED_BY_SLURM:
            say(f"Slurm says {state}: the job was stopped, and its training did not fail.")
            return 128 + signal.SIGTERM
        return 128 - status if status < 0 else status

    def _state(self) -> str:
        """How Slurm says that the job has ended, such as TIMEOUT; empty where it does not answer."""
        assert self.job is not None
        number, cluster = self.job
        scontrol = os.path.join(os.path.dirname(self._sbatch), "scontrol")  # beside sbatch, else by PATH
        words = [scontrol, *(["--clusters", cluster] if cluster else []), "show", "job", number]
        answer_s = 10.0
        try:
            shown = subprocess.run(words, capture_output=True, timeout=answer_s, check=True)  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return ""
        fields = shown.stdout.decode(errors="replace").split()
        states = [field.removeprefix("JobState=") for field in fields if field.startswith("JobState=")]
        return states[0] if states else ""

    def cancel(self) -> None:
        """Cancel the job, then end sbatch. Raises nothing: what does not work is printed."""
        id_s = 1.5  # how long a stop waits for the number of a job that is being submitted
        end_s = time.monotonic() + id_s
        while self.job is None and (left_s := end_s - time.monotonic()) > 0:
            if not select.select([self._output], [], [], left_s)[0] or not self._read():
                break
        cancel_s = 2.5  # for scancel; the supervisor kills all that is left 3 s after it asked for the end
        if self.job is None:
            say("No Slurm job is cancelled: sbatch has printed no number of a job.")
        else:
            number, cluster = self.job
            scancel = os.path.join(os.path.dirname(self._sbatch), "scancel")  # beside sbatch, else by PATH
            try:
                subprocess.run(  # noqa: S603
                    [scancel, *(["--clusters", cluster] if cluster else []), number],
                    preexec_fn=ignore_sigterm,  # the supervisor sends SIGTERM to every process below it
                    timeout=cancel_s,
                    check=True,
                )
                say(f"Slurm job {number} is cancelled.")
            except (OSError, subprocess.SubprocessError) as error:
                say(f"Slurm job {number} could not be cancelled and may still run: {error}")
        self._process.kill()

    def _read(self) -> bool:
        """Pass one piece of output on and look for the job's number in it; False at its end."""
        data = os.read(self._output, 65536)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        self._text = (self._text + data)[-65536:]
        if self.job is None:
            lines = self._text.decode(errors="replace").split("\n")[:-1]
            self.job = next(filter(None, map(submitted, lines)), None)
        return bool(data)


def submitted(line: str) -> tuple[str, str] | None:
    """The number and the cluster of the job that a line of sbatch names; None if it names no job.

    The line is ``Submitted batch job 7`` or, by ``--parsable``, ``7``; with ``--clusters`` the name of one follows.
    """
    job = line.rstrip().removeprefix("Submitted batch job ").replace(" on cluster ", ";")
    number, _, cluster = job.partition(";")
    if not (number.isascii() and number.isdecimal()) or len(cluster.split()) > 1:
        return None
    return number, cluster


def main() -> int:
    """Submit, wait, cancel where asked to; return the exit status."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    submission = Submission(sys.argv[1:])
    if submission.follow(wake):
        return submission.end()
    submission.cancel()
    return 128 + signal.SIGTERM


def ignore_sigterm() -> None:
    """Have this process and the program that it becomes ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def say(text: str) -> None:
    """Write a line to stdout, the task's log."""
    print(text, flush=True)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr, flush=True)
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None
