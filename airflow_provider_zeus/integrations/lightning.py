"""Zeus for the Lightning ``Trainer``: a ``Callback`` around a run handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint

from airflow_provider_zeus.integrations.driven import DrivenRun
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.samples import BatchCount, all_dropped, samples_per_pass


class ZeusCallback(Callback):
    """Counts optimizer steps, reports the metric of each epoch to the run, and stops the trainer when the run ends.

    The job's target names a metric that the module logs once per epoch, in validation or training. An attempt that is
    given up leaves ``trainer.fit()`` by ``AttemptOver``.

    :param run: the handle. Create a callback for each attempt, as module and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        self._driven = DrivenRun(run)
        self._whole = run.local_batch_size
        self._reporter = _Reporter(self._report)
        self._optimizer_steps = 0
        self._pending = 0  # samples since the last optimizer step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the trainer's set-up. Raises JobSpecError where it differs from the run's."""
        loader, epochs = trainer.train_dataloader, trainer.max_epochs
        batch_size, parts = getattr(loader, "batch_size", None), trainer.accumulate_grad_batches
        self._optimizer_steps = trainer.global_step
        self._driven.begin(
            batch_size=batch_size * parts if isinstance(batch_size, int) else None,
            processes=trainer.world_size,
            epochs=None if epochs is None or epochs < 0 else epochs,
            samples=samples_per_pass(loader) if hasattr(loader, "sampler") else None,
        )
        _callbacks(trainer).append(self._reporter)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where Lightning had no batch it began no training: raise JobSpecError, unless the data set is empty."""
        loader = trainer.train_dataloader
        if trainer.num_training_batches == 0 and hasattr(loader, "sampler"):
            if (error := all_dropped(loader)) is not None:
                raise error
            self._driven.no_data()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch."""
        self._samples_of = BatchCount(trainer.train_dataloader, self._whole // trainer.accumulate_grad_batches)
        self._driven.begin_epoch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples of a batch. With accumulated gradients not every batch is an optimizer step."""
        self._pending += self._samples_of(batch)
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps, pending, self._pending = trainer.global_step, self._pending, 0
            self._driven.step(pending)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause training."""
        if not trainer.sanity_checking:
            self._driven.end_training()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training steps of an epoch, after its validation."""
        self._driven.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the trainer's callbacks as they were."""
        if self._reporter in (callbacks := _callbacks(trainer)):
            callbacks.remove(self._reporter)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the trainer's callbacks as they were."""
        self.on_train_end(trainer, pl_module)

    def _report(self, trainer: Trainer) -> None:
        if not self._driven.report(trainer.callback_metrics):
            trainer.should_stop = True


class _Reporter(Checkpoint):
    """Reports an epoch after the module's own hooks, which may log its metric: only checkpoints are called so late."""

    def __init__(self, report: Callable[[Trainer], None]) -> None:
        self._report = report

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epoch."""
        self._report(trainer)


def _callbacks(trainer: Trainer) -> list[Callback]:
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # it is set elsewhere in Lightning
    return found
