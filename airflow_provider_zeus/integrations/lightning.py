"""Zeus for the Lightning ``Trainer``: a ``Callback`` around a run handle.

Lightning comes under two names, ``lightning.pytorch`` and ``pytorch_lightning``: the trainer may be
of either.
"""

from __future__ import annotations

import math
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.integrations.driven import NO_END, DrivenRun, OwnEnd
from airflow_provider_zeus.training.drawn_batches import BatchCount
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.samples import (
    all_dropped,
    samples_held,
    samples_per_pass,
)


class NoValidation(NamedTuple):
    """Why no validation runs: the Trainer's option, its value, the problem and the remedy."""

    option: str
    value: object
    problem: str
    remedy: str


class ZeusCallback(Callback):
    """Counts optimizer steps, reports each epoch's metric, stops the trainer at the run's end.

    For example: ``Trainer(max_epochs=run.job.max_epochs, callbacks=[ZeusCallback(run)])``.

    The job's target names a metric that the module logs, in validation or training. An attempt that
    is given up leaves ``trainer.fit()`` by ``AttemptOver``.

    :param run: the handle. Create a callback for each attempt, as module and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        self._driven = DrivenRun(run, epochs="max_epochs", checkpoint="ckpt_path", gives="self.log")
        self._whole = run.local_batch_size
        self._reporter: Callback | None = None
        self._optimizer_steps = 0
        self._pending = 0  # gradients of several batches may make one step
        self._samples_of: BatchCount | None = None
        self._no_validation: NoValidation | None = None
        self._validates = False  # before the first validation a missing metric is no error
        self._value: Any = None  # a tensor that Lightning has kept is told by its identity
        # the sanity check's metrics are of an untrained model
        self._sanity: frozenset[str] = frozenset()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise JobSpecError beside a callback that changes the batch size."""
        for callback in _callbacks(trainer):
            # by name: the class may come from either of Lightning's packages
            names = [kind.__name__ for kind in type(callback).__mro__]
            if "BatchSizeFinder" in names:
                problem = "it changes the batch size, which the run has chosen"
                remedy = "leave the finder out"
                raise JobSpecError.of("callbacks", "BatchSizeFinder", problem, remedy)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the trainer's set-up. Raises JobSpecError if it does not fit the run."""
        loader = trainer.train_dataloader
        self._optimizer_steps = trainer.global_step
        self._no_validation = _why_not_validated(trainer, self._driven.max_epochs)
        self._validates = self._no_validation is None
        self._refuse_names_of_loaders()
        samples = samples_per_pass(loader) if hasattr(loader, "sampler") else None
        batch_size = getattr(loader, "batch_size", None)
        if not isinstance(batch_size, int):
            batch_size = None
        # limit_train_batches and overfit_batches end an epoch early
        if samples is not None and batch_size is not None:
            samples = min(samples, trainer.num_training_batches * batch_size)
        trained: float = trainer.current_epoch
        if trained == 0 and trainer.global_step:
            trained = 0.5  # a checkpoint may be within its first epoch
        self._driven.begin(
            batch_size=self._samples_of_step(trainer, pl_module, batch_size),
            processes=trainer.world_size,
            end=_end_of(trainer),
            samples=samples,
            trained=trained,
        )
        self._stop_if_over(trainer)  # a checkpoint may be of a complete training
        # Reports an epoch after the module's own hooks, which may log its metric: only checkpoints
        # are called so late.
        module_name = ".trainer.trainer"
        modules = [kind.__module__ for kind in type(trainer).__mro__]
        module = next(name for name in modules if name.endswith(module_name))
        late = import_module(f"{module.removesuffix(module_name)}.callbacks").Checkpoint
        hooks = {"on_train_epoch_end": lambda _, trainer, module: self._report(trainer)}
        self._reporter = type("ZeusReporter", (late,), hooks)()
        _callbacks(trainer).append(self._reporter)

    def _samples_of_step(
        self, trainer: Trainer, module: LightningModule, batch_size: int | None
    ) -> int | None:
        """Samples of an optimizer step as the trainer is set up; None: not known."""
        if batch_size is None:
            return None
        if batch_size < self._whole and not module.automatic_optimization:
            return None  # the module may accumulate gradients by itself
        return batch_size * trainer.accumulate_grad_batches

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """If Lightning began no training: raise JobSpecError, unless the data set is empty."""
        loader = trainer.train_dataloader
        if trainer.num_training_batches == 0 and hasattr(loader, "sampler"):
            error = all_dropped(loader)
            if error is not None:
                self._driven.run.progress.present.no_batch(error, samples_held(loader))
                raise error
            self._driven.no_data()
            return
        if self._driven.begun or self._driven.over:
            return
        # of a complete checkpoint Lightning announces no training
        if trainer.current_epoch >= self._driven.max_epochs:
            self._driven.resume(trainer.current_epoch)
            return
        problem = "it ended before its first step"
        remedy = "look at max_time, max_steps, max_epochs and limit_train_batches of the Trainer"
        raise JobSpecError.of("trainer.fit", "no training", problem, remedy)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch."""
        whole_batch = self._whole // trainer.accumulate_grad_batches
        self._samples_of = BatchCount(trainer.train_dataloader, whole_batch)
        self._driven.begin_epoch()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin an epoch that goes on from a checkpoint: Lightning does not announce it."""
        if self._samples_of is None:
            self.on_train_epoch_start(trainer, pl_module)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Raise JobSpecError if nothing gives the metric: no validation, no log of the step."""
        why = self._no_validation
        self._no_validation = None  # a module logs the same in each step: one tells it
        if why is None or self._driven.run.ranks.rank:
            return
        if not pl_module.automatic_optimization or _may_log_later(trainer, pl_module):
            return
        metric = self._driven.metric
        logged = _logged(trainer)
        if logged is not None and metric not in logged:
            problem = f"{why.problem}, and the training step does not log the target's {metric!r}"
            raise JobSpecError.of(why.option, why.value, problem, why.remedy)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch's samples. With accumulated gradients not each is an optimizer step."""
        if self._samples_of is not None:
            self._pending += self._samples_of(batch)
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            samples = self._pending
            self._pending = 0
            self._driven.step(samples)
        if trainer.is_last_batch and self._driven.in_last_epoch:
            trainer.should_stop = True  # then it validates now, whatever val_check_interval says

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause training."""
        if not trainer.sanity_checking:
            self._driven.end_training()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the names that the sanity check logs. An epoch's validation is reported later."""
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
        callbacks = _callbacks(trainer)
        if self._reporter in callbacks:
            callbacks.remove(self._reporter)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the trainer's callbacks as they were."""
        self.on_train_end(trainer, pl_module)

    def _report(self, trainer: Trainer) -> None:
        metrics = dict(trainer.callback_metrics)
        metric = self._driven.metric
        value = metrics.get(metric)
        # without a new value Lightning keeps the tensor of an earlier epoch
        is_old = value is not None and value is self._value
        if not is_old:
            self._value = value
            self._driven.take(metrics)
        place = "validation_step"
        why = _why_not_validated(trainer, self._driven.max_epochs)
        if why is not None:
            place = f"training ({why.option} = {why.value!r}: {why.problem})"
        remedy = (
            f"Let the module call self.log({metric!r}, ..., on_epoch=True) in {place}, or name a "
            "metric that came"
        )
        self._driven.report_last(expected=self._validates, remedy=f"{remedy} in the job's target")
        self._stop_if_over(trainer)

    def _stop_if_over(self, trainer: Trainer) -> None:
        if self._driven.over:
            trainer.should_stop = True

    def _refuse_names_of_loaders(self) -> None:
        """Raise JobSpecError if each of several loaders logged the target's metric as its own."""
        target = self._driven.metric
        names = [name for name in self._sanity if _is_of_loader(name, target)]
        if names and target not in self._sanity:
            problem = f"each validation loader logs its own: {', '.join(sorted(names))}"
            remedy = (
                f"name one of these, or let the module call self.log({target!r}, ..., "
                "add_dataloader_idx=False)"
            )
            raise JobSpecError.of("target", target, problem, remedy)


def _is_of_loader(name: str, target: str) -> bool:
    """Whether Lightning logged the target's metric under this name for one of several loaders."""
    metric, _, loader = name.partition("/dataloader_idx_")
    return metric == target and loader.isdecimal()


def _callbacks(trainer: Trainer) -> list[Callback]:
    # Lightning sets it outside of the class
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def _end_of(trainer: Trainer) -> OwnEnd:
    """The earliest end by the trainer's own options.

    Raises JobSpecError if it makes no epoch, or would train on after the run's end.
    """
    batches = trainer.num_training_batches
    fast = getattr(trainer, "fast_dev_run", False)
    if fast:
        problem = "it trains a batch or some, and no epoch"
        raise JobSpecError.of("fast_dev_run", fast, problem, "leave it out")
    if getattr(trainer, "barebones", False):
        problem = "self.log() does nothing then, so no metric comes"
        raise JobSpecError.of("barebones", True, problem, "leave it out")
    steps = 0  # nobody knows those of a stream, or of the module's own optimization
    if trainer.lightning_module.automatic_optimization and math.isfinite(batches):
        steps = math.ceil(batches / trainer.accumulate_grad_batches)
    _check_least("min_epochs", trainer.fit_loop.min_epochs, most=1)
    _check_least("min_steps", trainer.fit_loop.min_steps, most=max(steps, 1))
    ends = [NO_END]
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        ends.append(OwnEnd("max_epochs", trainer.max_epochs, float(trainer.max_epochs)))
    if steps > 0 and trainer.max_steps >= 0:
        ends.append(OwnEnd("max_steps", trainer.max_steps, trainer.max_steps / steps))
    return min(ends, key=lambda end: end.epochs)


def _check_least(option: str, value: int | None, *, most: int) -> None:
    """Raise JobSpecError if the trainer trains for longer than the shortest run."""
    if value is not None and value > most:
        problem = "the trainer would train on after the run's end"
        remedy = "leave it out: the run ends when its target is reached"
        raise JobSpecError.of(option, value, problem, remedy)


def _why_not_validated(trainer: Trainer, max_epochs: int) -> NoValidation | None:
    """Why no validation runs within so many epochs; None if one does."""
    problem = "no validation runs"
    batches = trainer.limit_val_batches
    if batches == 0:
        return NoValidation("limit_val_batches", batches, problem, "leave it out")
    if not trainer.enable_validation:
        remedy = "give trainer.fit() a loader of validation data"
        return NoValidation("val_dataloaders", None, problem, remedy)
    epochs = trainer.check_val_every_n_epoch
    if epochs is not None and epochs > max_epochs:
        problem += f" within the job's max_epochs = {max_epochs}"
        remedy = "leave it out, so that each epoch is validated"
        return NoValidation("check_val_every_n_epoch", epochs, problem, remedy)
    return None


def _logged(trainer: Trainer) -> frozenset[str] | None:
    """Names that the loop under way has logged so far; None if this Lightning does not tell."""
    names = set[str]()
    for metric in getattr(trainer, "_results", {}).values():
        meta = getattr(metric, "meta", None)
        if meta is None:
            return None
        name = meta.name
        if meta.add_dataloader_idx and meta.dataloader_idx is not None:
            name += f"/dataloader_idx_{meta.dataloader_idx}"
        # with on_step and on_epoch Lightning gives both under names of their own
        names.update((name, f"{name}_step", f"{name}_epoch"))
    return frozenset(names)


def _may_log_later(trainer: Trainer, module: LightningModule) -> bool:
    """Whether code of the author's runs after the training step, which may log."""
    # a hook that nobody overrides is of one of these packages
    theirs = {"lightning", "pytorch_lightning", "airflow_provider_zeus"}
    owners: list[Any] = [module, *_callbacks(trainer)]
    hooks = [(owner.on_train_batch_end, owner.on_train_epoch_end) for owner in owners]
    packages = [str(hook.__module__).partition(".")[0] for hook in chain.from_iterable(hooks)]
    return not theirs.issuperset(packages)
