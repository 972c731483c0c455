"""``run.epochs()`` for a framework that owns the loop and reports its events by callbacks.

An epoch of a run ends with the target's metric, and a framework evaluates when it is set up to. So
a report waits for the evaluation that has the metric; an epoch without one counts with the last
value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.units import counted


class OwnEnd(NamedTuple):
    """The end that a framework's own option sets to a training, after so many epochs."""

    option: str
    value: object
    epochs: float


NO_END = OwnEnd("", None, math.inf)  # an end that is not known must refuse no training


class DrivenRun:
    """One attempt of a run within a framework's loop.

    Signals of the run propagate through the framework's call.

    :param epochs: the framework's name for the number of epochs after which it ends.
    :param checkpoint: its name for the checkpoint to go on from.
    :param gives: the author's call that gives it the metrics.
    """

    def __init__(self, run: ZeusRun, *, epochs: str, checkpoint: str, gives: str) -> None:
        self.run = run
        self.metric = run.job.parsed_target.metric
        self.max_epochs = run.job.max_epochs or 1
        # else a loader of ours would count the same steps again
        run.progress.driven = True
        self.active = False
        self.over = False
        self.begun = False
        self.fresh = False  # a metric of an earlier epoch must not count again
        self._epochs_option = epochs
        self._checkpoint_option = checkpoint
        self._gives = gives
        self._epochs: Iterator[int] = iter(())
        self._epoch = 0
        self._stepped = False  # a sanity check before the first step is no epoch
        self._report_due = False  # its metric comes after its steps
        self._value: Any = None  # callbacks give a metric before the epoch ends
        self._others: set[str] = set()  # an error names them: the target may have a wrong one
        self._samples: float | None = None

    @property
    def in_last_epoch(self) -> bool:
        """Whether the run ends with the present epoch, whatever its metric."""
        return self.active and self._epoch + 1 >= self.max_epochs

    def begin(
        self,
        *,
        batch_size: int | None,
        processes: int,
        end: OwnEnd,
        samples: float | None,
        trained: float,
    ) -> None:
        """Begin the framework's loop.

        :param batch_size: samples of one optimizer step of this process, as the framework is set
            up; None: unknown.
        :param processes: how many train together, as the framework sees it.
        :param end: by which the framework ends by itself.
        :param samples: of one epoch of this process; None: unknown.
        :param trained: epochs that its checkpoint has trained; 0 if it begins afresh.

        A second loop of an attempt, as after early stopping, goes on with its epochs. Raises
        JobSpecError if the framework is set up with other values than the run's; ReportError if
        an earlier loop of this attempt has ended the training, or one is under way.
        """
        run = self.run
        if processes != run.ranks.size:
            problem = f"the run knows of {run.ranks.size}"
            remedy = (
                "start the command by torchrun, so that each process has its place from the "
                "beginning"
            )
            raise JobSpecError.of("processes", processes, problem, remedy)
        if batch_size not in (None, run.local_batch_size):
            problem = (
                f"this attempt runs with {run.local_batch_size} for each process and optimizer step"
            )
            remedy = "take it from run.local_batch_size"
            raise JobSpecError.of("batch size", batch_size, problem, remedy)
        if end.epochs < self.max_epochs:
            needed = counted(self.max_epochs, "epoch")
            problem = f"the run may need {needed}, and the trainer ends after {end.epochs:.3g}"
            remedy = f"set {self._epochs_option}=run.job.max_epochs"
            if end.option != self._epochs_option:
                remedy += f", and leave {end.option} out"
            remedy += ", or give the job a smaller max_epochs"
            raise JobSpecError.of(end.option, end.value, problem, remedy)
        self._samples = samples
        self._epochs = run.epochs()
        self.active = True
        # the epochs of an earlier loop of this attempt are in the run already
        if trained and not run.epochs_done:
            self.resume(trained)
        try:
            self._next_epoch()
        except ReportError:
            raise ReportError(
                "a loop over the epochs of this run is under way already, and the callback is one "
                "itself. Take the trainer out of `for _ in run.epochs():`, and give it one "
                "callback of a run alone."
            ) from None

    def resume(self, trained: float) -> None:
        """Go on from a checkpoint of so many epochs; after all of the job's the run ends.

        Raises JobSpecError if all are trained, and no earlier try of this run left the checkpoint.
        """
        if trained < self.max_epochs:
            # else a checkpoint within the first epoch would count as none
            least = min(1, self.max_epochs - 1)
            self.run.resumed(epochs=max(int(trained), least))
            return
        # a retry whose checkpoint is complete has nothing to train, and ends as the earlier try did
        try:
            self.run.resumed(epochs=int(trained))
        except ReportError:
            problem = f"it has trained all of the job's max_epochs = {self.max_epochs}"
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
            self.begun = True
            self.fresh = False
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
        """Take the metrics of an evaluation.

        The target's is reported if a report is due, and else kept for it. Metrics that come before
        the first epoch are of no trained model, and ignored.
        """
        if not (self.active and self.begun):
            return
        if self.metric not in metrics:
            self._others.update(metrics)  # an error names them: the target may have a wrong one
            return
        self._value = metrics[self.metric]
        self.fresh = True
        if self._report_due:
            self._report(self._value)

    def report_last(self, *, expected: bool, remedy: str) -> None:
        """Report an epoch whose report is still due: its last value, or that of an earlier epoch
        once more.

        :param expected: whether the first evaluation may come in a later epoch.
        :param remedy: if none may, in the framework's words.

        Raises ReportError if no evaluation had the target's metric and none is expected.
        """
        if not self._report_due:
            return
        value = self._value
        if value is None:
            if not expected:
                self._refuse_no_metric(remedy)
            # each epoch needs a report, and the worst value reaches no target
            value = -math.inf if self.run.job.parsed_target.higher_is_better else math.inf
        if self._stepped and not self.fresh:
            self.run.progress.say_once(
                "not every epoch is evaluated: one that is not counts with the last value of "
                f"{self.metric}, and as below the target before the first."
            )
        self._report(value)

    def _refuse_no_metric(self, remedy: str) -> None:
        """Raise ReportError if a step was made, on the rank whose reports count."""
        # without a step there is no data; the metric of rank 0 counts, others need not evaluate
        if self.run.ranks.rank or not self._stepped:
            return
        others = ""
        if self._others:
            others = f" (only {', '.join(sorted(self._others))} came)"
        raise ReportError(f"epoch {self._epoch} ended without {self.metric!r}{others}. {remedy}.")

    def _report(self, value: Any) -> None:
        self._report_due = False
        value = self.run.job.parsed_target.pick({self.metric: value}, self._gives)
        self.run.report(**{self.metric: value})
        self._next_epoch()

    def _next_epoch(self) -> None:
        epoch = next(self._epochs, None)
        if epoch is None:
            self.active = False
            self.over = True
            return
        self._epoch = epoch
