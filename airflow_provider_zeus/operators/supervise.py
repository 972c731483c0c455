"""Trains by a command: starts it with the plan in its environment, follows its result, tells what it cost."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_zeus.errors import BelowTargetError
from airflow_provider_zeus.operators.outside import Outside, told_by_output
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import Observation, PowerPoint, State
from airflow_provider_zeus.training import environment
from airflow_provider_zeus.training.child import Child, Follower
from airflow_provider_zeus.training.outbox import Outbox
from airflow_provider_zeus.training.plan import Kind, Line, Plan
from airflow_provider_zeus.visible import visible

LOOK_S = 1.0  # how often the result is read

log = logging.getLogger(__name__)


def supervise(recurrence: Recurrence, command: Sequence[str], environ: Mapping[str, str], cwd: str | None) -> str:
    """Run a command until its model is kept, once per attempt where it needs that; the last line of its output.

    Raises AirflowException when it fails, BelowTargetError where its job requires the target, OSError or ValueError
    where no process can be started.
    """
    from airflow.sdk.exceptions import AirflowException

    plan: Plan | None = replace(recurrence.plan, restarts=True)
    with TemporaryDirectory(prefix="zeus-", ignore_cleanup_errors=True) as folder:
        while plan is not None:
            start = Supervised(recurrence, plan, Path(folder))
            log.info("Zeus: batch size %d. %s", plan.attempts[0].batch_size, plan.attempts[0].why)
            status, last_line = start.run(command, environ, cwd)
            plan = start.following
            if plan is not None:
                log.info("Zeus: that attempt is over; the command is started again.")
    kept = recurrence.teller.kept_end
    if kept is not None and kept.state is State.EXHAUSTED and ZeusJob.from_dict(start.plan.spec).require_target:
        raise BelowTargetError.of(kept.batch_size, kept.reason, start.plan.spec["target"])
    if status != 0:
        raise AirflowException(f"The command {ended(status)}. Its last line: {last_line[:500]!r}")
    if start.took_the_plan_alone:
        raise AirflowException(
            "The command took its plan by ZeusRun.from_env() and trained nothing: call run.train(fn), or loop over "
            "run.epochs()."
        )
    if kept is None:
        log.warning("Zeus: the command ended well, but its result does not say that a model is kept.")
    return last_line


class Supervised:
    """One start of a command under one plan."""

    def __init__(self, recurrence: Recurrence, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self._teller, self._outbox = recurrence.teller, Outbox(recurrence.teller)
        self._job = ZeusJob.from_dict(plan.spec)
        self._plan_file = folder / f"plan-{plan.first_attempt}.json"
        self._result = folder / f"result-{plan.first_attempt}.jsonl"
        self._plan_file.write_text(plan.to_json(), encoding="utf-8")
        self._follower = Follower(self._result)
        self._outside = Outside(recurrence.device)
        self._asked_for = recurrence.device.info
        self._newest: Line | None = None  # of the attempt that runs
        self._ends: list[Line] = []
        self._start_id = ""  # of the process that took the plan; empty while none has
        self._began = False
        self._status: int | None = None  # with which the command ended
        self._look_s = self._beat_s = time.monotonic()

    def run(self, command: Sequence[str], environ: Mapping[str, str], cwd: str | None) -> tuple[int, str]:
        """Run the command to its end: its exit status and the last line of its output."""
        try:
            child = Child(command, {**environ, **self._environ()}, lambda line: log.info("%s", line), cwd=cwd)
        except (OSError, ValueError) as error:  # no such folder; a NUL in the command
            self._end_what_is_open(f"the command could not be started: {error}")
            raise
        try:
            while (status := child.follow(LOOK_S)) is None:
                self._look()
            self._status = status
            self._settle(status, child.last_line)
            return status, child.last_line
        except BaseException as error:  # a signal, of which on_kill makes TrainingKilled
            child.stop()
            self._take_news()
            self._end_what_is_open(f"killed: {error or type(error).__name__}")
            raise
        finally:
            child.close()

    @property
    def took_the_plan_alone(self) -> bool:
        """Whether a process took the plan and began none of its attempts."""
        return bool(self._start_id) and not self._began

    @property
    def following(self) -> Plan | None:
        """The plan of the next start: of the attempts after one that was given up, failed for its batch size, or did
        not fit into memory.
        """
        last = max(self._ends, key=lambda end: end.attempt or 0, default=None)
        if last is None or self._teller.kept_end is not None or last.attempt is None:
            return None
        no_memory = last.observation is not None and last.observation.out_of_memory
        index = last.attempt + 1 - self.plan.first_attempt
        left = self.plan.in_order[index:]
        missed = last.state in (State.GIVEN_UP, State.EXHAUSTED) and self.plan.followed(index - 1)
        failed = last.state is State.FAILED and self._status != 0 and not self._job.strict
        failed = failed and self.plan.exploratory(index - 1)
        if not left or not (missed or failed or no_memory):
            return None
        return replace(self.plan, attempts=left, stand_in=None, first_attempt=last.attempt + 1)

    # ------------------------------------------------------------------ while it runs
    def _environ(self) -> dict[str, str]:
        return {
            environment.PLAN: str(self._plan_file),
            environment.RESULT: str(self._result),
            environment.BATCH_SIZE: str(self.plan.attempts[0].batch_size),
        }

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._look_s >= LOOK_S:
            self._look_s = now_s
            self._take_news()
        if now_s - self._beat_s >= self.plan.heartbeat_s:
            self._beat_s = now_s
            self._keep_alive()

    def _take_news(self) -> None:
        try:
            lines = self._follower.news()
        except (OSError, ValueError) as error:
            log.warning("Zeus: the result of the command cannot be read: %s", error)
            return
        for line in lines:
            self._start_id = line.start_id
            self._began = self._began or line.kind == "attempt"
            self._outbox.put(line)
            if line.kind == "end":
                self._ends.append(line)
                self._newest = None
                self._compare(line.observation)
            elif line.kind in ("attempt", "beat"):
                self._newest = line if line.observation or self._newest is None else self._newest
                self._beat_s = time.monotonic()

    def _compare(self, seen: Observation | None) -> None:
        asked, count = self._asked_for, seen and seen.device_count
        if seen is not None and count and count != asked.count and seen.device_model == asked.model:
            log.warning(
                "Zeus asked for a batch size on %d x %s, and the command trained on %d: what it cost is another "
                "device's for the next question. Say ZeusJob(gpus=%d), or set CUDA_VISIBLE_DEVICES for the task.",
                asked.count,
                asked.model,
                count,
                count,
            )

    def _keep_alive(self) -> None:
        """Renew the lease where the command itself has nothing to tell: it loads data, or does not know of us."""
        if self._start_id:
            self._send("beat", (self._newest and self._newest.observation) or Observation())
        else:
            self._send("beat", self._seen_outside(), points=self._points_outside())

    def _send(self, kind: Kind, observation: Observation, **fields: Any) -> None:
        newest, plan = self._newest, self.plan
        line = Line(
            kind=kind,
            start_id=self._start_id,
            attempt=(newest and newest.attempt) or plan.first_attempt,
            batch_size=(newest and newest.batch_size) or plan.attempts[0].batch_size,
            observation=observation,
            **fields,
        )
        line = environment.with_memory_of_others(line, str(self._result), plan.ti_id)
        self._outbox.put(line)
        if kind == "end":
            self._ends.append(line)

    # ------------------------------------------------------------------ when it has ended
    def _settle(self, status: int, last_line: str) -> None:
        self._take_news()
        if status == 0 and not self._start_id:
            state, reason, seen = told_by_output(self._job, last_line, self._seen_outside())
            if state is not State.CONVERGED:
                size = self.plan.attempts[0].batch_size
                log.warning("Zeus: the model of batch size %d is kept, but %s.", size, visible(str(reason)))
            self._send("end", seen, state=state, reason=reason)
            self._outbox.put(Line(kind="final", start_id="", attempt=self.plan.first_attempt))
        else:
            self._end_what_is_open(f"the command {ended(status)} without a result")

    def _end_what_is_open(self, reason: str) -> None:
        if self._newest is not None or not self._ends:
            seen = (self._newest and self._newest.observation) or self._seen_outside()
            self._send("end", seen, state=State.FAILED, reason=reason)

    def _points_outside(self) -> tuple[PowerPoint, ...]:
        try:
            return (self._outside.point(),)
        except Exception:  # said by _seen_outside
            return ()

    def _seen_outside(self) -> Observation:
        """What the device drew; a device that fails costs no command its end."""
        try:
            return self._outside.observation()
        except Exception:
            log.exception("Zeus could not measure the command.")
            return Observation(reasons=dict.fromkeys(("energy_j", "time_s"), "the device could not be read"))


def ended(status: int) -> str:
    """How a command ended, in words."""
    if status <= 128:
        return f"ended with status {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"ended with status {status}"
    hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
