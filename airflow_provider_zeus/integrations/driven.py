"""``run.epochs()`` for a framework that owns the loop and reports its events by callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.training.run import ZeusRun


class DrivenRun:
    """One attempt of a run within a framework's loop. Signals of the run propagate through the framework's call."""

    def __init__(self, run: ZeusRun) -> None:
        self.run = run
        run.driven = True
        self._epochs: Iterator[int] | None = None
        self._report_due = False  # the training steps of an epoch are over
        self._samples: float | None = None  # of one epoch of this process

    @property
    def active(self) -> bool:
        """Whether an attempt is under way."""
        return self._epochs is not None

    def begin(self, *, batch_size: int | None, processes: int, epochs: float | None, samples: float | None) -> None:
        """Begin the framework's loop.

        :param batch_size: samples of one optimizer step of this process, as the framework is set up; None: unknown.
        :param processes: how many train together, as the framework sees it.
        :param epochs: after how many the framework ends by itself; None: never.
        :param samples: of one epoch of this process; None: unknown.

        Raises JobSpecError where the framework is set up with other values than the run's; ReportError where an earlier
        loop of this attempt has ended the training.
        """
        run, max_epochs = self.run, self.run.job.max_epochs or 1
        if processes != run.ranks.size:
            remedy = "start the command by torchrun, so that each process has its place from the beginning"
            raise JobSpecError.of("processes", processes, f"the run knows of {run.ranks.size}", remedy)
        if batch_size is not None and batch_size != run.local_batch_size:
            problem = f"this attempt runs with {run.local_batch_size} for each process and optimizer step"
            raise JobSpecError.of("batch size", batch_size, problem, "take it from run.local_batch_size")
        if epochs is not None and epochs < max_epochs:
            problem = f"the run may need {max_epochs}, and ends by itself when it is done"
            raise JobSpecError.of("epochs", epochs, problem, "take it from run.job.max_epochs")
        self._samples = samples
        epochs_left = iter(run.epochs())
        self._epochs = None if next(epochs_left, None) is None else epochs_left  # a rehearsal ends with its first epoch

    def no_data(self) -> None:
        """Tell the run that the framework found no batch and began no loop."""
        self.run.start_pass(0.0)
        self.run.end_pass(0.0, 0.0)

    def begin_epoch(self) -> None:
        """Begin the training steps of an epoch. Raises ReportError where the epoch before reported nothing."""
        if self._epochs is None:
            return
        if self._report_due:
            next(self._epochs)
        self.run.start_pass(self._samples)

    def step(self, samples: int | None) -> None:
        """Count an optimizer step of this process over so many samples; None: a whole batch."""
        if self.active:
            self.run.step(samples)

    def end_training(self) -> None:
        """Pause the training steps, for validation or at the end of the epoch."""
        if self.active:
            self.run.end_pass(0.0, 0.0)

    def end_epoch(self) -> None:
        """End the training steps of an epoch; its report is due."""
        self.end_training()
        self._report_due = self.active

    def report(self, metrics: Mapping[str, Any]) -> bool:
        """Report the metrics of the epoch, if a report is due; return whether the loop goes on."""
        if self._epochs is None or not self._report_due:
            return True
        self._report_due = False
        numbers = {}
        for name, value in metrics.items():
            with suppress(TypeError, ValueError, RuntimeError):  # such as of a tensor of several elements
                if not isinstance(value, str):
                    float(value)
                    numbers[name] = value
        self.run.report(**numbers)
        if next(self._epochs, None) is None:
            self._epochs = None
            return False
        return True
