"""The begin and the end of measuring a task: shared by the operators, and by the listener for tasks
of others.

A thread looks at the devices while the task runs. Its readings go to a sink as result lines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import Observation, PowerPoint, ProfileSample, State
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.meter import Meter
from airflow_provider_zeus.power.nvml.library import why_silent
from airflow_provider_zeus.training.error_text import error_text
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.protocol.events import ENDED_AT_S, Kind, ResultSender, Sink

log = guarded_log(__name__)

LOOK_S = 2.0  # a task may use a GPU for a few seconds alone
SKIPPED = "the task skipped itself"
UNKNOWN_END = "its end is not known"


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended. ``reason``: why not as usual; None: it did its work."""

    state: State
    reason: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The end of a task that an exception left."""
        steers = {  # Airflow raises these to steer a task, so they are no failures
            "AirflowSkipException": SKIPPED,
            "DownstreamTasksSkipped": "the task skipped those after it",
            "TaskDeferred": "the task was deferred; what it does after that is not measured",
            "AirflowRescheduleException": "the task was rescheduled",
            "DagRunTriggerException": "the task triggered another DAG",
        }
        for kind in type(error).__mro__:
            if kind.__name__ in steers:
                return cls(State.DONE, steers[kind.__name__])
        return cls(State.FAILED, error_text(error))


class Steps(Protocol):
    """Hears of the steps of a training that runs within a measured task."""

    def look(self) -> None:
        """Read the news since the last call."""

    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """The profile samples since the last call."""

    def observed(self, seen: Observation) -> Observation:
        """The figures measured of the task, with those of its steps."""

    def stop(self) -> None:
        """The task has ended: read the last news."""

    def close(self) -> None:
        """Release files and folders."""


class TaskMeasurement:
    """Measures from its construction to :meth:`end`. Raises nothing.

    :param sink: takes the result lines; it raises nothing.
    :param open_meter: opens the devices. If it raises, time alone is measured.
    :param attempt: number of the attempt that the lines are about.
    :param heartbeat_s: between two lines with the sums so far [s].
    :param steps: hears of the steps of a training; None: nothing does.
    """

    def __init__(
        self,
        sink: Sink,
        open_meter: Callable[[], Meter],
        *,
        attempt: int,
        heartbeat_s: float,
        steps: Steps | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._attempt = attempt
        self._heartbeat_s = heartbeat_s
        self._steps = steps
        self._sender = ResultSender(sink)
        self._meter: Meter | None = None
        # It stays the row's reason if the next step raises, whose error goes to the log alone.
        self._silent = "the devices could not be opened"
        # without devices the row still has the task's time
        with outlived("open the devices to measure this task"):
            self._meter = open_meter()
        # None from the first failure on: such devices would fail, or hang, at each look.
        self._answers: Meter | None = self._meter
        self._began_s = time.monotonic()
        self._beat_s = self._began_s
        self._look_s = 0.0
        self._sender.send("attempt", attempt=attempt)
        self._beats = Heartbeat(self._beat, min(LOOK_S, heartbeat_s))

    def end(self, end: TaskEnd) -> Observation | None:
        """Write the end of the task; return its figures.

        A device that fails costs no task its end.

        In a process that the task forked it does nothing, and returns None.
        """
        # a fork inherits the object, and would write a second end
        if os.getpid() != self._pid:
            return None
        # First: a heartbeat after the end would write to a row that has ended.
        self._beats.stop()
        if self._steps is not None:
            with outlived("end the profile of this task's steps"):
                self._steps.stop()
        observation: Observation | None = None
        with outlived("write what this task took"):
            observation = self._read()
            notes = {ENDED_AT_S: time.time()}
            self._send("end", observation, state=end.state, reason=end.reason, notes=notes)
            kept = self._attempt if end.state is State.DONE else None
            self._sender.send("final", attempt=kept)
            self._sender.close()
        with outlived("close the devices"):
            if self._steps is not None:
                self._steps.close()
            if self._meter is not None:
                self._meter.close()
        return observation

    def _beat(self) -> None:
        """Look at the devices; now and then send the sums so far and a power point."""
        if self._steps is not None:
            self._steps.look()
        # steps are read more often than devices, whose reading costs the task time
        if time.monotonic() - self._look_s < LOOK_S:
            return
        self._look_s = time.monotonic()
        observation = self._read()
        if self._look_s - self._beat_s < self._heartbeat_s:
            return
        self._beat_s = self._look_s
        points: tuple[PowerPoint, ...] = ()
        meter = self._answers
        if meter is not None:
            points = (meter.point(),)
        self._send("beat", observation, points=points)

    def _send(self, kind: Kind, observation: Observation, **fields: Any) -> None:
        if self._steps is not None:
            fields["profile"] = self._steps.take_unsent()
        self._sender.send(kind, attempt=self._attempt, observation=observation, **fields)

    def _read(self) -> Observation:
        """The figures up to now; time alone after an error, or if the driver does not
        answer.
        """
        meter = self._answers
        if meter is not None:
            try:
                meter.look()
                observation = meter.observation()
                if self._steps is not None:
                    observation = self._steps.observed(observation)
                # a driver that hangs once hangs each look: from then on time alone
                # is measured
                self._silent = why_silent()
                if not self._silent:
                    return observation
            except Exception as error:
                self._silent = f"the devices could not be read ({type(error).__name__})"
                log.warning(
                    "From here on Zeus measures only the time of this task: %s.",
                    self._silent,
                    exc_info=True,
                )
            self._answers = None
        time_s = time.monotonic() - self._began_s
        return Observation(time_s=time_s, reasons={"energy_j": self._silent})
