"""A task whose batch size is its own: what it takes is measured; where its job says so, its steps tune the limit."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, TypeVar

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import LIMIT, Observation, PowerPoint, ProfileSample, State, summed_with_marks
from airflow_provider_zeus.operators.collect import FirstStarts, LinesOfPlan
from airflow_provider_zeus.operators.external_meter import ELSEWHERE
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.operators.supervise import READ_S as OUTPUT_S
from airflow_provider_zeus.operators.supervise import ended
from airflow_provider_zeus.patience import T, outlived
from airflow_provider_zeus.power.device import Device, NoneDevice, default_state_dir
from airflow_provider_zeus.power.nvml.library import why_silent
from airflow_provider_zeus.power.simulated.gpu import PREFIX
from airflow_provider_zeus.power.task_meter import TaskMeter
from airflow_provider_zeus.training.attempt_loop import error_text
from airflow_provider_zeus.training.plan_progress import Heartbeat
from airflow_provider_zeus.training.process.child import Child, Follower
from airflow_provider_zeus.training.profiling.sweep import drain
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.events import ENDED_AT_S, ResultSender
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import ALONE
from airflow_provider_zeus.training.step_tuner import StepTuner
from airflow_provider_zeus.training.torch_listener import of_all
from airflow_provider_zeus.training.trackers import Trackers

log = guarded_log(__name__)

LOOK_S = 2.0  # between two looks at which GPUs the task uses
S = TypeVar("S", StepTuner, "StepsOfCommand")


def measured(recurrence: Recurrence, call: Callable[[S | None], T], steps: type[S]) -> T:
    """Return what ``call`` returns; what it takes goes to the reporter. Raises what it raises, and nothing of ours.

    :param call: gets what hears of the steps of the training; None: nothing does.
    :param steps: ``StepTuner`` for a function in this process, ``StepsOfCommand`` for a command.
    """
    steers = {  # by name, what ends a task without an error
        "AirflowSkipException": "the task skipped itself",
        "DownstreamTasksSkipped": "the task skipped those after it",
        "TaskDeferred": "the task was deferred; what it does after that is not measured",
        "AirflowRescheduleException": "the task was rescheduled",
        "DagRunTriggerException": "the task triggered another DAG",
    }
    plan, meter, tuner, began_in = recurrence.plan, None, None, os.getpid()
    with outlived("begin to measure this task"):
        state_dir, simulated = plan.state_dir or default_state_dir(), None
        if plan.job.device.startswith(PREFIX):
            simulated = environment.device_of_plan(plan, state_dir, ALONE)
        if recurrence.elsewhere:
            meter = TaskMeter((), NoneDevice(why=ELSEWHERE), lambda _: None)
        else:
            meter = TaskMeter.open(plan.job.device, state_dir, cpu_watts=plan.cpu_watts, simulated=simulated)
        if not recurrence.elsewhere and (steps is StepsOfCommand or StepTuner.is_asked_for(plan.job)):
            tuner = steps(plan, state_dir, simulated)
    lines = MeasuredLines(recurrence, meter, tuner)
    beats = Heartbeat(lines.beat, min(LOOK_S, plan.heartbeat_s))
    state = State.FAILED
    reason: str | None = "its end is not known"
    try:
        value = call(tuner)
        state, reason = State.DONE, None
        return value
    except BaseException as error:
        steered = next((steers[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in steers), None)
        state, reason = (State.DONE, steered) if steered else (State.FAILED, error_text(error))
        raise
    finally:
        if os.getpid() == began_in:  # not in a child that the function forked
            beats.stop()
            if tuner is not None:
                with outlived("end the profile of this task's steps"):
                    tuner.stop()
            with outlived("write what this task took"):
                lines.end(state, reason)
            with outlived("close the devices"):
                if tuner is not None:
                    tuner.close()
                if meter is not None:
                    meter.close()


class StepsOfCommand:
    """What a command reports of its steps by ``ZeusRun.from_env()`` around its loop; in the place of a StepTuner.

    :param device: the simulated GPU that its steps advance.
    """

    def __init__(self, plan: Plan, state_dir: str, device: Device | None = None) -> None:
        held = plan.gpus_held if device is None or device.uuid is None else (device.uuid,)
        handed = replace(plan, state_dir=state_dir, gpus_held=held).to_json()
        self.environ = telling_nothing(plan)
        self._told: dict[str, Observation] = {}  # newest of each start
        self._looking = Lock()  # the heartbeat's thread looks too
        self._unsent: deque[ProfileSample] = deque()
        self._kept = ExitStack()
        self._starts = FirstStarts()
        self._of_plan = LinesOfPlan(plan)
        self._follower: Follower | None = None
        self._tunes = plan.job.tries_limits
        with outlived("make a folder for the steps that the command reports"):
            made = TemporaryDirectory(prefix="zeus-", ignore_cleanup_errors=True)
            folder = Path(self._kept.enter_context(made))
            (folder / "plan.json").write_text(handed, encoding="utf-8")
            self._follower = Follower(folder / "result.jsonl")
            self.environ = {
                environment.PLAN: f"{folder / 'plan.json'}",
                environment.RESULT: f"{folder / 'result.jsonl'}",
            }

    def look(self) -> None:
        """Read what the command has reported since the last call."""
        with self._looking:
            news = self._follower.news() if self._follower else []
            for line in self._of_plan.known(self._starts.kept(news)):
                self._unsent.extend(line.profile)
                if line.observation is None:
                    continue
                if line.observation.samples is None:  # its steps could not be counted any more
                    self._told.pop(line.start_id, None)
                else:
                    self._told[line.start_id] = line.observation

    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """The profile samples since the last call."""
        return summed_with_marks(drain(self._unsent))

    def observed(self, seen: Observation) -> Observation:
        """What was measured of the command, with what its steps reported."""
        names = ("samples", "step_kind", "excess_j", "excess_s", "power_limit_w", "limit_found_w")
        if not (told := [*self._told.values()]):
            return seen
        reasons = dict(seen.reasons)
        for each in told:
            reasons |= {name: why for name, why in each.reasons.items() if name == LIMIT}
        figures = of_all([{name: getattr(each, name) for name in names} for each in told])
        found = {name: value for name, value in figures.items() if value is not None}
        return replace(seen, **found, reasons=reasons)

    def stop(self) -> None:
        """Read what the command reported last."""
        self.look()
        if self._tunes and not self._told:
            log.info("Zeus tuned no power limit: no ZeusRun.from_env() of this command reported optimizer steps.")

    def close(self) -> None:
        """Remove the folder."""
        self._kept.close()


def telling_nothing(plan: Plan) -> dict[str, str]:
    """Variables of a command that reports nothing here: its ``ZeusRun.from_env()`` does nothing, and fails nothing."""
    spec = ZeusJob(mode="measure", device="none").to_dict()
    inert = replace(plan, spec=spec, profile=(), limits_found_w={}, signal=None, previous=None)
    return {environment.PLAN: inert.to_json()}


class MeasuredLines:
    """Writes the result lines of a task that is measured alone."""

    def __init__(
        self, recurrence: Recurrence, meter: TaskMeter | None, tuner: StepTuner | StepsOfCommand | None
    ) -> None:
        self._plan, self._meter, self._tuner = recurrence.plan, meter, tuner
        self._sender = ResultSender(recurrence.reporter)
        self._began_s = self._beat_s = time.monotonic()  # time of the last heartbeat
        self._look_s = 0.0  # time of the last look at the devices
        self._silent = "" if meter else "the devices could not be opened"  # why they are asked nothing any more
        self._sender.send("attempt", attempt=self._plan.first_attempt)

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
        """What was measured up to now. After an error, and where the driver does not answer, it is time alone."""
        if self._meter is not None and not self._silent:
            try:
                self._meter.look()
                seen = self._meter.observation()
                point = self._meter.point() if with_point else None
                if self._tuner is not None:
                    seen = self._tuner.observed(seen)
                self._silent = why_silent()
                if not self._silent:
                    return seen, point
            except Exception as error:
                self._silent = f"the devices could not be read ({type(error).__name__})"
                log.warning("From here on Zeus measures only the time of this task: %s.", self._silent, exc_info=True)
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
