"""Usual mistakes of a training that its own run shows, each with its remedy: pure functions of what a run has seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import TELL_STEPS
from airflow_provider_zeus.training.attempt_checks import is_close


class Mistake(NamedTuple):
    """What is wrong, and what to do."""

    what: str
    remedy: str


class GoesOn(StrEnum):
    """How an epoch goes on after its report, before the next one is asked for."""

    STEP = "step"  # of the same pass over the data
    AGAIN = "again"  # over the data
    REPORT = "report"  # of the same metric


def of_steps(told: int, optimizer_steps: int, epochs: int) -> Mistake | None:
    """Steps that nothing counts.

    :param told: steps that were counted.
    :param optimizer_steps: of torch; 0 without it.
    :param epochs: that were reported.
    """
    if told:
        return None
    if optimizer_steps:
        return Mistake(f"torch made {optimizer_steps} optimizer steps, none counted, of unknown size", TELL_STEPS)
    if epochs:
        return Mistake("an epoch was reported, and no step was counted", TELL_STEPS)
    return None


def of_batch_size(planned: int, drawn: Collection[int]) -> Mistake | None:
    """A loader of another size than the chosen one.

    :param drawn: samples that whole batches of the training have, as drawn for each optimizer step.
    """
    if not drawn or any(is_close(size, planned) for size in drawn):
        return None
    return Mistake(
        f"{max(drawn)} samples are drawn for each optimizer step, and not the {planned} that was asked for",
        "build the loader by run.data_loader(data), or with run.batch_size; if gradients are accumulated, the parts "
        "must add up to it",
    )


def of_metric(target: Target, first: float) -> Mistake | None:
    """The target's direction or unit, or a target that the first report reaches.

    :param first: the metric that the first epoch reported.
    """
    doubt = target.doubt(first)
    if doubt is not None:
        return Mistake(*doubt)
    if target.value is None or not target.reached(first):
        return None
    remedy = "if that is not meant, set a target that only a trained model reaches"
    if target.other_way:
        remedy += f'; or is "{target.other_way}" meant'
    return Mistake(f"{target.metric} {first:g} reaches the target ({target} {target.value:g}) at once", remedy)


def of_names(target: Target, reported: Iterable[str]) -> Mistake | None:
    """Reports without the target's metric.

    :param reported: names of the metrics that came.
    """
    names = sorted(reported)
    if not names or target.metric in names:
        return None
    return Mistake(
        f"{', '.join(names)} came, and the target is on {target.metric}",
        f"call run.report({target.metric}=value) at the end of each epoch in run.epochs(); or name "
        f"{' or '.join(names[:3])} in the job's target, if that is what is meant",
    )


def of_model(older: int) -> Mistake | None:
    """A model that an earlier attempt has trained.

    :param older: parameters that had their weights before the function was called.
    """
    if not older:
        return None
    return Mistake(
        f"{older} of the weights that it trains were there before the function was called: a second attempt goes on "
        "from the first one's",
        "build model and optimizer inside the function, and keep them in no cache, global variable or class",
    )


def of_own_loop(asked: bool, epochs: int) -> Mistake | None:
    """A loop of its own in place of ``run.epochs()``.

    :param asked: whether an epoch was asked for by ``run.epochs()``.
    :param epochs: that were reported.
    """
    if asked or not epochs:
        return None
    return Mistake(
        "it reports epochs of a loop of its own: Zeus can neither end it at the target nor count its epochs",
        "write `for epoch in run.epochs():` in place of that loop, such as range(...)",
    )


def of_epoch(metric: str, goes_on: GoesOn) -> Mistake:
    """An epoch that goes on after its report. ``metric``: the target's."""
    if goes_on is GoesOn.STEP:
        return Mistake(
            "it trains on with the same pass over the data after its report, before the next epoch is asked for",
            f"call run.report({metric}=value) once, after the loop over the batches and not within it",
        )
    if goes_on is GoesOn.AGAIN:
        return Mistake(
            "another pass over the data follows its report, before the next epoch is asked for",
            "leave out the loop within `for epoch in run.epochs():`, which repeats the pass by itself",
        )
    return Mistake(
        "it reports the same metric twice in one epoch",
        f"call run.report({metric}=value) once in each epoch, with all metrics; give others names of their own",
    )


def of_end(epochs: int, most: int, reached: bool) -> Mistake | None:
    """A loop that is left after its first epoch.

    :param most: the job's ``max_epochs``.
    :param reached: whether the target was.
    """
    if epochs != 1 or most == 1 or reached:
        return None
    return Mistake(
        "it left the loop over run.epochs() after its first epoch, below the target",
        "if `return` is inside the loop, write it after the loop, which ends by itself",
    )


def of_validation(unlearned: int) -> Mistake | None:
    """Validation data that count as training.

    :param unlearned: steps counted in passes of ``run.data_loader()`` in which torch made no optimizer step.
    """
    if not unlearned:
        return None
    return Mistake(
        f"in {unlearned} counted steps of run.data_loader() torch made no optimizer step: validation counts as "
        "training",
        "give it the training data alone, and the validation data to a DataLoader of their own",
    )


def of_dropped(batch_sizes: Iterable[int], planned: int, samples: int, loader_size: int) -> Mistake | None:
    """Batch sizes of the job that leave no batch of the data, with a loader that drops its last one.

    :param planned: the chosen batch size. A loader of a smaller one accumulates gradients.
    :param samples: of the data.
    """
    if loader_size > planned:
        return None
    too_large = [size for size in sorted(batch_sizes) if size * loader_size > samples * planned]
    if not too_large:
        return None
    return Mistake(
        f"with drop_last its {samples} samples leave no batch of {', '.join(map(str, too_large))}",
        "leave drop_last out, or take these out of the job's batch_sizes",
    )
