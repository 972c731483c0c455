"""Train by a command: start it with the plan in its environment, follow its result file, report its cost."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.errors import BelowTargetError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import NO_STRIKE, UNSEEN, Observation, PlannedAttempt, PowerPoint, State
from airflow_provider_zeus.operators.collect import FirstStarts, LinesOfPlan
from airflow_provider_zeus.operators.external_meter import ELSEWHERE, ExternalMeter, outcome_of, seen_to_use
from airflow_provider_zeus.operators.mixins import is_timed_out
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.training.process.child import Child, Follower
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.events import AUTHORS, TOO_FEW, Kind, ResultLine, ResultSender
from airflow_provider_zeus.training.protocol.plan import Ended, Plan

READ_S = 1.0  # how often the result file is read

log = guarded_log(__name__)


def supervise(recurrence: Recurrence, command: Sequence[str], environ: Mapping[str, str], cwd: str | None) -> str:
    """Run a command until its model is kept, once per attempt where needed; return the last line of its output.

    Raises AirflowException when it fails, BelowTargetError where its job requires the target, OSError or ValueError
    where no process can be started.
    """
    from airflow.sdk.exceptions import AirflowException

    plan: Plan | None = replace(recurrence.plan, restarts=True)
    first_starts, began_s = FirstStarts(), time.monotonic()
    with ExitStack() as stack:
        folder = _folder(recurrence, stack)
        while plan is not None:
            start = CommandStart(recurrence, plan, folder, first_starts, began_s)
            log.info("Zeus: batch size %d. %s", plan.attempts[0].batch_size, plan.attempts[0].why)
            status, last_line = start.run(command, environ, cwd)
            plan = None
            with outlived("find out whether the command runs again"):
                plan = start.next_plan(status)
                plan = plan and replace(plan, time_left_s=recurrence.plan.time_left_s)
            if plan is not None:
                log.info("Zeus: that attempt is over; the command is started again.")
    with outlived("say how the command ended", but=(BelowTargetError, AirflowException)):
        _judge(recurrence, start, status)
    if status != 0:
        raise AirflowException(f"The command {ended(status)}. Its last line: {masked(last_line)[:500]!r}")
    return last_line


def _judge(recurrence: Recurrence, start: CommandStart, status: int) -> None:
    """Raise BelowTargetError where the job requires its target, AirflowException where nothing was trained."""
    from airflow.sdk.exceptions import AirflowException

    kept = recurrence.reporter.kept_end
    if kept is not None and kept.state is not None and kept.state.unproven and start.plan.job.require_target:
        reported = kept.state is not State.NO_METRIC
        raise BelowTargetError.of(kept.batch_size, kept.reason, start.plan.job.target, reported=reported)
    if status != 0:
        return
    if start.start_id and not start.trained:
        raise AirflowException(
            "The command took its plan by ZeusRun.from_env() and trained nothing: call run.train(fn), or loop over "
            "run.epochs()."
        )
    if recurrence.elsewhere and not start.start_id:
        log.warning(
            "Zeus: the job left no result. What it cost and whether it reached its target are not known. Check that "
            "the script trains under ZeusRun.from_env(), that sbatch exports ZEUS_PLAN and ZEUS_RESULT, and that its "
            "host reaches the folder of [zeus] attempt_root (docs/how-to/slurm.md)."
        )
    elif kept is None:
        log.warning("Zeus: the command ended well, but its result does not say that a model is kept.")


def _folder(recurrence: Recurrence, stack: ExitStack) -> Path | None:
    """A new folder for plan and result; None where none can be made on this host: the plan goes by the environment.

    Raises OSError where the training is on another host, which could not tell its result then.
    """
    state_dir = recurrence.plan.state_dir
    places = (recurrence.plan.attempt_root,) if recurrence.elsewhere else (None, state_dir)
    for place in places:
        try:
            made = TemporaryDirectory(prefix="zeus-", dir=place, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            (folder / "room").write_bytes(bytes(2**16))  # a disk that is full has folders, and no room in them
            (folder / "room").unlink()
            return folder
        except OSError as error:
            if recurrence.elsewhere:
                raise
            log.warning("Zeus: no folder for the command's result can be made in %s: %s", place or "TMPDIR", error)
    log.warning("Zeus: the command trains, and what it costs is measured from outside. Make room in one of them.")
    return None


class CommandStart:
    """One start of a command under one plan.

    :param plan: whose time limit is as it was when the first start began, at ``began_s`` [s, monotonic].
    :param first_starts: what is kept of all processes that the command starts, in all its starts.
    """

    def __init__(
        self, recurrence: Recurrence, plan: Plan, folder: Path | None, first_starts: FirstStarts, began_s: float
    ) -> None:
        spent_s = time.monotonic() - began_s
        if plan.time_left_s is not None:
            plan = replace(plan, time_left_s=plan.time_left_s - spent_s)
        self.plan, self._began_s = plan, time.monotonic()
        self._first_starts = first_starts
        self.start_id = ""  # of the process that took the plan; empty while none has
        self.trained = False  # whether that process began an attempt
        self._failing = False  # whether its result could not be read the last time
        self._reporter, self._sender = recurrence.reporter, ResultSender(recurrence.reporter)
        most_in_environment = 100_000  # characters; Linux takes 131,072 bytes in one variable
        self._handed = plan.to_json()  # ZEUS_PLAN: the plan, or its file
        self._result: Path | None = None
        if folder is not None:
            self._result = folder / f"result-{plan.first_attempt}.jsonl"
            plan_file = folder / f"plan-{plan.first_attempt}.json"
            plan_file.write_text(self._handed, encoding="utf-8")
            self._handed = str(plan_file)
        elif len(self._handed) > most_in_environment:
            self._handed = replace(plan, profile=()).to_json()
        self._follower = Follower(self._result) if self._result else None
        self._of_plan = LinesOfPlan(plan)
        self._meter = None if recurrence.elsewhere else ExternalMeter(recurrence.device)  # None: nothing is seen here
        if recurrence.elsewhere and self._result:
            self._result.touch()  # a network file system may remember for a while that a file is missing
        self._device = recurrence.device.info  # that the store was asked for
        self._newest: ResultLine | None = None  # of the attempt that runs
        self._ends: list[ResultLine] = []
        self._beat_s = time.monotonic()  # time of the last heartbeat

    def run(self, command: Sequence[str], environ: Mapping[str, str], cwd: str | None) -> tuple[int, str]:
        """Run the command to its end; return its exit status and the last line of its output."""
        own = {
            environment.PLAN: self._handed,
            **({environment.RESULT: str(self._result)} if self._result else {}),
            environment.BATCH_SIZE: str(self.plan.attempts[0].batch_size),
            **({environment.START: start.value} if (start := self.plan.attempts[0].start) else {}),
        }
        try:
            child = Child(command, {**environ, **own}, lambda line: log.info("%s", line), cwd=cwd)
        except (OSError, ValueError) as error:  # no such folder; a NUL in the command
            self._end_open_attempt(f"the command could not be started: {error}")
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
        except BaseException as error:  # raised by a signal handler: on_kill raises TrainingKilled
            child.stop()
            self._read_result()
            self._end_open_attempt(f"killed: {error or type(error).__name__}", no_strike=not is_timed_out())
            raise
        finally:
            with outlived("close the pipes of the command"):
                child.close()

    def next_plan(self, status: int) -> Plan | None:
        """The plan of the next start, after this one ended with ``status``; None where no start follows.

        Another start follows a try that was given up or failed for its batch size, an attempt that ran out of memory,
        and another size than the default that failed, as far as the plan has attempts left.
        """
        last = max(self._ends, key=lambda end: end.attempt or 0, default=None)
        if last is None or self._reporter.kept_end is not None or last.attempt is None:
            return None
        ran = self._plan_of(last)
        no_memory = last.observation is not None and last.observation.out_of_memory
        failed = last.state is State.FAILED and status != 0 and not self.plan.job.strict
        missed = last.state in (State.GIVEN_UP, State.EXHAUSTED, State.NO_METRIC)
        if ran is None:
            return None
        if no_memory:
            return ran.after(Ended.NO_MEMORY)
        if failed and TOO_FEW in last.notes:
            return ran.after(Ended.TOO_FEW, samples=int(last.notes[TOO_FEW]) or None)
        if ran.exploratory(0):
            return ran.after(Ended.FAILED if failed else Ended.MISSED) if failed or missed else None
        following = ran.after(Ended.FAILED) if failed else None
        if following is None or (why_not := self._why_no_relief(last, status, following.attempts[0])):
            if following is not None:
                log.warning("Zeus: no other batch size runs after this: %s.", why_not)
            return None
        return following

    def _plan_of(self, end: ResultLine) -> Plan | None:
        """The plan that is left when an attempt of this start has ended, which is its first; None: it has none."""
        plan, number = self.plan, end.attempt
        for earlier in sorted(self._ends, key=lambda line: line.attempt or 0):
            if plan.first_attempt == number:
                return plan
            seen, failed = earlier.observation, earlier.state is State.FAILED
            how = Ended.NO_MEMORY if seen is not None and seen.out_of_memory else Ended.FAILED
            if TOO_FEW in earlier.notes:
                how = Ended.TOO_FEW
            samples = int(earlier.notes.get(TOO_FEW, 0)) or None
            following = plan.after(how if failed else Ended.MISSED, samples=samples)
            if following is None:
                return None
            plan = following
        return plan if plan.first_attempt == number else None

    def _why_no_relief(self, end: ResultLine, status: int, relief: PlannedAttempt) -> str | None:
        """Why a failure of the last attempt is left to its author; None where a relief runs after it."""
        if status in (128 + signal.SIGTERM, 128 + signal.SIGINT):
            return f"the command {ended(status)}, which stops it"
        if AUTHORS in end.notes or (self.start_id and not self.trained):
            return "it did not fail within an epoch, or of a kind that no batch size causes"
        if not self.plan.in_time_for(relief, time.monotonic() - self._began_s):
            return "the task's execution_timeout leaves less time than the default usually takes"
        return None

    def _read_result(self) -> None:
        """Pass on the lines that the process has written since the last call. Raises nothing, and warns once."""
        if self._follower is None:
            return
        try:
            self._take(self._follower.news())
            self._failing = False
        except Exception as error:
            level = logging.DEBUG if self._failing else logging.WARNING
            foreseen = isinstance(error, OSError | ValueError)
            log.log(level, "Zeus: the result of the command cannot be read: %r", error, exc_info=not foreseen)
            self._failing = True

    def _take(self, lines: Sequence[ResultLine]) -> None:
        """Pass on lines of the process, as far as the plan has their attempts."""
        lines = self._first_starts.kept(lines)
        for line in lines:
            self.start_id = line.start_id
            self.trained = self.trained or line.kind == "attempt"
        for line in self._of_plan.known(lines):
            self._sender.put(line)
            if line.kind == "end":
                self._ends.append(line)
                self._newest = None
                asked, seen = self._device, line.observation
                count = seen and seen.device_count
                if seen is not None and count and count != asked.count and seen.device_model == asked.model:
                    log.warning(
                        "Zeus asked for a batch size on %d x %s, and the command trained on %d: its cost belongs to "
                        "another device. Set ZeusJob(gpus=%d), or CUDA_VISIBLE_DEVICES for the task.",
                        *(asked.count, asked.model, count, count),
                    )
            elif line.kind in ("attempt", "beat"):
                self._newest = line if line.observation or self._newest is None else self._newest
                self._beat_s = time.monotonic()

    @outlived("send a heartbeat")
    def _send_heartbeat(self) -> None:
        """Renew the lease while the command writes no lines: it loads data, or does not use this package."""
        points: tuple[PowerPoint, ...] = ()
        if self.start_id:
            seen = (self._newest and self._newest.observation) or Observation()
        else:
            seen = self._measured()
            try:
                points = (self._meter.point(),) if self._meter else ()
            except Exception:
                log.debug("Zeus could not measure a power point.", exc_info=True)  # _measured() has warned
        self._send("beat", seen, points=points)

    def _send(self, kind: Kind, observation: Observation, **fields: Any) -> None:
        newest, plan = self._newest, self.plan
        line = ResultLine(
            kind=kind,
            start_id=self.start_id,
            attempt=(newest and newest.attempt) or plan.first_attempt,
            batch_size=(newest and newest.batch_size) or plan.attempts[0].batch_size,
            observation=observation,
            **fields,
        )
        line = environment.with_memory_of_others(line, str(self._result) if self._result else None, plan.ti_id)
        self._sender.put(line)
        if kind == "end":
            self._ends.append(line)

    @outlived("write the end of the command")
    def _end(self, status: int, last_line: str, command: Sequence[str], cwd: str | None) -> None:
        """Read what a command that has ended wrote last, and end what is open; without a result ``last_line`` is it."""
        self._read_result()
        why = f"the command {ended(status)} without a result"
        if status or self.start_id:
            self._end_open_attempt(why)
            return
        planned, size = self.plan.attempts[0], self.plan.attempts[0].batch_size
        measured = self._measured()
        state, reason, seen = outcome_of(self.plan.job, last_line, measured)
        if self._meter is None:  # its output is in the job's file
            state, reason, seen = State.NO_METRIC, why, measured
        if self._result is not None:  # else it could not have said that it opened a ZeusRun
            seen = seen_to_use(seen, planned, command, cwd)
        if UNSEEN in seen.reasons:
            log.warning("Zeus: %s. Read it from there, or train under ZeusRun.from_env().", seen.reasons[UNSEEN])
        if seen.metric is not None and (doubt := self.plan.job.parsed_target.doubt(seen.metric)):
            log.warning("Zeus: %s. Remedy: %s.", *doubt)
        if state is not State.CONVERGED:
            log.warning("Zeus: the model of batch size %d is kept, but %s.", size, visible(str(reason)))
        self._send("end", seen, state=state, reason=reason)
        self._sender.put(ResultLine(kind="final", start_id="", attempt=self.plan.first_attempt))

    def _end_open_attempt(self, reason: str, *, no_strike: bool = False) -> None:
        """End the attempt that runs, or the first one where none has begun, as failed.

        :param no_strike: the task was stopped, which says nothing against the batch size.
        """
        if self._newest is not None or not self._ends:
            seen = (self._newest and self._newest.observation) or self._measured()
            if no_strike:
                seen = replace(seen, reasons={**seen.reasons, NO_STRIKE: "the task was stopped"})
            self._send("end", seen, state=State.FAILED, reason=reason)

    def _measured(self) -> Observation:
        """Energy and time measured from outside. A device that fails costs no command its end.

        Of a command that trains elsewhere nothing is measured: its time here would include its wait in a queue.
        """
        if self._meter is None:
            return Observation(reasons=dict.fromkeys(("energy_j", "time_s", "epochs", "samples"), ELSEWHERE))
        try:
            return self._meter.observation()
        except Exception:
            log.exception("Zeus could not measure the command.")
            return Observation(reasons=dict.fromkeys(("energy_j", "time_s"), "the device could not be read"))


def ended(status: int) -> str:
    """Describe an exit status in words."""
    if status <= 128:
        return f"ended with status {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"ended with status {status}"
    hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
