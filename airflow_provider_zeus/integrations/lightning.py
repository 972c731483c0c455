"""Zeus for the Lightning ``Trainer``: a ``Callback`` around a run handle.

Lightning comes under two names, ``lightning.pytorch`` and ``pytorch_lightning``: the trainer may be of either.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.integrations.driven import DrivenRun
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.samples import BatchCount, all_dropped, samples_held, samples_per_pass


class ZeusCallback(Callback):
    """Counts optimizer steps, reports the metric of each epoch to the run, and stops the trainer when the run ends.

    The job's target names a metric that the module logs, in validation or training. An attempt that is given up leaves
    ``trainer.fit()`` by ``AttemptOver``.

    :param run: the handle. Create a callback for each attempt, as module and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        self._driven = DrivenRun(run, epochs="max_epochs", checkpoint="ckpt_path", gives="self.log")
        self._whole = run.local_batch_size
        self._reporter: Callback | None = None
        self._optimizer_steps = 0
        self._pending = 0  # samples since the last optimizer step
        self._samples_of: BatchCount | None = None  # of the present epoch
        self._never: tuple[str, object, str, str] | None = None  # why no validation comes
        self._validates = False  # the first validation is to come
        self._value: Any = None  # newest one of the target's metric
        self._sanity: frozenset[str] = frozenset()  # names that the sanity check logged

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise JobSpecError beside a callback that changes the batch size before the training begins."""
        for callback in _callbacks(trainer):
            if any(kind.__name__ == "BatchSizeFinder" for kind in type(callback).__mro__):
                problem = "it changes the batch size, which the run has chosen"
                raise JobSpecError.of("callbacks", "BatchSizeFinder", problem, "leave the finder out")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the trainer's set-up. Raises JobSpecError where it does not fit the run."""
        loader, parts = trainer.train_dataloader, trainer.accumulate_grad_batches
        batch_size = getattr(loader, "batch_size", None)
        samples = samples_per_pass(loader) if hasattr(loader, "sampler") else None
        if samples is not None and isinstance(batch_size, int):
            samples = min(samples, trainer.num_training_batches * batch_size)
        if isinstance(batch_size, int) and not pl_module.automatic_optimization and batch_size < self._whole:
            batch_size = None  # the module may accumulate gradients by itself
        self._optimizer_steps = trainer.global_step
        self._never = _why_not_validated(trainer, self._driven.run.job.max_epochs or 1)
        self._validates = self._never is None
        self._refuse_names_of_loaders()
        self._driven.begin(
            batch_size=batch_size * parts if isinstance(batch_size, int) else None,
            processes=trainer.world_size,
            end=_end_of(trainer),
            samples=samples,
            trained=max(trainer.current_epoch, 0.5 if trainer.global_step else 0),
        )
        trainer.should_stop = trainer.should_stop or self._driven.over  # its checkpoint is complete
        # Reports an epoch after the module's own hooks, which may log its metric: only checkpoints are called so late.
        modules = [kind.__module__ for kind in type(trainer).__mro__]
        package = next(name for name in modules if name.endswith(end := ".trainer.trainer")).removesuffix(end)
        late = import_module(f"{package}.callbacks").Checkpoint
        hooks = {"on_train_epoch_end": lambda _, trainer, module: self._report(trainer)}
        self._reporter = type("ZeusReporter", (late,), hooks)()
        _callbacks(trainer).append(self._reporter)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where Lightning began no training: raise JobSpecError, unless the data set is empty."""
        loader = trainer.train_dataloader
        if trainer.num_training_batches == 0 and hasattr(loader, "sampler"):
            if (error := all_dropped(loader)) is not None:
                self._driven.run.progress.present.no_batch(error, samples_held(loader))
                raise error
            self._driven.no_data()
        elif not (self._driven.begun or self._driven.over):
            if trainer.current_epoch >= (self._driven.run.job.max_epochs or 1):
                self._driven.resume(trainer.current_epoch)
                return
            problem = "it ended before its first step"
            remedy = "look at max_time, max_steps, max_epochs and limit_train_batches of the Trainer"
            raise JobSpecError.of("trainer.fit", "no training", problem, remedy)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch."""
        self._samples_of = BatchCount(trainer.train_dataloader, self._whole // trainer.accumulate_grad_batches)
        self._driven.begin_epoch()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin an epoch that goes on from a checkpoint: Lightning does not announce it."""
        if self._samples_of is None:
            self.on_train_epoch_start(trainer, pl_module)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Raise JobSpecError where no validation will run, and the training step has not logged the target's metric."""
        never, self._never = self._never, None
        if never is None or not pl_module.automatic_optimization or self._driven.run.ranks.rank:
            return
        if _may_log_later(trainer, pl_module):
            return
        logged = _logged(trainer)
        if logged is not None and self._driven.metric not in logged:
            option, value, problem, remedy = never
            problem = f"{problem}, and the training step does not log the target's {self._driven.metric!r}"
            raise JobSpecError.of(option, value, problem, remedy)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples of a batch. With accumulated gradients not every batch is an optimizer step."""
        if self._samples_of is not None:
            self._pending += self._samples_of(batch)
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps, pending, self._pending = trainer.global_step, self._pending, 0
            self._driven.step(pending)
        if trainer.is_last_batch and self._driven.active and self._driven.in_last_epoch:
            trainer.should_stop = True  # then it validates now, whatever val_check_interval says

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause training."""
        if not trainer.sanity_checking:
            self._driven.end_training()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what the sanity check logs; a validation of a training epoch is reported at its end."""
        if trainer.sanity_checking:
            self._sanity = _logged(trainer) or frozenset()
        else:
            self._validates = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training steps of an epoch, after its validation."""
        self._samples_of = None
        self._driven.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the trainer's callbacks as they were."""
        if self._reporter in (callbacks := _callbacks(trainer)):
            callbacks.remove(self._reporter)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the trainer's callbacks as they were."""
        self.on_train_end(trainer, pl_module)

    def _report(self, trainer: Trainer) -> None:
        metrics, metric = dict(trainer.callback_metrics), self._driven.metric
        value = metrics.get(metric)
        if value is None or value is not self._value:  # Lightning keeps the tensor of an earlier epoch
            self._value = value
            self._driven.take(metrics)
        never = _why_not_validated(trainer, self._driven.run.job.max_epochs or 1)
        where = "validation_step" if never is None else f"training ({never[0]} = {never[1]!r}: {never[2]})"
        remedy = f"Let the module call self.log({metric!r}, ..., on_epoch=True) in {where}, or name a metric that came"
        self._driven.report_last(expected=self._validates, remedy=f"{remedy} in the job's target")
        trainer.should_stop = trainer.should_stop or self._driven.over

    def _refuse_names_of_loaders(self) -> None:
        """Raise JobSpecError where the sanity check logged the target's metric under the names of several loaders."""
        target = self._driven.metric
        names = [name for name in self._sanity if _is_of_loader(name, target)]
        if names and target not in self._sanity:
            problem = f"each validation loader logs its own: {', '.join(sorted(names))}"
            remedy = f"name one of these, or let the module call self.log({target!r}, ..., add_dataloader_idx=False)"
            raise JobSpecError.of("target", target, problem, remedy)


def _is_of_loader(name: str, target: str) -> bool:
    """Whether Lightning logged the target's metric under this name for one of several loaders."""
    metric, _, loader = name.partition("/dataloader_idx_")
    return metric == target and loader.isdecimal()


def _callbacks(trainer: Trainer) -> list[Callback]:
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # it is set elsewhere in Lightning
    return found


def _end_of(trainer: Trainer) -> tuple[str, object, float] | None:
    """The option by which the trainer ends by itself, its value, and after how many epochs; None: never, or not known.

    Raises JobSpecError where it makes no epoch, or would train on after the run's end.
    """
    batches, loop, end = trainer.num_training_batches, trainer.fit_loop, None
    if fast := getattr(trainer, "fast_dev_run", False):
        remedy = "leave it out"
        raise JobSpecError.of("fast_dev_run", fast, "it trains a batch or some, and no epoch", remedy)
    if getattr(trainer, "barebones", False):
        raise JobSpecError.of("barebones", True, "self.log() does nothing then, so no metric comes", "leave it out")
    steps = 0  # of an epoch; 0 where a stream or the module's own optimization leaves it open
    if trainer.lightning_module.automatic_optimization and math.isfinite(batches):
        steps = math.ceil(batches / trainer.accumulate_grad_batches)
    for option, least, most in (("min_epochs", loop.min_epochs, 1), ("min_steps", loop.min_steps, steps or 1)):
        if (least or 0) > most:
            problem = "the trainer would train on after the run's end"
            raise JobSpecError.of(option, least, problem, "leave it out: the run ends when its target is reached")
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        end = "max_epochs", trainer.max_epochs, float(trainer.max_epochs)
    if steps and trainer.max_steps >= 0 and (end is None or trainer.max_steps / steps < end[2]):
        end = "max_steps", trainer.max_steps, trainer.max_steps / steps
    return end


def _why_not_validated(trainer: Trainer, max_epochs: int) -> tuple[str, object, str, str] | None:
    """Option, value, problem and remedy where no validation runs within so many epochs; None where one does."""
    every = trainer.check_val_every_n_epoch
    if trainer.limit_val_batches == 0:
        return "limit_val_batches", trainer.limit_val_batches, "no validation runs", "leave it out"
    if not trainer.enable_validation:
        return "val_dataloaders", None, "no validation runs", "give trainer.fit() a loader of validation data"
    if every is not None and every > max_epochs:
        problem = f"no validation runs within the job's max_epochs = {max_epochs}"
        return "check_val_every_n_epoch", every, problem, "leave it out, so that each epoch is validated"
    return None


def _logged(trainer: Trainer) -> frozenset[str] | None:
    """Names of what the loop under way has logged so far; None where this Lightning does not tell."""
    names = set[str]()
    for each in getattr(trainer, "_results", {}).values():
        if (meta := getattr(each, "meta", None)) is None:
            return None
        several = meta.add_dataloader_idx and meta.dataloader_idx is not None
        names.add(name := f"{meta.name}/dataloader_idx_{meta.dataloader_idx}" if several else meta.name)
        names.update((f"{name}_step", f"{name}_epoch"))
    return frozenset(names)


def _may_log_later(trainer: Trainer, module: LightningModule) -> bool:
    """Whether code of the author's runs after the training step, which may log."""
    theirs = ("lightning", "pytorch_lightning", "airflow_provider_zeus")
    hooks = (
        getattr(each, h)
        for each in (module, *_callbacks(trainer))
        for h in ("on_train_batch_end", "on_train_epoch_end")
    )
    return any(str(hook.__module__).partition(".")[0] not in theirs for hook in hooks)
