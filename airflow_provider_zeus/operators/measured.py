"""A task that is measured as it is: nothing is set, nothing is chosen, and its code knows nothing of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.model.trial import Observation, PowerPoint, State
from airflow_provider_zeus.operators.external_meter import ELSEWHERE
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.operators.supervise import READ_S as OUTPUT_S
from airflow_provider_zeus.operators.supervise import ended
from airflow_provider_zeus.patience import bounded, outlived
from airflow_provider_zeus.power.device import NoneDevice, default_state_dir
from airflow_provider_zeus.power.simulated.gpu import PREFIX
from airflow_provider_zeus.power.task_meter import TaskMeter
from airflow_provider_zeus.training.attempt_loop import error_text
from airflow_provider_zeus.training.plan_progress import Heartbeat
from airflow_provider_zeus.training.process.child import Child
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.sender import ENDED_AT_S, ResultSender
from airflow_provider_zeus.training.ranks import ALONE
from airflow_provider_zeus.training.step_tuner import StepTuner
from airflow_provider_zeus.training.trackers import Trackers

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks at which GPUs the task uses
READ_S = 5.0  # how long a driver may take to answer; after that the task is measured by the clock alone
TORCH_S = 0.2  # between two looks whether the training has loaded torch
STEERED = {  # by name, what ends a task without an error
    "AirflowSkipException": "the task skipped itself",
    "DownstreamTasksSkipped": "the task skipped those after it",
    "TaskDeferred": "the task was deferred; what it does after that is not measured",
    "AirflowRescheduleException": "the task was rescheduled",
    "DagRunTriggerException": "the task triggered another DAG",
}


def measured(recurrence: Recurrence, call: Callable[[StepTuner | None], T]) -> T:
    """Return what ``call`` returns; what it takes goes to the reporter. Raises what it raises, and nothing of ours.

    :param call: gets what tunes the power limit by the steps of the training; None: nothing does.
    """
    plan, meter, tuner = recurrence.plan, None, None
    with outlived("begin to measure this task"):
        state_dir, simulated = plan.state_dir or default_state_dir(), None
        if plan.job.device.startswith(PREFIX):
            simulated = environment.device_of_plan(plan, state_dir, ALONE)
        if recurrence.elsewhere:
            meter = TaskMeter((), NoneDevice(why=ELSEWHERE), lambda _: None)
        else:
            meter = TaskMeter.open(plan.job.device, state_dir, cpu_watts=plan.cpu_watts, simulated=simulated)
        if simulated is not None or plan.job.mode in ("optimize", "observe"):
            tuner = StepTuner(plan, state_dir, simulated)
            tuner.look()  # torch may be loaded already
    lines = MeasuredLines(recurrence, meter, tuner)
    beats = Heartbeat(lines.beat, TORCH_S if tuner else min(LOOK_S, plan.heartbeat_s))
    state = State.FAILED
    reason: str | None = "its end is not known"
    try:
        value = call(tuner)
        state, reason = State.DONE, None
        return value
    except BaseException as error:
        steered = next((STEERED[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in STEERED), None)
        state, reason = (State.DONE, steered) if steered else (State.FAILED, error_text(error))
        raise
    finally:
        if not lines.forked:
            beats.stop()
            if tuner is not None:
                with outlived("end the profile of this task's steps"):
                    bounded(tuner.stop, READ_S)
            with outlived("write what this task took"):
                lines.end(state, reason)
            with outlived("close the devices"):
                if tuner is not None:
                    bounded(tuner.close, READ_S)
                if meter is not None:
                    meter.close()


class MeasuredLines:
    """Writes the result lines of a task that is measured alone."""

    def __init__(self, recurrence: Recurrence, meter: TaskMeter | None, tuner: StepTuner | None) -> None:
        self._plan, self._meter, self._tuner, self._pid = recurrence.plan, meter, tuner, os.getpid()
        self._sender = ResultSender(recurrence.reporter)
        self._began_s = self._beat_s = time.monotonic()  # time of the last heartbeat
        self._look_s = 0.0  # time of the last look at the devices
        self._silent = "" if meter else "the devices could not be opened"  # why they are asked nothing any more
        self._sender.send("attempt", attempt=self._plan.first_attempt)

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the task's. Such a child writes nothing."""
        return os.getpid() != self._pid

    def beat(self) -> None:
        """Look at the devices; now and then send the sums so far and a power point."""
        if self._tuner is not None:
            self._tuner.look()
        if time.monotonic() - self._look_s < LOOK_S:
            return
        self._look_s = time.monotonic()
        is_due = self._look_s - self._beat_s >= self._plan.heartbeat_s
        seen, point = self._read(with_point=is_due)
        if is_due:
            self._beat_s = self._look_s
            self._send("beat", seen, points=(point,) if point else ())

    def end(self, state: State, reason: str | None) -> None:
        """Write the end, with what was measured. A device that fails costs no task its end."""
        seen, _ = self._read()
        self._send("end", seen, state=state, reason=reason, notes={ENDED_AT_S: time.time()})
        with outlived("write what this task took to its trackers"):
            if state is State.DONE:
                Trackers(self._plan.job.log_to, closed=True).write_figures(state, seen, {})
        self._sender.send("final", attempt=self._plan.first_attempt if state is State.DONE else None)
        self._sender.close()

    def _send(self, kind: Any, seen: Observation, **fields: Any) -> None:
        if self._tuner is not None:
            fields["profile"] = self._tuner.take_unsent()
        self._sender.send(kind, attempt=self._plan.first_attempt, observation=seen, **fields)

    def _read(self, *, with_point: bool = False) -> tuple[Observation, PowerPoint | None]:
        """What was measured up to now. A driver that hangs holds no task: it is asked once, and then no more."""

        def read() -> tuple[Observation, PowerPoint | None]:
            assert self._meter is not None
            self._meter.look()
            seen, point = self._meter.observation(), self._meter.point() if with_point else None
            return seen if self._tuner is None else self._tuner.observed(seen), point

        if not self._silent:
            try:
                return bounded(read, READ_S)
            except Exception as error:
                self._silent = f"the devices could not be read ({type(error).__name__})"
                log.warning("Zeus measures the time of this task alone from here on: %s.", self._silent, exc_info=True)
        return Observation(time_s=time.monotonic() - self._began_s, reasons={"energy_j": self._silent}), None


def run_command(command: Sequence[str], environ: Mapping[str, str], cwd: str | None) -> str:
    """Run a command to its end; return the last line of its output.

    Raises AirflowException when it fails, OSError or ValueError where no process can be started.
    """
    from airflow.sdk.exceptions import AirflowException

    child = Child(command, environ, lambda line: log.info("%s", line), cwd=cwd)
    try:
        while (status := child.follow(OUTPUT_S)) is None:
            pass
    except BaseException:  # raised by a signal handler: on_kill raises TrainingKilled
        child.stop()
        raise
    finally:
        with outlived("close the pipes of the command"):
            child.close()
    if status != 0:
        raise AirflowException(f"The command {ended(status)}. Its last line: {masked(child.last_line)[:500]!r}")
    return child.last_line
