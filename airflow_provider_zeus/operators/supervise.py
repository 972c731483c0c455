"""Train by a command: start it with the plan in its environment, follow its result file, report its
cost.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.sdk.exceptions import AirflowException

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.errors import BelowTargetError
from airflow_provider_zeus.log_guard import guarded_log, level
from airflow_provider_zeus.model.trial import (
    NO_STRIKE,
    UNSEEN,
    Observation,
    PlannedAttempt,
    PowerPoint,
    State,
)
from airflow_provider_zeus.operators.collect import FirstStarts, LinesOfPlan
from airflow_provider_zeus.operators.external_meter import (
    ELSEWHERE,
    ExternalMeter,
    outcome_of,
    seen_to_use,
)
from airflow_provider_zeus.operators.left_job import (
    FOLDER,
    LeftJob,
    note_in,
    plan_in,
    result_in,
)
from airflow_provider_zeus.operators.mixins import is_timed_out
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.training.process import slurm
from airflow_provider_zeus.training.process.child import Child, Follower
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.events import (
    AUTHORS,
    TOO_FEW,
    Kind,
    ResultLine,
    ResultSender,
)
from airflow_provider_zeus.training.protocol.plan import Ended, Plan

READ_S = 1.0  # a page that shows a training is a second late at most

log = guarded_log(__name__)


def supervise(
    recurrence: Recurrence, command: Sequence[str], environ: Mapping[str, str], cwd: str | None
) -> str:
    """Run a command until its model is kept, once per attempt if needed; return the last line of
    its output.

    Raises AirflowException when it fails, BelowTargetError if its job requires the target,
    OSError or ValueError if no process can be started.
    """
    plan = replace(recurrence.plan, restarts=True)
    first_starts = FirstStarts()
    began_s = time.monotonic()
    with ExitStack() as stack:
        folder = _folder(recurrence, stack)
        left_job = recurrence.left
        if left_job is not None:
            # their attempts belong to this run's cost, and only their files hold their
            # last lines
            for earlier in left_job.plans[:-1]:
                CommandStart(recurrence, earlier, folder, first_starts, began_s).reread()
        while True:
            start = CommandStart(recurrence, plan, folder, first_starts, began_s)
            log.info("Zeus: batch size %d. %s", plan.attempts[0].batch_size, plan.attempts[0].why)
            if left_job is not None:
                start.go_on_with(left_job)
                left_job = None
            status, last_line = start.run(command, environ, cwd)
            following: Plan | None = None
            with outlived("find out whether the command runs again"):
                following = start.next_plan(status)
            if following is None:
                break
            plan = following
            log.info("Zeus: that attempt is over; the command is started again.")
    with outlived("say how the command ended", but=(BelowTargetError, AirflowException)):
        _judge(recurrence, start, status)
    if status != 0:
        raise failure(status, last_line)
    return last_line


def failure(status: int, last_line: str) -> AirflowException:
    """The error of a command that has failed."""
    return AirflowException(
        f"The command {ended(status)}. Its last line: {masked(last_line)[:500]!r}"
    )


def _judge(recurrence: Recurrence, start: CommandStart, status: int) -> None:
    """Raise BelowTargetError if the job requires its target, AirflowException if nothing was
    trained.
    """
    kept = recurrence.reporter.kept_end
    job = start.plan.job
    if kept is not None and job.require_target:
        state = kept.ended_in
        if state.unproven:
            reported = state is not State.NO_METRIC
            raise BelowTargetError.of(kept.batch_size, kept.reason, job.target, reported=reported)
    if status != 0:
        return
    if start.start_id and not start.trained:
        raise AirflowException(
            "The command took its plan by ZeusRun.from_env() and trained nothing: call "
            "run.train(fn), or loop over run.epochs()."
        )
    if recurrence.elsewhere and not start.start_id:
        log.warning(
            "Zeus: the job left no result. What it cost and whether it reached its target are not "
            "known. Check that the script trains under ZeusRun.from_env(), that sbatch exports "
            "ZEUS_PLAN and ZEUS_RESULT, and that its host reaches the folder of [zeus] "
            "attempt_root (docs/how-to/slurm.md)."
        )
    elif kept is None:
        log.warning(
            "Zeus: the command ended well, but its result does not say that a model is kept."
        )


def _folder(recurrence: Recurrence, stack: ExitStack) -> Path | None:
    """A folder for plan and result, removed at the end: a new one, or that of the job that goes on.

    None if none can be made on this host: the plan goes by the environment. Raises OSError if the
    training is on another host, which could not tell its result then.
    """
    if recurrence.left is not None:
        stack.callback(shutil.rmtree, recurrence.left.folder, ignore_errors=True)
        return recurrence.left.folder
    state_dir = recurrence.plan.state_dir
    places = (recurrence.plan.attempt_root,) if recurrence.elsewhere else (None, state_dir)
    for place in places:
        try:
            made = TemporaryDirectory(prefix=FOLDER, dir=place, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            # a disk that is full has folders, and no room in them
            (folder / "room").write_bytes(bytes(2**16))
            (folder / "room").unlink()
            return folder
        except OSError as error:
            if recurrence.elsewhere:
                raise
            log.warning(
                "Zeus: no folder for the command's result can be made in %s: %s",
                place or "TMPDIR",
                error,
            )
    log.warning(
        "Zeus: the command trains, and what it costs is measured from outside. Make room in one of "
        "them."
    )
    return None


class CommandStart:
    """One start of a command under one plan.

    :param began_s: when the first start began [s, monotonic]. The recurrence's plan has the time
        limit as it was then.
    :param first_starts: limits the lines of all processes that the command starts, in all its
        starts.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: Plan,
        folder: Path | None,
        first_starts: FirstStarts,
        began_s: float,
    ) -> None:
        # the time limit is that of the task, over all its starts
        time_left_s = recurrence.plan.time_left_s
        if time_left_s is not None:
            time_left_s -= time.monotonic() - began_s
        plan = replace(plan, time_left_s=time_left_s)
        self.plan = plan
        self._began_s = time.monotonic()
        self._first_starts = first_starts
        self.start_id = ""  # while empty, no ZeusRun tells the figures: they come from outside
        self.trained = False
        self._failing = False  # else each second would log the same warning
        self._reporter = recurrence.reporter
        self._sender = ResultSender(recurrence.reporter)
        # Linux takes 131,072 bytes in one variable, and a character may have several
        most_in_environment = 100_000
        # By a file if there is a folder, since a long plan fits into no variable.
        self._handed = plan.to_json()
        self._result = ""  # empty without a folder: then no ZeusRun can tell anything
        self._follower: Follower | None = None
        if folder is not None:
            result = result_in(folder, plan.first_attempt)
            self._result = str(result)
            self._follower = Follower(result)
            plan_file = plan_in(folder, plan.first_attempt)
            # that of a job which goes on is there, and may be read at this moment
            if not plan_file.exists():
                plan_file.write_text(self._handed, encoding="utf-8")
            self._handed = str(plan_file)
            if recurrence.elsewhere:
                # a network file system may remember for a while that a file is missing
                result.touch()
        elif len(self._handed) > most_in_environment:
            # No file can hold the plan: its profile, which grows, can be measured again.
            self._handed = replace(plan, profile=()).to_json()
        self._of_plan = LinesOfPlan(plan)
        # Nothing of a job elsewhere is seen here: its time would include its wait in a queue.
        self._meter = None if recurrence.elsewhere else ExternalMeter(recurrence.device)
        self._device = recurrence.device.info
        self._newest: ResultLine | None = None
        self._ends: list[ResultLine] = []
        self._unsent: list[ResultLine] = []
        self._beat_s = time.monotonic()
        self._folder = folder
        self._notes = recurrence.notes
        self._job_line = ""  # the job's id is in no other place
        self._left: LeftJob | None = None  # a second job would train the same at the same time

    def reread(self) -> None:
        """Pass on the lines that the process has written while no try of the task lived.

        Lines that the try before has read may be in the log: no heartbeat is sent again by itself.
        """
        with outlived("read what the job has reported so far"):
            for lines in iter(self._news, []):
                self._take(lines, reread=True)

    def go_on_with(self, left: LeftJob) -> None:
        """Wait for a job that an earlier try submitted, in the place of a new one."""
        log.info("Zeus goes on with the Slurm job of the attempt before.")
        self._left = left
        self._job_line = left.note.line
        if self._notes is None:  # no try follows that could go on with the job
            self._cancel_at_end()
        try:
            self.reread()
            self._send_heartbeat()
        except BaseException as error:
            # A signal handler may raise: the attempt would stay open until its lease ends.
            self._end_killed(error)
            raise

    def run(
        self, command: Sequence[str], environ: Mapping[str, str], cwd: str | None
    ) -> tuple[int, str]:
        """Run the command to its end; return its exit status and the last line of its output."""
        if self._meter is None and self._folder is not None:
            note = note_in(self._folder)
            command = slurm.words([*command], note=str(note), job=self._job_line)
        try:
            child = Child(command, {**environ, **self._variables()}, self._show, cwd=cwd)
        except (OSError, ValueError) as error:
            # No such folder, or a NUL in the command: the attempt must not stay open.
            self._end_open_attempt(f"the command could not be started: {error}")
            raise
        except BaseException as error:  # a signal may come before there is a child to stop
            self._end_killed(error)
            raise
        read_s = time.monotonic()
        try:
            while (status := child.follow(READ_S)) is None:
                now_s = time.monotonic()
                if now_s - read_s >= READ_S:
                    read_s = now_s
                    self._read_result()
                if now_s - self._beat_s >= self.plan.heartbeat_s:
                    self._beat_s = now_s
                    self._send_heartbeat()
            self._end(status, child.last_line, command, cwd)
            return status, child.last_line
        except BaseException as error:
            # on_kill raises in a signal handler. First the note goes: else a Slurm job lives on.
            self._cancel_at_end()
            child.stop()
            self._read_result()
            self._end_killed(error)
            raise
        finally:
            with outlived("close the pipes of the command"):
                child.close()

    def _variables(self) -> dict[str, str]:
        """The variables by which the command gets its plan."""
        planned = self.plan.attempts[0]
        variables = {
            environment.PLAN: self._handed,
            environment.BATCH_SIZE: str(planned.batch_size),
        }
        if self._result:
            variables[environment.RESULT] = self._result
        if planned.start is not None:
            variables[environment.START] = planned.start.value
        return variables

    def _cancel_at_end(self) -> None:
        """Have a Slurm job be cancelled when the wait for it ends, also by the death of this
        process.
        """
        if self._folder is not None:
            with suppress(OSError):
                note_in(self._folder).unlink(missing_ok=True)

    def _show(self, line: str) -> None:
        """Log a line of the command's output. The first one that names a Slurm job is noted."""
        log.info("%s", line)
        if self._left is not None:
            self._left.is_waited_for = True
        if self._notes is None or self._folder is None:
            return
        if not self._job_line and slurm.job_of(line, "sbatch") is not None:
            self._job_line = line
            self._notes.write(line, self.plan, self._folder)

    def next_plan(self, status: int) -> Plan | None:
        """The plan of the next start, after this one ended with ``status``; None if no start
        follows.

        Another start follows a try that was given up or failed for its batch size, an attempt that
        ran out of memory, and another size than the default that failed, as far as the plan has
        attempts left.
        """
        if not self._ends or self._reporter.kept_end is not None:
            return None
        last = max(self._ends, key=attrgetter("number"))
        ran = self._plan_of(last)
        missed = (State.GIVEN_UP, State.EXHAUSTED, State.NO_METRIC)
        if ran is None or last.state not in (State.FAILED, *missed):
            return None
        how = _how_ended(last)
        following = ran.after(how, samples=_samples_of(last))
        # whatever the status: some scripts catch the error and end well
        if how in (Ended.MISSED, Ended.NO_MEMORY):
            return following
        if status == 0 or self.plan.job.strict:
            return None
        is_relief = how is Ended.FAILED and not ran.exploratory(0)
        if following is None or not is_relief:
            return following
        why_not = self._why_no_relief(last, status, following.attempts[0])
        if why_not is None:
            return following
        log.warning("Zeus: no other batch size runs after this: %s.", why_not)
        return None

    def _plan_of(self, end: ResultLine) -> Plan | None:
        """The plan that is left when an attempt of this start has ended, which is its first; None:
        it has none.
        """
        plan: Plan | None = self.plan
        for earlier in sorted(self._ends, key=attrgetter("number")):
            if plan is None or plan.first_attempt == end.attempt:
                return plan
            plan = plan.after(_how_ended(earlier), samples=_samples_of(earlier))
        # The end of an attempt between them may be lost: then its plan is not known.
        has_reached_it = plan is not None and plan.first_attempt == end.attempt
        return plan if has_reached_it else None

    def _why_no_relief(self, end: ResultLine, status: int, relief: PlannedAttempt) -> str | None:
        """Why a failure of the last attempt is left to its author; None if a relief runs after
        it.
        """
        # the host or a user stops it: another size would be stopped too
        if status in (128 + signal.SIGTERM, 128 + signal.SIGINT):
            return f"the command {ended(status)}, which stops it"
        never_began = self.start_id != "" and not self.trained
        if never_began or AUTHORS in end.notes:
            return "it did not fail within an epoch, or of a kind that no batch size causes"
        if not self.plan.in_time_for(relief, time.monotonic() - self._began_s):
            return "the task's execution_timeout leaves less time than the default usually takes"
        return None

    def _read_result(self) -> None:
        """Pass on the lines that the process has written since the last call.

        Raises nothing, and warns once.
        """
        try:
            self._take(self._news())
            self._failing = False
        except Exception as error:
            log.log(
                level(again=self._failing),
                "Zeus: the result of the command cannot be read: %r",
                error,
                exc_info=not isinstance(error, OSError | ValueError),
            )
            self._failing = True

    def _news(self) -> list[ResultLine]:
        """The lines that the process has written since the last call; none without a folder."""
        return self._follower.news() if self._follower else []

    def _take(self, lines: Sequence[ResultLine], *, reread: bool = False) -> None:
        """Pass on lines of the process, as far as the plan has their attempts.

        :param reread: whether an earlier try of the task may have read them.
        """
        lines = self._first_starts.kept(lines)
        for line in lines:
            self.start_id = line.start_id
            self.trained |= line.kind == "attempt"
        # a signal may raise while a line is sent: those behind it wait for the next call
        self._unsent += self._of_plan.known(lines)
        while self._unsent:
            line = self._unsent.pop(0)
            if line.kind == "end":
                self._ends.append(line)
                self._newest = None
                self._warn_of_other_count(line.figures)
            elif line.kind in ("attempt", "beat"):
                if line.observation or self._newest is None:
                    self._newest = line
                # Its own line renews the lease: a heartbeat from outside is not due yet.
                self._beat_s = time.monotonic()
            if reread and line.kind == "beat":
                self._reporter.reread(line)
            else:
                self._sender.put(line)

    def _warn_of_other_count(self, observation: Observation) -> None:
        asked = self._device
        count = observation.device_count
        if observation.device_model != asked.model or count in (None, 0, asked.count):
            return
        log.warning(
            "Zeus asked for a batch size on %d x %s, and the command trained on %d: its cost "
            "belongs to another device. Set ZeusJob(gpus=%d), or CUDA_VISIBLE_DEVICES for the "
            "task.",
            *(asked.count, asked.model, count, count),
        )

    @outlived("send a heartbeat")
    def _send_heartbeat(self) -> None:
        """Renew the lease while the command writes no lines: it loads data, or does not use this
        package.
        """
        # its own sums are exact; those from outside include the set-up
        if self.start_id:
            self._send("beat", self._reported or Observation())
            return
        measured = self._measured()
        points: tuple[PowerPoint, ...] = ()
        if self._meter is not None:
            try:
                points = (self._meter.point(),)
            except Exception:
                # _measured() has warned
                log.debug("Zeus could not measure a power point.", exc_info=True)
        self._send("beat", measured, points=points)

    @property
    def _reported(self) -> Observation | None:
        """The newest sums that the process wrote of the attempt that runs."""
        return None if self._newest is None else self._newest.observation

    def _send(self, kind: Kind, observation: Observation, **fields: Any) -> None:
        newest = self._newest
        if newest is None:
            fields["attempt"] = self.plan.first_attempt
            fields["batch_size"] = self.plan.attempts[0].batch_size
        else:
            fields["attempt"] = newest.attempt
            fields["batch_size"] = newest.batch_size
        line = ResultLine(kind=kind, start_id=self.start_id, observation=observation, **fields)
        line = environment.with_memory_of_others(line, self._result, self.plan.ti_id)
        self._sender.put(line)
        if kind == "end":
            self._ends.append(line)

    @outlived("write the end of the command")
    def _end(self, status: int, last_line: str, command: Sequence[str], cwd: str | None) -> None:
        """Read the last lines of a command that has ended, and end its open attempt; without a
        result ``last_line`` is it.
        """
        self._read_result()
        why = f"the command {ended(status)} without a result"
        # a process with a ZeusRun tells its outcome itself; a failed one has none
        if status or self.start_id:
            self._end_open_attempt(why)
            return
        job = self.plan.job
        planned = self.plan.attempts[0]
        observation = self._measured()
        state = State.NO_METRIC
        reason: str | None = why
        # The output of a job elsewhere is in Slurm's file: its last line here is sbatch's.
        if self._meter is not None:
            state, reason, observation = outcome_of(job, last_line, observation)
        if self._result:  # without it no command could have said that it opened a ZeusRun
            observation = seen_to_use(observation, planned, command, cwd)
        if UNSEEN in observation.reasons:
            log.warning(
                "Zeus: %s. Read it from there, or train under ZeusRun.from_env().",
                observation.reasons[UNSEEN],
            )
        if observation.metric is not None:
            doubt = job.parsed_target.doubt(observation.metric)
            if doubt is not None:
                log.warning("Zeus: %s. Remedy: %s.", *doubt)
        if state is not State.CONVERGED:
            text = "Zeus: the model of batch size %d is kept, but %s."
            log.warning(text, planned.batch_size, visible(str(reason)))
        self._send("end", observation, state=state, reason=reason)
        self._sender.put(ResultLine(kind="final", start_id="", attempt=self.plan.first_attempt))

    def _end_killed(self, error: BaseException) -> None:
        """End the attempt of a task that is being stopped."""
        reason = f"killed: {error or type(error).__name__}"
        self._end_open_attempt(reason, no_strike=not is_timed_out())

    def _end_open_attempt(self, reason: str, *, no_strike: bool = False) -> None:
        """End the attempt that runs, or the first one if none has begun, as failed.

        :param no_strike: the task was stopped, which says nothing against the batch size.
        """
        if self._newest is None and self._ends:
            return
        observation = self._reported or self._measured()
        if no_strike:
            reasons = {**observation.reasons, NO_STRIKE: "the task was stopped"}
            observation = replace(observation, reasons=reasons)
        self._send("end", observation, state=State.FAILED, reason=reason)

    def _measured(self) -> Observation:
        """Energy and time measured from outside. A device that fails costs no command its end.

        Of a command that trains elsewhere nothing is measured: its time here would include its wait
        in a queue.
        """
        if self._meter is None:
            missing = ("energy_j", "time_s", "epochs", "samples")
            return Observation(reasons=dict.fromkeys(missing, ELSEWHERE))
        try:
            return self._meter.observation()
        except Exception:
            log.exception("Zeus could not measure the command.")
            why = "the device could not be read"
            return Observation(reasons={"energy_j": why, "time_s": why})


def _how_ended(end: ResultLine) -> Ended:
    """How an attempt has ended, as far as that decides which one follows."""
    if end.state is not State.FAILED:
        return Ended.MISSED
    if TOO_FEW in end.notes:
        return Ended.TOO_FEW
    if end.figures.out_of_memory:
        return Ended.NO_MEMORY
    return Ended.FAILED


def _samples_of(end: ResultLine) -> int:
    """Samples of a slice that was too small for the batch size; 0: not known."""
    return int(end.notes.get(TOO_FEW, 0))


def ended(status: int) -> str:
    """Describe an exit status in words."""
    if status <= 128:
        return f"ended with status {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"ended with status {status}"
    # the kernel's choice is seldom in the task's log
    if name == "SIGKILL":
        name += ", as the kernel does when memory runs out"
    return f"was killed by {name}"
