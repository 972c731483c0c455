"""What the tests of the Hugging Face callback train: imported by them alone, for transformers takes seconds."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from airflow_provider_zeus.integrations.huggingface import ZeusTrainerCallback, arguments
from airflow_provider_zeus.training.run import ZeusRun

SAMPLES = 36
TINY = BertConfig(
    vocab_size=32,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=8,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count: int = SAMPLES) -> None:
        self._words = torch.randint(0, 32, (count, 8))

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._words[index], "labels": int(self._words[index, 0] > 15)}


class Counting(TrainerCallback):
    """Counts what the trainer did, beside ours."""

    def __init__(self) -> None:
        self.steps = self.begun = self.evaluations = 0

    def on_step_end(self, *_: Any, **of: Any) -> None:
        self.steps += 1

    def on_epoch_begin(self, *_: Any, **of: Any) -> None:
        self.begun += 1

    def on_evaluate(self, *_: Any, **of: Any) -> None:
        self.evaluations += 1


class Broken(Exception):
    """An error of the author's."""


class Failing(TrainerCallback):
    """Fails after the first step."""

    def on_step_end(self, *_: Any, **of: Any) -> None:
        raise Broken


class LoaderInState(ZeusTrainerCallback):
    """As transformers 4.49 calls it: the loader is no argument, but in the trainer's state."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        state.train_dataloader = of["train_dataloader"]
        super().on_train_begin(args, state, control, **of | {"train_dataloader": None})


class Evaluating(TrainerCallback):
    """Evaluates after each epoch by itself, as a widespread recipe does."""

    trainer: Trainer

    def __init__(self, prefix: str, *, data: Any = None, copies: bool = False) -> None:
        self.prefix = prefix
        self.data = data
        self.copies = copies

    def on_epoch_end(self, args: Any, state: Any, control: Any, **of: Any) -> Any:
        before = copy.deepcopy(control)
        self.trainer.evaluate(self.data, metric_key_prefix=self.prefix)
        return before if self.copies else control


class AddsLater(Trainer):
    """Adds a metric to those of an evaluation after its event."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        found = super().evaluate(*args, **kwargs)
        found["eval_late"] = found["eval_acc"]
        return found


class Logs(Trainer):
    """Evaluates in a way of its own, and logs it."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        found = {"eval_own": 0.9 if self.state.epoch >= 3 else 0.5}
        self.log(found)
        return found


class Keeps(Trainer):
    """Evaluates in a way of its own, and tells nobody."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return {"eval_own": 0.9}


class Fixed(Trainer):
    """Has a loader of its own, of another batch size than its arguments."""

    own: dict[str, Any] = {"batch_size": 8}  # noqa: RUF012

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            self.train_dataset, collate_fn=self.data_collator, **self.own
        )


class Buckets(Fixed):
    """Has batches of any size."""

    own: dict[str, Any] = {"batch_sampler": [range(7), range(7, 30), range(30, 36)]}  # noqa: RUF012


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([Sentences()[i] for i in range(SAMPLES)])


class Training:
    """A training function; reaches its target in the given epoch.

    :param parts: batches whose gradients one step adds up.
    :param trainer: arguments of the trainer.
    :param before: callbacks before ours.
    :param others: callbacks after it.
    """

    def __init__(
        self,
        tmp: Path,
        epochs: int = 3,
        *,
        kind: type[Trainer] = Trainer,
        parts: int = 1,
        trainer: dict[str, Any] | None = None,
        before: Sequence[TrainerCallback] = (),
        others: Sequence[TrainerCallback] = (),
        resume: Path | None = None,
        **changes: Any,
    ) -> None:
        self.tmp = tmp
        self.epochs = epochs
        self.changes = changes
        self.kind = kind
        self.parts = parts
        self.trainer = trainer or {}
        self.before = before
        self.others = others
        self.resume = resume
        self.counts: list[Counting] = []
        self.callback = ZeusTrainerCallback

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has made a step."""
        return any(count.steps for count in self.counts)

    def __call__(self, run: ZeusRun) -> int:
        count = Counting()
        self.counts.append(count)
        settings = {
            "output_dir": str(self.tmp / "out"),
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **arguments(run, gradient_accumulation_steps=self.parts),
            **self.changes,
        }
        data = {
            "train_dataset": Sentences(),
            "eval_dataset": Sentences(10),
            "compute_metrics": lambda _: {"acc": 0.9 if count.begun >= self.epochs else 0.5},
            **self.trainer,
        }
        trainer = self.kind(
            model=BertForSequenceClassification(TINY),
            args=TrainingArguments(**settings),
            callbacks=[*self.before, self.callback(run), count, *self.others],
            **data,
        )
        for callback in (*self.before, *self.others):
            callback.trainer = trainer
        trainer.train(resume_from_checkpoint=str(self.resume) if self.resume else None)
        return run.batch_size


# What the contract of all frameworks asks for (``test_contract.py``).
STEPS = 3  # of one epoch at batch size 16
EVERY_SECOND_EPOCH: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 6}


def stops_early(tmp: Path) -> Training:
    """A training that ends once two epochs are no better than the best before."""
    best = {
        "metric_for_best_model": "acc",
        "load_best_model_at_end": True,
        "save_strategy": "epoch",
    }
    return Training(tmp, epochs=99, others=[EarlyStoppingCallback(2)], **best)


def saves(tmp: Path, every: int) -> Training:
    """A training that never reaches its target and keeps a checkpoint after each ``every`` steps."""
    return Training(tmp, epochs=99, save_strategy="steps", save_steps=every)


def resumes(tmp: Path, step: int) -> Training:
    """A training that goes on from the checkpoint of a step, and reaches its target in the trainer's third epoch."""
    return Training(tmp, 3 - step // STEPS, resume=tmp / "out" / f"checkpoint-{step}")


def without_callback(run: ZeusRun, tmp: Path) -> None:
    """One epoch of a trainer that knows nothing of the run, at another batch size."""
    settings = {
        "output_dir": str(tmp),
        "save_strategy": "no",
        "disable_tqdm": True,
        "per_device_train_batch_size": 64,
        "num_train_epochs": 1,
        "report_to": [],
        "use_cpu": True,
    }
    model = BertForSequenceClassification(TINY)
    Trainer(model=model, args=TrainingArguments(**settings), train_dataset=Sentences(640)).train()
