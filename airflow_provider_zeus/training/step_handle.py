"""The run handle of a training for which no batch size is chosen: it may tell its steps, and no more."""

from __future__ import annotations

from typing import NoReturn

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.training.step_tuner import StepTuner


class StepHandle:
    """``run`` of a function whose job names no batch sizes."""

    def __init__(self, tuner: StepTuner | None) -> None:
        self._tuner = tuner

    def step(self, samples: int | None = None) -> None:
        """Tell an optimizer step, where torch does not tell it: in other frameworks."""
        if self._tuner is not None:
            self._tuner.step()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ReportError(
            f"run.{name} needs a job that chooses batch sizes: name batch_sizes, default_batch_size, target and "
            "max_epochs in its ZeusJob. Without them run.step() is all that there is to tell."
        )
