"""What the tests of the Hugging Face callback train: imported by them alone, for transformers takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

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
        self.steps = self.epochs = self.evaluations = 0

    def on_step_end(self, *_: Any, **of: Any) -> None:
        self.steps += 1

    def on_epoch_begin(self, *_: Any, **of: Any) -> None:
        self.epochs += 1

    def on_evaluate(self, *_: Any, **of: Any) -> None:
        self.evaluations += 1


class LoaderInState(ZeusTrainerCallback):
    """As transformers 4.49 calls it: the loader is no argument, but in the trainer's state."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        state.train_dataloader = of["train_dataloader"]
        super().on_train_begin(args, state, control, **of | {"train_dataloader": None})


class Training:
    """A training function; reaches its target in the given epoch."""

    def __init__(self, tmp: Path, epochs: int = 3, **changes: Any) -> None:
        self.tmp, self.epochs, self.changes = tmp, epochs, changes
        self.counts: list[Counting] = []
        self.said: dict[str, Any] = {"gradient_accumulation_steps": 1}
        self.callback = ZeusTrainerCallback

    def __call__(self, run: ZeusRun) -> Any:
        count = Counting()
        self.counts.append(count)
        found = {
            "output_dir": str(self.tmp / "out"),
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **arguments(run, **self.said),
            **self.changes,
        }
        trainer = Trainer(
            model=BertForSequenceClassification(TINY),
            args=TrainingArguments(**found),
            train_dataset=Sentences(),
            eval_dataset=Sentences(10),
            compute_metrics=lambda _: {"acc": 0.9 if count.evaluations + 1 >= self.epochs else 0.5},
            callbacks=[self.callback(run), count],
        )
        trainer.train()
        return type(trainer.model).__name__, run.batch_size
