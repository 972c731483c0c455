"""``run.epochs()`` for a framework that owns the loop and reports its events by callbacks.

An epoch of a run ends with the target's metric, and a framework evaluates when it is set up to. So a report waits for
the evaluation that has the metric; an epoch without one counts with the last value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.run import ZeusRun

log = guarded_log(__name__)


class DrivenRun:
    """One attempt of a run within a framework's loop. Signals of the run propagate through the framework's call.

    :param epochs: what the framework calls the number of epochs after which it ends.
    :param checkpoint: what it calls the checkpoint to go on from.
    :param gives: the author's call that gives it the metrics.
    """

    def __init__(self, run: ZeusRun, *, epochs: str, checkpoint: str, gives: str) -> None:
        self.run, self.metric = run, run.job.parsed_target.metric
        run.progress.driven = True
        self.over = False  # the run has ended the training
        self.begun = self.fresh = False  # an epoch has begun; the target's metric has come since the present one did
        self._epochs_option, self._checkpoint_option, self._gives = epochs, checkpoint, gives
        self._epochs: Iterator[int] | None = None
        self._epoch = 0
        self._stepped = False  # a step was made
        self._report_due = False  # the training steps of an epoch are over
        self._value: Any = None  # newest one of the target's metric
        self._others: set[str] = set()  # names of other metrics that came
        self._samples: float | None = None  # of one epoch of this process

    @property
    def active(self) -> bool:
        """Whether an attempt is under way."""
        return self._epochs is not None

    @property
    def in_last_epoch(self) -> bool:
        """Whether the run ends with the present epoch, whatever its metric."""
        return self._epoch + 1 >= (self.run.job.max_epochs or 1)

    def begin(
        self,
        *,
        batch_size: int | None,
        processes: int,
        end: tuple[str, object, float] | None,
        samples: float | None,
        trained: float,
    ) -> None:
        """Begin the framework's loop.

        :param batch_size: samples of one optimizer step of this process, as the framework is set up; None: unknown.
        :param processes: how many train together, as the framework sees it.
        :param end: the option by which the framework ends by itself, its value, and after how many epochs; None: never.
        :param samples: of one epoch of this process; None: unknown.
        :param trained: epochs that its checkpoint has trained; 0 where it begins afresh.

        A second loop of an attempt, as after early stopping, goes on with its epochs. Raises JobSpecError where the
        framework is set up with other values than the run's; ReportError where an earlier loop of this attempt has
        ended the training, or one is under way.
        """
        run, max_epochs = self.run, self.run.job.max_epochs or 1
        if processes != run.ranks.size:
            remedy = "start the command by torchrun, so that each process has its place from the beginning"
            raise JobSpecError.of("processes", processes, f"the run knows of {run.ranks.size}", remedy)
        if batch_size is not None and batch_size != run.local_batch_size:
            problem = f"this attempt runs with {run.local_batch_size} for each process and optimizer step"
            raise JobSpecError.of("batch size", batch_size, problem, "take it from run.local_batch_size")
        if end is not None and end[2] < max_epochs:
            option, value, epochs = end
            problem = f"the run may need {max_epochs} epochs, and the trainer ends after {epochs:.3g}"
            leave_out = "" if option == self._epochs_option else f", and leave {option} out"
            remedy = f"set {self._epochs_option}=run.job.max_epochs{leave_out}, or give the job a smaller max_epochs"
            raise JobSpecError.of(option, value, problem, remedy)
        self._samples, self._epochs = samples, run.epochs()
        if trained and not run.epochs_done:
            self.resume(trained)
        try:
            self._next_epoch()
        except ReportError:
            raise ReportError(
                "a loop over the epochs of this run is under way already, and the callback is one itself. Take the "
                "trainer out of `for _ in run.epochs():`, and give it one callback of a run alone."
            ) from None

    def resume(self, trained: float) -> None:
        """Go on from a checkpoint of so many epochs; one that has trained all of the job's ends the run.

        Raises JobSpecError where it has, and no earlier try of this run left it.
        """
        max_epochs = self.run.job.max_epochs or 1
        if trained < max_epochs:
            self.run.resumed(epochs=max(int(trained), 1) if max_epochs > 1 else 0)
            return
        try:
            self.run.resumed(epochs=int(trained))
        except ReportError:
            problem = f"it has trained all of the job's max_epochs = {max_epochs}"
            remedy = f"leave {self._checkpoint_option} out, or give the job a larger max_epochs"
            value = f"a checkpoint of epoch {trained:g}"
            raise JobSpecError.of(self._checkpoint_option, value, problem, remedy) from None

    def no_data(self) -> None:
        """Tell the run that the framework found no batch and began no loop."""
        self.run.progress.start_pass(0.0)
        self.run.progress.present.end_pass()

    def begin_epoch(self) -> None:
        """Begin the training steps of an epoch."""
        if self.active:
            self.begun, self.fresh = True, False
            self.run.progress.start_pass(self._samples)

    def step(self, samples: int | None) -> None:
        """Count an optimizer step of this process over so many samples; None: a whole batch."""
        if self.active:
            self._stepped = True
            self.run.step(samples)

    def end_training(self) -> None:
        """Pause the training steps, for validation or at the end of the epoch."""
        if self.active:
            self.run.progress.present.end_pass()

    def end_epoch(self) -> None:
        """End the training steps of an epoch; its report is due."""
        self.end_training()
        self._report_due = self.active

    def take(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of an evaluation. The target's is reported where a report is due, and else kept for it.

        What comes before the first epoch is of no trained model, and ignored.
        """
        if not self.active or not self.begun:
            return
        if self.metric not in metrics:
            self._others.update(metrics)
            return
        self._value, self.fresh = metrics[self.metric], True
        if self._report_due:
            self._report(self._value)

    def report_last(self, *, expected: bool, remedy: str) -> None:
        """Report an epoch whose report is still due: its last value, or that of an earlier epoch once more.

        :param expected: whether the first evaluation may come in a later epoch.
        :param remedy: what to do where none may, in the framework's words.

        Raises ReportError where no evaluation had the target's metric and none is expected.
        """
        if not self._report_due:
            return
        none_yet = self._value is None
        if none_yet and self._stepped and not expected and not self.run.ranks.rank:
            others = f" (only {', '.join(sorted(self._others))} came)" if self._others else ""
            raise ReportError(f"epoch {self._epoch} ended without {self.metric!r}{others}. {remedy}.")
        said = f"not every epoch is evaluated: one that is not counts with the last value of {self.metric}"
        if self._stepped and not self.fresh and said not in self.run.progress.warned:
            self.run.progress.warned.add(said)
            log.warning("Zeus: %s, and as below the target before the first.", said)
        below = -math.inf if self.run.job.parsed_target.higher_is_better else math.inf
        self._report(below if none_yet else self._value)

    def _report(self, value: Any) -> None:
        self._report_due = False
        self.run.report(**{self.metric: self.run.job.parsed_target.pick({self.metric: value}, self._gives)})
        self._next_epoch()

    def _next_epoch(self) -> None:
        epoch = None if self._epochs is None else next(self._epochs, None)
        self._epoch = self._epoch if epoch is None else epoch
        if epoch is None:
            self._epochs, self.over = None, True
