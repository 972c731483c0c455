"""Zeus for the Hugging Face ``Trainer``: a ``TrainerCallback`` around a run handle."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch  # noqa: TID253  the trainer imports it anyway
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.integrations.driven import DrivenRun
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.samples import DrawnBatches, batch_size_of, samples_per_pass


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

    The job's target names a metric of the evaluation, with or without ``eval_``. Where the arguments ask for none after
    any epoch (``eval_strategy="no"``) or after the last one, the callback does. An attempt that is given up leaves
    ``trainer.train()`` by ``AttemptOver``.

    :param run: the handle. Create a callback for each attempt, as model and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        names = {"epochs": "num_train_epochs", "checkpoint": "resume_from_checkpoint", "gives": "compute_metrics"}
        self._driven = DrivenRun(run, **names)
        self._loader: Any = None
        self._batches: DrawnBatches | None = None  # of the present epoch
        self._training = False
        self._asks = False  # the trainer has data to evaluate with, and no schedule for it
        self._awaited = self._evaluated = False  # the trainer's own evaluation: follows now, has come once
        self._metrics: dict[str, Any] = {}  # of the newest evaluation; a trainer may add to them after the event

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Check the trainer's arguments, and what its evaluation gives. Raises JobSpecError where they do not fit."""
        whole = args.train_batch_size * args.gradient_accumulation_steps
        if self._training and args.auto_find_batch_size:  # the trainer begins again with a smaller one
            raise MemoryError(f"batch size {whole} is out of memory; the run chooses the next one, and not the trainer")
        loader = of.get("train_dataloader")
        if loader is None:  # transformers 4.49 keeps it in the state
            loader = getattr(state, "train_dataloader", None)
        self._training, self._loader = True, loader
        own = batch_size_of(loader)  # a trainer's own loader may have another one than its arguments
        steps = max(len(loader) // args.gradient_accumulation_steps, 1) if has_length(loader) else None
        end: tuple[str, object, float] | None = "num_train_epochs", args.num_train_epochs, args.num_train_epochs
        if args.max_steps > 0:
            end = ("max_steps", args.max_steps, min(args.max_steps / steps, state.num_train_epochs)) if steps else None
        trained = state.epoch if state.global_step and state.epoch else 0.0
        empty = has_length(loader) and not len(loader)  # then the run has no data, and needs no metric
        if not empty and (trainer := _calling_trainer()) is not None:
            self._asks = args.eval_strategy == "no" and (
                trainer.eval_dataset is not None or _evaluates_its_way(trainer)
            )
            _check_evaluation(trainer, self._driven.metric)
        self._driven.begin(
            batch_size=whole if own is None else own * args.gradient_accumulation_steps,
            processes=args.world_size,
            end=end,
            samples=samples_per_pass(loader) if args.world_size == 1 else None,
            trained=trained,
        )
        control.should_training_stop = control.should_training_stop or self._driven.over  # its checkpoint is complete

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Begin an epoch. Where no evaluation of the epoch before had the metric, its last value counts again."""
        self._report_last(control, expected=args.eval_strategy != "no" and not (self._evaluated or self._awaited))
        self._metrics = {}
        if (data := getattr(self._loader, "dataset", None)) is not None:
            self._batches = DrawnBatches(data, args.train_batch_size)
        self._driven.begin_epoch()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Count an optimizer step; the last one of an epoch may have fewer batches, its last batch fewer samples."""
        batches = self._batches
        self._driven.step(None if batches is None else batches.take(args.gradient_accumulation_steps))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """End the training steps of an epoch. Its report waits for the evaluation that follows, if one does."""
        driven = self._driven
        driven.end_epoch()
        self._awaited = control.should_evaluate
        if driven.active and not self._awaited:
            self._take()
            if driven.fresh:
                self._report_last(control, expected=False)
            else:  # another callback's evaluation may have taken the place of the trainer's own
                due = args.eval_strategy == "epoch" and args.eval_delay <= (state.epoch or 0)
                last = args.eval_strategy != "no" and (driven.in_last_epoch or control.should_training_stop)
                self._awaited = control.should_evaluate = due or last or self._asks

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **of: Any
    ) -> None:
        """Take the metrics of an evaluation; those after an epoch are its report."""
        self._metrics = {} if metrics is None else metrics
        own = any(name.startswith("eval_") for name in self._metrics)
        self._evaluated = self._evaluated or (own and self._driven.begun)
        if self._awaited and not own:  # another callback's: after it the trainer would leave out its own
            control.should_evaluate = True
        self._awaited = self._awaited and not own
        self._take()
        control.should_training_stop = control.should_training_stop or self._driven.over

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **of: Any
    ) -> None:
        """Take the metrics of an evaluation that is only logged, as that of many trainers of the author's own."""
        if metrics := {name: value for name, value in (logs or {}).items() if name.startswith("eval_")}:
            self.on_evaluate(args, state, control, metrics=metrics)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Report the last epoch, if that is still due."""
        self._training = False
        self._report_last(control, expected=False)

    def _take(self) -> None:
        found = {name.removeprefix("eval_"): value for name, value in self._metrics.items()}
        if (target := self._driven.metric) in self._metrics:
            found[target] = self._metrics[target]
        self._driven.take(found)

    def _report_last(self, control: TrainerControl, *, expected: bool) -> None:
        self._take()
        remedy = (
            "Let the Trainer's own evaluate() hand its metrics to self.log()"
            if self._awaited
            else (
                f"Let the Trainer's compute_metrics return {self._driven.metric!r} in an evaluation after each epoch "
                '(TrainingArguments(eval_strategy="epoch")), or name a metric that came in the job\'s target'
            )
        )
        self._driven.report_last(expected=expected, remedy=remedy)
        control.should_training_stop = control.should_training_stop or self._driven.over


def _calling_trainer() -> Trainer | None:
    """The trainer that has called the callback: no callback gets its trainer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), Trainer):
            return caller
        frame = frame.f_back
    return None


def _check_evaluation(trainer: Trainer, target: str) -> None:
    """Raise JobSpecError where a trainer cannot evaluate, or not the target's metric.

    Nothing is known of an evaluation that is the author's own.
    """
    args, data, name = trainer.args, trainer.eval_dataset, target.removeprefix("eval_")
    if _evaluates_its_way(trainer):
        return
    sets = [f"{each}_" for each in data] if isinstance(data, dict) else [""]
    if not any(_may_evaluate(type(callback)) for callback in trainer.callback_handler.callbacks):
        if data is None:
            remedy = 'set TrainingArguments(eval_strategy="epoch"), and give the Trainer an eval_dataset'
            raise JobSpecError.of("eval_dataset", None, f"nothing would evaluate the target's {target!r}", remedy)
        if not name.startswith(tuple(sets)):
            problem = f"the metrics of each set begin with its name, and the target is on {target!r}"
            remedy = f"name {' or '.join(f'{each}{name}' for each in sets)} in the job's target"
            raise JobSpecError.of("eval_dataset", [each[:-1] for each in sets], problem, remedy)
        held = list(data.values()) if isinstance(data, dict) else [data]
        if not any(not has_length(each) or len(each) for each in held):
            raise JobSpecError.of("eval_dataset", "no sample", "no metric comes of it", "give it samples to evaluate")
    always = ("loss", "runtime", "samples_per_second", "steps_per_second")
    if name in [f"{each}{metric}" for each in sets for metric in always]:
        return
    problem = f"the evaluation gives no metric but the loss then, and the target is on {target!r}"
    if args.prediction_loss_only:
        raise JobSpecError.of(
            "prediction_loss_only", True, problem, "leave it out, or name eval_loss in the job's target"
        )
    if trainer.compute_metrics is None:
        remedy = f"give the Trainer a compute_metrics that returns {name!r}, or name eval_loss in the job's target"
        raise JobSpecError.of("compute_metrics", None, problem, remedy)


def _evaluates_its_way(trainer: Trainer) -> bool:
    """Whether the trainer's class has an evaluation of the author's."""
    methods = ("evaluate", "evaluation_loop", "get_eval_dataloader")
    return not all(_is_theirs(getattr(type(trainer), name)) for name in methods)


def _is_theirs(part: Any) -> bool:
    return str(part.__module__).partition(".")[0] == "transformers"


def _may_evaluate(callback: type) -> bool:
    """Whether a callback of the author's names ``evaluate``: of a dataset of its own, maybe."""
    kinds = [kind for kind in callback.__mro__ if kind not in (object, ZeusTrainerCallback) and not _is_theirs(kind)]
    codes = [part.__code__ for kind in kinds for part in vars(kind).values() if hasattr(part, "__code__")]
    return any(_names_evaluate(code) for code in codes)


def _names_evaluate(code: CodeType) -> bool:
    return "evaluate" in code.co_names or any(isinstance(c, CodeType) and _names_evaluate(c) for c in code.co_consts)
