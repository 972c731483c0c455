"""What the tests of the Lightning callback train: imported by them alone, for Lightning takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, EarlyStopping, ModelCheckpoint  # noqa: F401
from torch.utils.data import DataLoader, TensorDataset

from airflow_provider_zeus.integrations.lightning import ZeusCallback
from airflow_provider_zeus.training.run import ZeusRun

SAMPLES = 100
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Linear(LightningModule):
    """Logs ``acc`` 0.9 in the given epoch, in validation or in training."""

    def __init__(self, epochs: int, *, validates: bool = True) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.epochs = epochs
        self.validates = validates
        self.steps = self.begun = self.evaluations = 0

    @property
    def acc(self) -> float:
        return 0.9 if self.current_epoch + 1 >= self.epochs else 0.5

    def on_train_epoch_start(self) -> None:
        self.begun += 1

    def training_step(self, batch: Any, index: int) -> Any:
        (x,) = batch
        if not self.validates:
            self.log("acc", self.acc, on_step=False, on_epoch=True)
        return self.layer(x).square().mean()

    def on_validation_epoch_end(self) -> None:
        self.evaluations += not self.trainer.sanity_checking

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("acc", self.acc)
        self.log("loss", self.layer(batch[0]).mean())

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.steps += 1
        super().optimizer_step(*args, **kwargs)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class LogsLate(Linear):
    """Logs its metric in its own hook at the end of an epoch, as metrics over the whole epoch are logged."""

    def validation_step(self, batch: Any, index: int) -> None:
        pass

    def on_train_epoch_end(self) -> None:
        self.log("acc", self.acc)


class Several(Linear):
    """Has several validation loaders."""

    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, index)


class Images(Linear):
    def training_step(self, batch: Any, index: int) -> Any:
        return super().training_step((torch.cat(batch[0]),), index)


class Manual(Linear):
    """Accumulates the gradients of two batches by itself."""

    def __init__(self, epochs: int) -> None:
        super().__init__(epochs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer: Any = self.optimizers()
        self.manual_backward(super().training_step(batch, index))
        if index % 2 or self.trainer.is_last_batch:
            optimizer.step()
            optimizer.zero_grad()


def trainer(run: ZeusRun, tmp: Path, **changes: Any) -> Trainer:
    settings = {"max_epochs": run.job.max_epochs, **QUIET, **changes}
    return Trainer(callbacks=[ZeusCallback(run)], default_root_dir=tmp, **settings)


class Training:
    """A training function; reaches its target in the given epoch.

    :param others: callbacks after ours.
    :param loaders: of validation data.
    """

    def __init__(
        self,
        tmp: Path,
        epochs: int = 3,
        *,
        module: type[Linear] = Linear,
        validates: bool = True,
        parts: int = 1,
        others: Sequence[Callback] = (),
        loaders: int = 1,
        ckpt_path: Path | None = None,
        **changes: Any,
    ) -> None:
        self.tmp = tmp
        self.epochs = epochs
        self.validates = validates
        self.parts = parts
        self.changes = changes
        self.module = module
        self.others = others
        self.loaders = loaders
        self.ckpt_path = ckpt_path
        self.counts: list[Linear] = []

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has made a step: a module counts those that it only began."""
        return any(
            module.optimizers().state for module in self.counts if module._trainer is not None
        )

    def __call__(self, run: ZeusRun) -> int:
        data = TensorDataset(torch.randn(SAMPLES, 4))
        settings = {
            "max_epochs": run.job.max_epochs,
            "accumulate_grad_batches": self.parts,
            **QUIET,
            **self.changes,
        }
        trainer = Trainer(
            callbacks=[ZeusCallback(run), *self.others], default_root_dir=self.tmp, **settings
        )
        module = self.module(self.epochs, validates=self.validates)
        self.counts.append(module)
        loader = DataLoader(data, batch_size=run.local_batch_size // self.parts, shuffle=True)
        loaders = [DataLoader(data, batch_size=50)] * self.loaders if self.validates else []
        trainer.fit(module, loader, loaders or None, ckpt_path=self.ckpt_path)
        return run.batch_size


# What the contract of all frameworks asks for (``test_contract.py``).
STEPS = 7  # of one epoch at batch size 16
EVERY_SECOND_EPOCH: dict[str, Any] = {"check_val_every_n_epoch": 2}


def stops_early(tmp: Path) -> Training:
    """A training that ends once two epochs are no better than the best before."""
    return Training(tmp, epochs=99, others=[EarlyStopping("acc", mode="max", patience=2)])


def saves(tmp: Path, every: int) -> Training:
    """A training that never reaches its target and keeps a checkpoint after each ``every`` steps."""
    keeping = ModelCheckpoint(tmp, "{step}", save_top_k=-1, every_n_train_steps=every)
    return Training(tmp, epochs=99, others=[keeping], enable_checkpointing=True)


def resumes(tmp: Path, step: int) -> Training:
    """A training that goes on from the checkpoint of a step, and reaches its target in the trainer's third epoch."""
    return Training(tmp, ckpt_path=tmp / f"step={step}.ckpt")


def without_callback(run: ZeusRun, tmp: Path) -> None:
    """One epoch of a trainer that knows nothing of the run, at another batch size."""
    data = TensorDataset(torch.randn(10 * SAMPLES, 4))
    trainer = Trainer(default_root_dir=tmp, max_epochs=1, **QUIET)
    trainer.fit(Linear(3), DataLoader(data, batch_size=4 * run.batch_size))
