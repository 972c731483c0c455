"""Submits a Slurm job and waits for it: ``slurm.py NOTE JOB SBATCH ARGUMENT...``.

:func:`airflow_provider_zeus.operators.supervise.supervise` starts it in the place of ``sbatch``,
under the supervisor. ``sbatch --wait`` itself leaves its job in the queue when it is killed. JOB is
the line by which sbatch named a job: nothing is submitted then, and that job is waited for. It is
empty otherwise.

When the wait is stopped the job is cancelled. It goes on if there is a file NOTE, by which the next
try of the task finds it.

The exit status is that of ``sbatch --wait``: the job's, or 1 if a signal ended the job. If Slurm
itself ended it (scancel, its time limit, its node) the status is 143, as of a command that SIGTERM
ended. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Ended from outside: such a job reads as a command that was stopped, since no training failed.
ENDED_BY_SLURM = (
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "NODE_FAIL",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
COMPLETED = "COMPLETED"
ENDED = (*ENDED_BY_SLURM, COMPLETED, "FAILED", "OUT_OF_MEMORY")
UNKNOWN = ""  # Slurm forgets a job minutes after its end
STOPPED = 128 + signal.SIGTERM
ANSWER_S = 10.0  # a controller under load answers late, and a task has to go on


class Account(NamedTuple):
    """A job in Slurm's accounts."""

    state: str = UNKNOWN
    status: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job of Slurm.

    :param cluster: empty: the one that sbatch submits to.
    :param sbatch: the command that submitted it. Slurm's other commands are beside it, or in PATH
        if it has no folder.
    :param environ: of Slurm's commands; None: that of this process.
    """

    number: str
    cluster: str
    sbatch: str
    environ: Mapping[str, str] | None = None

    def state(self) -> str | None:
        """How Slurm says that the job stands, such as RUNNING or :data:`UNKNOWN`; None: no answer.

        squeue knows a job until some minutes after its end; after that sacct does, if accounts are
        kept.
        """
        options = ["--noheader", "--states=all", "--format=%T", f"--jobs={self.number}"]
        try:
            queue = self._ask("squeue", *options)
        except subprocess.TimeoutExpired:
            return None
        except OSError:  # there is no squeue, and sacct may be there all the same
            return self._account().state
        if queue.returncode != 0:
            if b"Invalid job id" in queue.stderr:
                return self._account().state
            return None  # such as a controller that restarts: the job may run
        states = queue.stdout.decode(errors="replace").split()
        if not states:
            return self._account().state
        # An array goes on as long as one of its tasks does.
        return next((state for state in states if state not in ENDED), states[-1])

    def status(self, state: str) -> int:
        """The exit status of a job that has ended in a state."""
        if state in ENDED_BY_SLURM:
            return STOPPED
        if state == COMPLETED:
            return 0
        return max(self._account().status, 1)  # without accounts a failure must not read as 0

    def cancel(self) -> str:
        """Cancel the job; return a line that says whether it did. Raises nothing."""
        # The supervisor kills all that runs 3 s after it asked for the end.
        cancel_s = 2.5
        try:
            subprocess.run(  # noqa: S603
                self._words("scancel", self.number),
                # The supervisor sends SIGTERM to every process below it: it must not end scancel.
                preexec_fn=ignore_sigterm,
                env=self.environ,
                timeout=cancel_s,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"Slurm job {self.number} could not be cancelled and may still run: {error}"
        return f"Slurm job {self.number} is cancelled."

    def _account(self) -> Account:
        """The job in Slurm's accounts; an empty one if they are not kept, or do not hold it."""
        options = ["--noheader", "--parsable2", "--allocations", "--format=State,ExitCode"]
        try:
            answer = self._ask("sacct", *options, f"--jobs={self.number}")
        except (OSError, subprocess.TimeoutExpired):
            return Account()
        lines = answer.stdout.decode(errors="replace").splitlines()
        if not lines:
            return Account()
        # sacct may say "CANCELLED by 1000|0:0": only the first word is the state, and behind the
        # status stands a signal.
        text, _, code = lines[-1].partition("|")
        state, _, _ = text.partition(" ")
        status, _, _ = code.partition(":")
        if not _is_number(status) or len(status) > 3:
            return Account(state)
        return Account(state, int(status))

    def _ask(self, command: str, *options: str) -> subprocess.CompletedProcess[bytes]:
        """Run one of Slurm's commands. Raises OSError, TimeoutExpired."""
        words = self._words(command, *options)
        return subprocess.run(  # noqa: S603
            words, env=self.environ, capture_output=True, timeout=ANSWER_S, check=False
        )

    def _words(self, command: str, *options: str) -> list[str]:
        path = os.path.join(os.path.dirname(self.sbatch), command)
        if not self.cluster:
            return [path, *options]
        return [path, f"--clusters={self.cluster}", *options]


def job_of(text: str, sbatch: str, environ: Mapping[str, str] | None = None) -> Job | None:
    """The job that a line of sbatch names; None if it names no job.

    The line is ``Submitted batch job 7`` or, by ``--parsable``, ``7``; with ``--clusters`` the name
    of one follows.
    """
    name = text.rstrip().removeprefix("Submitted batch job ").replace(" on cluster ", ";")
    number, _, cluster = name.partition(";")
    # Both become options of commands, and any process of the user's may have printed the line.
    bare = cluster.replace("-", "").replace("_", "").replace(".", "")
    is_name = bare.isascii() and bare.isalnum()
    if not _is_number(number):
        return None
    if cluster and not is_name:
        return None
    return Job(number, cluster, sbatch, environ)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class Submission:
    """A running ``sbatch --wait``. ``job``: None until sbatch has printed its number."""

    def __init__(self, command: list[str]) -> None:
        self.job: Job | None = None
        self._sbatch = command[0]
        self._process = subprocess.Popen(  # noqa: S603  the user's own command
            [command[0], "--wait", *command[1:]], stdout=subprocess.PIPE, preexec_fn=ignore_sigterm
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._text = b""

    def status(self, wake: int) -> int | None:
        """Pass output on, wait for sbatch, return its status; None if ``wake`` asked for the end.

        The status of a job that Slurm itself ended is that of SIGTERM.
        """
        is_open = True
        while is_open:
            ready, _, _ = select.select([self._output, wake], [], [])
            if wake in ready:
                return None
            is_open = self._read()
        status = self._process.wait()
        if status < 0:
            return 128 - status
        if status == 0 or self.job is None:
            return status
        state = self.job.state()
        say_end(self.job, status, state)
        if state in ENDED_BY_SLURM:
            return STOPPED
        return status

    def leave(self) -> Job | None:
        """End sbatch, whose job goes on; return that job, None if sbatch has named none."""
        # Without its number, a job that is being submitted could not be cancelled.
        wait_s = 1.5
        end_s = time.monotonic() + wait_s
        while self.job is None and wait_s > 0:
            ready, _, _ = select.select([self._output], [], [], wait_s)
            if not ready or not self._read():
                break
            wait_s = end_s - time.monotonic()
        self._process.kill()
        return self.job

    def _read(self) -> bool:
        """Pass one piece of output on and look for the job's number in it; False at its end."""
        data = os.read(self._output, 65536)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        # The job's number comes in a short line: no output may fill the memory for it.
        self._text = (self._text + data)[-65536:]
        *lines, _ = self._text.decode(errors="replace").split("\n")
        for line in lines:
            if self.job is None:
                self.job = job_of(line, self._sbatch)
        return bool(data)


def status_of(job: Job, wake: int) -> int | None:
    """Wait for a job that an earlier process submitted; return its status, as :class:`Submission`.

    It is 0 for a job that Slurm has forgotten when the wait begins: it is waited for only if its
    result says that it kept a model.
    """
    pause_s = 2.0
    longest_s = 32.0
    unknown_status = 0
    while True:
        state = job.state()
        ready, _, _ = select.select([wake], [], [], 0)
        # Before the answer counts: the signal has ended Slurm's command, too.
        if ready:
            return None
        if state == UNKNOWN:
            return unknown_status
        if state in ENDED:
            status = job.status(state)
            if status:
                say_end(job, status, state)
            return status
        if state is not None:
            unknown_status = 1  # it ran here: a job that Slurm forgets now may have failed
        ready, _, _ = select.select([wake], [], [], pause_s)
        if ready:
            return None
        pause_s = min(2 * pause_s, longest_s)


def say_end(job: Job, status: int, state: str | None) -> None:
    """Say how a job ended that failed."""
    say(
        f"Slurm job {job.number} ended with status {status}. Its output is in the file that "
        "--output names."
    )
    if state in ENDED_BY_SLURM:
        say(f"Slurm says {state}: the job was stopped, and its training did not fail.")


def main() -> int:
    """Submit or find the job, wait for it, cancel it if the wait is stopped; return the status."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)  # set_wakeup_fd() refuses one that may block
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # an ignored signal would not wake the wait
    _, note, line, *command = sys.argv
    sbatch, *_ = command
    job = job_of(line, sbatch)
    if job is None:
        submission = Submission(command)
        status = submission.status(wake)
        job = submission.leave() if status is None else None
    else:
        say(line)
        status = status_of(job, wake)
    if status is not None:
        return status
    if job is None:
        say("No Slurm job is cancelled: sbatch has printed no number of a job.")
    elif os.path.exists(note):
        say(f"Slurm job {job.number} goes on, for the next try of its task.")
    else:
        say(job.cancel())
    return STOPPED


def words(command: list[str], *, note: str = "", job: str = "") -> list[str]:
    """The command that runs this module on ``sbatch`` and its arguments."""
    return [sys.executable, "-I", "-S", __file__, note, job, *command]


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
        # There is no sbatch, or it cannot be run: a shell's statuses say which.
        print(f"{sys.argv[3]}: {error.strerror}", file=sys.stderr, flush=True)
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None
