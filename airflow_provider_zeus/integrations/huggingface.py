"""Zeus for the Hugging Face ``Trainer``: a ``TrainerCallback`` around a run handle."""

from __future__ import annotations

from typing import Any

import torch  # noqa: TID253  the trainer imports it anyway
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.integrations.driven import DrivenRun
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.samples import samples_per_pass


def arguments(run: ZeusRun, *, gradient_accumulation_steps: int = 1, gpus: int | None = None) -> dict[str, Any]:
    """Keyword arguments of ``TrainingArguments`` for a run: batch size, epochs, an evaluation after each epoch.

    :param gradient_accumulation_steps: forward passes over which the batch of an optimizer step is divided.
    :param gpus: of this process; default: those that the trainer uses, all visible ones where one process trains.

    Raises JobSpecError where the batch size cannot be divided over them.
    """
    if gpus is None:
        gpus = 1 if run.ranks.several else max(torch.cuda.device_count(), 1)
    parts = gradient_accumulation_steps * gpus
    if run.local_batch_size % parts:
        raise JobSpecError.of(
            "gradient_accumulation_steps x gpus",
            parts,
            f"does not divide the batch size {run.local_batch_size} of this process",
            "use a number that divides every batch size of the job",
        )
    return {
        "per_device_train_batch_size": run.local_batch_size // parts,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "num_train_epochs": run.job.max_epochs,
        "eval_strategy": "epoch",
    }


class ZeusTrainerCallback(TrainerCallback):
    """Counts optimizer steps, reports each epoch's evaluation to the run, and stops the trainer when the run ends.

    The job's target names a metric of the evaluation, with or without ``eval_``. An attempt that is given up leaves
    ``trainer.train()`` by ``AttemptOver``.

    :param run: the handle. Create a callback for each attempt, as model and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        self._driven = DrivenRun(run)
        self._samples: float | None = None  # of one epoch, where a single process trains
        self._left = 0.0  # of them, not yet trained

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Check the trainer's arguments. Raises JobSpecError where they do not fit the run."""
        loader = of.get("train_dataloader")
        if loader is None:  # transformers 4.49 keeps it in the state
            loader = getattr(state, "train_dataloader", None)
        self._samples = samples_per_pass(loader) if loader is not None and args.world_size == 1 else None
        self._driven.begin(
            batch_size=args.train_batch_size * args.gradient_accumulation_steps,
            processes=args.world_size,
            epochs=state.num_train_epochs,
            samples=self._samples,
        )

    def on_epoch_begin(self, *_: Any, **of: Any) -> None:
        """Begin an epoch."""
        self._left = self._samples or 0.0
        self._driven.begin_epoch()

    def on_step_end(self, args: TrainingArguments, *_: Any, **of: Any) -> None:
        """Count an optimizer step; the last one of an epoch may have fewer samples."""
        whole = args.train_batch_size * args.gradient_accumulation_steps
        samples = int(min(whole, self._left)) if self._samples else whole
        self._left -= samples
        self._driven.step(max(samples, 1))

    def on_epoch_end(self, *_: Any, **of: Any) -> None:
        """End the training steps of an epoch."""
        self._driven.end_epoch()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **of: Any
    ) -> None:
        """Report the evaluation after an epoch; one within an epoch is ignored."""
        metrics = metrics or {}
        if not self._driven.report({**{name.removeprefix("eval_"): metrics[name] for name in metrics}, **metrics}):
            control.should_training_stop = True
