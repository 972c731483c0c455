"""A task that chooses its own batch size: it is measured, and if its job says so, its steps
tune the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TypeVar

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import summed_with_marks
from airflow_provider_zeus.model.trial import LIMIT, Observation, ProfileSample, State
from airflow_provider_zeus.operators.collect import FirstStarts, LinesOfPlan
from airflow_provider_zeus.operators.external_meter import ELSEWHERE
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.operators.supervise import READ_S as OUTPUT_S
from airflow_provider_zeus.operators.supervise import failure
from airflow_provider_zeus.operators.task_measurement import UNKNOWN_END, TaskEnd, TaskMeasurement
from airflow_provider_zeus.patience import T, outlived
from airflow_provider_zeus.power.device import Device, NoneDevice
from airflow_provider_zeus.power.simulated.gpu import PREFIX
from airflow_provider_zeus.power.task_meter import TaskMeter
from airflow_provider_zeus.training.process.child import Child, Follower
from airflow_provider_zeus.training.profiling.sweep import drain
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import ALONE
from airflow_provider_zeus.training.step_tuner import StepTuner
from airflow_provider_zeus.training.torch_listener import of_all
from airflow_provider_zeus.training.trackers import Trackers

log = guarded_log(__name__)

S = TypeVar("S", StepTuner, "StepsOfCommand")


def measured(recurrence: Recurrence, call: Callable[[S | None], T], steps: type[S]) -> T:
    """Return the value of ``call``; its energy and time go to the reporter.

    Raises the errors of ``call``, and none of ours.

    :param call: gets the object that hears of the steps of the training; None: nothing does.
    :param steps: ``StepTuner`` for a function in this process, ``StepsOfCommand`` for a command.
    """
    plan = recurrence.plan
    simulated: Device | None = None
    tuner: S | None = None
    with outlived("hear of the steps of this task"):
        # meter and steps must share one: its clock advances by the steps alone
        if plan.job.device.startswith(PREFIX):
            simulated = environment.device_of_plan(plan, ALONE)
        is_tuned = steps is StepsOfCommand or StepTuner.is_asked_for(plan.job)
        if is_tuned and not recurrence.elsewhere:
            tuner = steps(plan, simulated)

    def open_meter() -> TaskMeter:
        if recurrence.elsewhere:
            return TaskMeter((), NoneDevice(why=ELSEWHERE), lambda _: None)
        return TaskMeter.open(
            plan.job.device, plan.state_folder, cpu_watts=plan.cpu_watts, simulated=simulated
        )

    measurement = TaskMeasurement(
        recurrence.reporter,
        open_meter,
        attempt=plan.first_attempt,
        heartbeat_s=plan.heartbeat_s,
        steps=tuner,
    )
    end = TaskEnd(State.FAILED, UNKNOWN_END)
    try:
        value = call(tuner)
        end = TaskEnd(State.DONE)
        return value
    except BaseException as error:
        end = TaskEnd.of(error)
        raise
    finally:
        observation = measurement.end(end)
        if observation is not None and end.state is State.DONE:
            with outlived("write what this task took to its trackers"):
                Trackers(plan.job.log_to, closed=True).write_figures(State.DONE, observation, {})


class StepsOfCommand:
    """The reports of a command on its steps by ``ZeusRun.from_env()`` around its loop; in the place
    of a StepTuner.

    :param device: the simulated GPU that its steps advance.
    """

    def __init__(self, plan: Plan, device: Device | None = None) -> None:
        gpus_held = plan.gpus_held
        if device is not None and device.uuid is not None:
            gpus_held = (device.uuid,)
        handed = replace(plan, gpus_held=gpus_held).to_json()
        self.environ = telling_nothing(plan)
        self._newest: dict[str, Observation] = {}  # by start: each counts from 0 again
        self._looking = Lock()  # else the heartbeat's thread could take lines at the same time
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
        """Read the reports of the command since the last call."""
        with self._looking:
            news = self._follower.news() if self._follower else []
            for line in self._of_plan.known(self._starts.kept(news)):
                self._unsent.extend(line.profile)
                if line.observation is not None:
                    self._newest[line.start_id] = line.observation

    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """The profile samples since the last call."""
        return summed_with_marks(drain(self._unsent))

    def observed(self, seen: Observation) -> Observation:
        """The figures measured of the command, with those that its steps reported."""
        names = ("samples", "step_kind", "excess_j", "excess_s", "power_limit_w", "limit_found_w")
        reasons = dict(seen.reasons)
        reported = []
        for observation in self._newest.values():
            # Of steps that are no longer counted the reason alone is left.
            if observation.samples is not None:
                reported.append({name: getattr(observation, name) for name in names})
            # The author wants to know why the limit was not tuned, even if energy was measured.
            for name in (LIMIT, "samples"):
                if name in observation.reasons:
                    reasons[name] = observation.reasons[name]
        seen = replace(seen, reasons=reasons)
        if not reported:
            return seen
        return replace(seen, **wire.without_none(of_all(reported)))

    def stop(self) -> None:
        """Read the last reports of the command."""
        self.look()
        if self._tunes and not self._newest:
            log.info(
                "Zeus tuned no power limit: no ZeusRun.from_env() of this command reported "
                "optimizer steps."
            )

    def close(self) -> None:
        """Remove the folder."""
        self._kept.close()


def telling_nothing(plan: Plan) -> dict[str, str]:
    """Variables of a command that reports nothing here: its ``ZeusRun.from_env()`` does nothing,
    and fails nothing.
    """
    # a plan all the same: without one from_env() raises in the author's script
    spec = ZeusJob(mode="measure", device="none").to_dict()
    inert = replace(plan, spec=spec, profile=(), limits_found_w={}, signal=None, previous=None)
    return {environment.PLAN: inert.to_json()}


def run_command(command: Sequence[str], environ: Mapping[str, str], cwd: str | None) -> str:
    """Run a command to its end; return the last line of its output.

    Raises AirflowException when it fails, OSError or ValueError if no process can be started.
    """
    child = Child(command, environ, lambda line: log.info("%s", line), cwd=cwd)
    try:
        while (status := child.follow(OUTPUT_S)) is None:
            pass
    except BaseException:
        # on_kill raises here, in a signal handler: the command must not outlive its task.
        child.stop()
        raise
    finally:
        with outlived("close the pipes of the command"):
            child.close()
    if status != 0:
        raise failure(status, child.last_line)
    return child.last_line
