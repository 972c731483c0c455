"""The run handle of a training for which no batch size is chosen: it may tell its steps, and no
more.
"""

from __future__ import annotations

import atexit
from typing import NoReturn, Self

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.protocol.events import ResultSender, Sink
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import ALONE, Ranks
from airflow_provider_zeus.training.step_tuner import StepTuner


class StepHandle:
    """``run`` of a function whose job names no batch sizes; of a script, ``ZeusRun.from_env()``
    around its loop.
    """

    def __init__(self, tuner: StepTuner | None) -> None:
        self._tuner = tuner

    def step(self, samples: int | None = None) -> None:
        """Tell an optimizer step, if torch does not tell it: in other frameworks."""
        if self._tuner is not None:
            self._tuner.step()

    def close(self) -> None:
        """End of the loop. The end of the task, or of the script's process, ends it too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # copy and pickle ask for such names, and know this error
            raise AttributeError(name)
        raise ReportError(
            f"run.{name} needs a job that chooses batch sizes: name batch_sizes, "
            "default_batch_size, target and max_epochs in its ZeusJob. Without them only "
            "run.step() is of use."
        )


class ScriptHandle(StepHandle):
    """The handle of a process of its own: it tunes the power limit here, and reports the figures of
    the steps to the task.

    Of several processes that train together the first one has it. If nothing is tuned, nothing is
    written.
    """

    def __init__(self, plan: Plan, sink: Sink, ranks: Ranks = ALONE) -> None:
        super().__init__(None)
        if not StepTuner.is_asked_for(plan.job):
            return
        self._tuner = StepTuner(plan, ranks=ranks)
        self._attempt = plan.first_attempt
        self._sender = ResultSender(sink)
        self._has_told = False
        self._beats = Heartbeat(self._beat, min(1.0, plan.heartbeat_s))
        atexit.register(self.close)

    def close(self) -> None:
        """Give the power limit back; tell the task the figures of the steps."""
        tuner = self._tuner
        self._tuner = None
        if tuner is None or tuner.forked:
            return
        atexit.unregister(self.close)
        self._beats.stop()
        with outlived("end the profile of this training's steps"):
            tuner.stop()
        with outlived("tell the task what the steps showed"):
            self._tell(tuner)
        with outlived("give the power limit back"):
            tuner.close()

    def _beat(self) -> None:
        tuner = self._tuner
        if tuner is not None:
            tuner.look()
            self._tell(tuner)

    def _tell(self, tuner: StepTuner) -> None:
        observation = tuner.observed(Observation())
        if observation.samples is not None or self._has_told:
            # Without figures once more, if it told some before: those were wrong.
            self._has_told = observation.samples is not None
            self._sender.send(
                "beat", attempt=self._attempt, observation=observation, profile=tuner.take_unsent()
            )
