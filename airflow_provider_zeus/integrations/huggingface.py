"""Zeus for the Hugging Face ``Trainer``: a ``TrainerCallback`` around a run handle."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import torch  # noqa: TID253  the trainer imports it anyway
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.integrations.driven import NO_END, DrivenRun, OwnEnd
from airflow_provider_zeus.training.drawn_batches import DrawnBatches
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.samples import batch_size_of, samples_per_pass


def arguments(
    run: ZeusRun, *, gradient_accumulation_steps: int = 1, gpus: int | None = None
) -> dict[str, Any]:
    """Keyword arguments of ``TrainingArguments``: batch size, epochs, evaluation after each epoch.

    For example, of an attempt with batch size 64, divided into forward passes of 16::

        TrainingArguments("out", **arguments(run, gradient_accumulation_steps=4))

    :param gradient_accumulation_steps: forward passes over which the batch of an optimizer step is
        divided.
    :param gpus: of this process; default: those that the trainer uses, all visible ones if one
        process trains.

    Raises JobSpecError if the batch size cannot be divided over them.
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
    """Counts optimizer steps, reports each epoch's evaluation, stops the trainer at the run's end.

    For example: ``Trainer(model, args, callbacks=[ZeusTrainerCallback(run)], ...)``.

    The job's target names a metric of the evaluation, with or without ``eval_``. If the arguments
    ask for none after any epoch (``eval_strategy="no"``) or after the last one, the callback does.
    An attempt that is given up leaves ``trainer.train()`` by ``AttemptOver``.

    :param run: the handle. Create a callback for each attempt, as model and trainer.
    """

    def __init__(self, run: ZeusRun) -> None:
        self._driven = DrivenRun(
            run,
            epochs="num_train_epochs",
            checkpoint="resume_from_checkpoint",
            gives="compute_metrics",
        )
        self._loader: Any = None
        # a Trainer fetches batches before it trains on them
        self._batches: DrawnBatches | None = None
        self._asks = False  # without a schedule nothing would report a metric
        self._awaited = False  # two evaluations of an epoch would cost twice
        self._evaluated = False
        # Kept and not copied: a trainer may add to its metrics after the event.
        self._metrics: dict[str, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Check the trainer's arguments and evaluation. Raises JobSpecError if they do not fit."""
        if args.auto_find_batch_size:
            problem = "it changes the batch size, which the run has chosen"
            raise JobSpecError.of("auto_find_batch_size", True, problem, "leave it out")
        whole = args.train_batch_size * args.gradient_accumulation_steps
        loader = of.get("train_dataloader")
        if loader is None:  # transformers 4.49 keeps it in the state
            loader = getattr(state, "train_dataloader", None)
        self._loader = loader
        # a trainer's own loader may have another one than its arguments
        own = batch_size_of(loader)
        if own is not None:
            whole = own * args.gradient_accumulation_steps
        has_data = not has_length(loader) or len(loader) > 0
        trainer = _calling_trainer()
        if has_data and trainer is not None:  # a run without data needs no metric
            if args.eval_strategy == "no":
                has_set = trainer.eval_dataset is not None
                self._asks = has_set or _evaluates_its_way(trainer)
            _check_evaluation(trainer, self._driven.metric)
        self._driven.begin(
            batch_size=whole,
            processes=args.world_size,
            end=_end_of(args, state, loader),
            samples=samples_per_pass(loader) if args.world_size == 1 else None,
            trained=state.epoch or 0.0,
        )
        self._stop_if_over(control)  # a checkpoint may be of a complete training

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Begin an epoch.

        If no evaluation of the epoch before had the metric, its last value counts again.
        """
        none_came = not (self._evaluated or self._awaited)
        self._report_last(control, expected=none_came and args.eval_strategy != "no")
        self._metrics = {}
        data = getattr(self._loader, "dataset", None)
        if data is not None:
            self._batches = DrawnBatches(data, args.train_batch_size)
        self._driven.begin_epoch()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Count an optimizer step: at the end of an epoch it may have fewer batches and samples."""
        samples = None
        if self._batches is not None:
            samples = self._batches.take(args.gradient_accumulation_steps)
        self._driven.step(samples)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """End the steps of an epoch; its report waits for the evaluation, if one follows."""
        driven = self._driven
        driven.end_epoch()
        self._awaited = control.should_evaluate
        if self._awaited or not driven.active:
            return
        self._take()
        if driven.fresh:
            self._report_last(control, expected=False)
            return
        # another callback's evaluation may have taken the place of the trainer's own
        self._awaited = self._is_to_evaluate(args, state, control)
        control.should_evaluate = self._awaited

    def _is_to_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> bool:
        """Whether the epoch that ends is evaluated: by the schedule, as the last one, or for us."""
        if args.eval_strategy == "no":
            return self._asks
        if args.eval_strategy == "epoch" and args.eval_delay <= (state.epoch or 0):
            return True
        return self._driven.in_last_epoch or control.should_training_stop

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **of: Any,
    ) -> None:
        """Take the metrics of an evaluation; those after an epoch are its report."""
        self._metrics = {} if metrics is None else metrics
        is_own = any(name.startswith("eval_") for name in self._metrics)
        if is_own:
            self._awaited = False
            self._evaluated |= self._driven.begun
        elif self._awaited:  # after another callback's the trainer would leave out its own
            control.should_evaluate = True
        self._take()
        self._stop_if_over(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **of: Any,
    ) -> None:
        """Take the metrics of an evaluation that is only logged, as many authors' trainers do."""
        logs = logs or {}
        metrics = {name: value for name, value in logs.items() if name.startswith("eval_")}
        if metrics:
            self.on_evaluate(args, state, control, metrics=metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Report the last epoch, if that is still due."""
        self._report_last(control, expected=False)

    def _take(self) -> None:
        metrics = {name.removeprefix("eval_"): value for name, value in self._metrics.items()}
        target = self._driven.metric
        if target in self._metrics:
            metrics[target] = self._metrics[target]
        self._driven.take(metrics)

    def _report_last(self, control: TrainerControl, *, expected: bool) -> None:
        self._take()
        if self._awaited:
            remedy = "Let the Trainer's own evaluate() hand its metrics to self.log()"
        else:
            remedy = (
                f"Let the Trainer's compute_metrics return {self._driven.metric!r} in an "
                "evaluation after each epoch "
                '(TrainingArguments(eval_strategy="epoch")), or name a metric that came in the '
                "job's target"
            )
        self._driven.report_last(expected=expected, remedy=remedy)
        self._stop_if_over(control)

    def _stop_if_over(self, control: TrainerControl) -> None:
        if self._driven.over:
            control.should_training_stop = True


def _end_of(args: TrainingArguments, state: TrainerState, loader: Any) -> OwnEnd:
    """The end by the trainer's own arguments."""
    if args.max_steps <= 0:
        return OwnEnd("num_train_epochs", args.num_train_epochs, args.num_train_epochs)
    if not has_length(loader):
        return NO_END
    # the batches left at the end of an epoch are a step, too
    steps = max(math.ceil(len(loader) / args.gradient_accumulation_steps), 1)
    epochs = min(args.max_steps / steps, state.num_train_epochs)
    return OwnEnd("max_steps", args.max_steps, epochs)


def _calling_trainer() -> Trainer | None:
    """The trainer that has called the callback. Trainers do not tell callbacks who they are."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    return None


def _check_evaluation(trainer: Trainer, target: str) -> None:
    """Raise JobSpecError if a trainer cannot evaluate, or not the target's metric.

    Nothing is known of an evaluation that is the author's own.
    """
    if _evaluates_its_way(trainer):
        return
    metric = target.removeprefix("eval_")
    data = trainer.eval_dataset
    sets = {"": data}  # several sets of data report under names of their own
    if isinstance(data, dict):
        sets = {f"{name}_": data[name] for name in data}
    callbacks = trainer.callback_handler.callbacks
    if not any(_may_evaluate(type(callback)) for callback in callbacks):
        _check_sets(sets, metric, target)
    # the Trainer gives these itself; all others come from compute_metrics
    figures = ("loss", "runtime", "samples_per_second", "steps_per_second")
    always = [prefix + figure for prefix in sets for figure in figures]
    if metric in always:
        return
    problem = f"the evaluation gives its loss and speed alone, and the target is on {target!r}"
    if trainer.args.prediction_loss_only:
        remedy = "leave it out, or name eval_loss in the job's target"
        raise JobSpecError.of("prediction_loss_only", True, problem, remedy)
    if trainer.compute_metrics is None:
        remedy = (
            f"give the Trainer a compute_metrics that returns {metric!r}, or name eval_loss in the "
            "job's target"
        )
        raise JobSpecError.of("compute_metrics", None, problem, remedy)


def _check_sets(sets: Mapping[str, Any], metric: str, target: str) -> None:
    """Raise JobSpecError if there is no data set, none with the target's metric, or no sample."""
    # identity: a data set may define its own comparison
    if sets.get("", metric) is None:
        problem = f"nothing would evaluate the target's {target!r}"
        remedy = (
            'set TrainingArguments(eval_strategy="epoch"), and give the Trainer an eval_dataset'
        )
        raise JobSpecError.of("eval_dataset", None, problem, remedy)
    if not metric.startswith(tuple(sets)):
        problem = f"the metrics of each set begin with its name, and the target is on {target!r}"
        names = " or ".join(prefix + metric for prefix in sets)
        remedy = f"name {names} in the job's target"
        raise JobSpecError.of("eval_dataset", [prefix[:-1] for prefix in sets], problem, remedy)
    if all(has_length(data) and not len(data) for data in sets.values()):
        problem = "no metric comes of it"
        raise JobSpecError.of("eval_dataset", "no sample", problem, "give it samples to evaluate")


def _evaluates_its_way(trainer: Trainer) -> bool:
    """Whether the trainer's class has an evaluation of the author's."""
    methods = ("evaluate", "evaluation_loop", "get_eval_dataloader")
    return not all(_is_theirs(getattr(type(trainer), name)) for name in methods)


def _is_theirs(part: Any) -> bool:
    return str(part.__module__).partition(".")[0] == "transformers"


def _may_evaluate(callback: type) -> bool:
    """Whether a callback of the author's names ``evaluate``: of a dataset of its own, maybe."""
    others = set(callback.__mro__) - {ZeusTrainerCallback}
    authors = [kind for kind in others if not _is_theirs(kind)]
    parts = [part for kind in authors for part in vars(kind).values()]
    return any(_names_evaluate(getattr(part, "__code__", None)) for part in parts)


def _names_evaluate(code: Any) -> bool:
    if not isinstance(code, CodeType):
        return False
    return "evaluate" in code.co_names or any(map(_names_evaluate, code.co_consts))
