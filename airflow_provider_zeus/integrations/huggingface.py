"""Hugging Face ``Trainer`` within the Zeus loop: a ``TrainerCallback`` over a run handle."""

from __future__ import annotations

from typing import Any

import torch  # noqa: TID253  its trainer's own
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.integrations.driven import DrivenRun
from airflow_provider_zeus.training.loader import samples_per_pass
from airflow_provider_zeus.training.run import ZeusRun


def arguments(run: ZeusRun, *, gradient_accumulation_steps: int = 1, gpus: int | None = None) -> dict[str, Any]:
    """What of ``TrainingArguments`` follows from the run: batch size, epochs, an evaluation after each of them.

    :param gradient_accumulation_steps: over which an optimizer step's batch is spread.
    :param gpus: of this process; default: those that the trainer takes, all that torch sees where it trains alone.

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
    """Tells the run of each optimizer step and of each epoch's evaluation, and stops the trainer where the run ends.

    The job's target names a metric of the evaluation, with or without ``eval_``. An attempt that is given up leaves
    ``trainer.train()`` by ``AttemptOver``.

    :param run: the handle; one callback for each attempt, as model and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        self._driven = DrivenRun(run)
        self._samples: float | None = None  # of one epoch, where this process trains alone
        self._left = 0.0  # of them, not yet trained

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """The trainer has set everything up. Raises JobSpecError where its arguments do not fit the run."""
        loader = of.get("train_dataloader")
        if loader is None:  # transformers 4.49 has it elsewhere
            loader = getattr(state, "train_dataloader", None)
        self._samples = samples_per_pass(loader) if loader is not None and args.world_size == 1 else None
        self._driven.begin(
            batch_size=args.train_batch_size * args.gradient_accumulation_steps,
            processes=args.world_size,
            epochs=state.num_train_epochs,
            samples=self._samples,
        )

    def on_epoch_begin(self, *_: Any, **of: Any) -> None:
        """An epoch begins."""
        self._left = self._samples or 0.0
        self._driven.begin_epoch()

    def on_step_end(self, args: TrainingArguments, *_: Any, **of: Any) -> None:
        """An optimizer step was made; the last of an epoch may be a short one."""
        whole = args.train_batch_size * args.gradient_accumulation_steps
        samples = int(min(whole, self._left)) if self._samples else whole
        self._left -= samples
        self._driven.step(max(samples, 1))

    def on_epoch_end(self, *_: Any, **of: Any) -> None:
        """The training steps of an epoch are over."""
        self._driven.end_epoch()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **of: Any
    ) -> None:
        """The evaluation after an epoch; one in the midst of it is left out."""
        metrics = metrics or {}
        if not self._driven.report({**{name.removeprefix("eval_"): metrics[name] for name in metrics}, **metrics}):
            control.should_training_stop = True
