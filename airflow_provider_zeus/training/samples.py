"""How many samples a torch loader holds, and each of its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_zeus.errors import JobSpecError


def batch_size_of(loader: Any) -> int | None:
    """Batch size of a torch loader, also where its sampler yields whole batches of indices."""
    for part in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        size = getattr(part, "batch_size", None)
        if isinstance(size, int):
            return size
    return None


def samples_per_pass(loader: Any) -> float | None:
    """Samples of one pass over a torch loader; None for an iterable data set, whose length is unknown."""
    try:
        if loader.batch_size is None or not hasattr(loader.sampler, "__len__"):
            samples = len(loader.dataset)
        else:
            samples = len(loader.sampler)  # it may sample only a part of the data set
        return float(min(samples, len(loader) * (batch_size_of(loader) or samples)))
    except TypeError:
        return None


def all_dropped(loader: Any) -> JobSpecError | None:
    """The error of a torch loader that gave no batch although it has samples; None where it has none."""
    batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if not getattr(batches, "drop_last", False):
        return None
    try:
        samples = len(getattr(batches, "sampler", loader.dataset))
        held = f"{samples} samples" if samples else ""
    except TypeError:  # a stream: its first sample tells
        held = ""
        with contextlib.suppress(Exception):
            held = "the samples" if any(True for _ in loader.dataset) else ""
    if not held:
        return None
    problem = f"batch size {batch_size_of(loader)} leaves no batch of {held}"
    return JobSpecError.of("drop_last", True, problem, "leave it out, or give the job smaller batch sizes")


class BatchCount:
    """Counts the samples of each batch of one pass.

    Where torch's own sampler makes the batches, their sizes follow from its own, whatever a batch looks like. With a
    stream or another sampler a batch is looked into; one that does not tell counts as a whole one.

    :param whole: samples of a whole batch, where the loader does not know them.
    """

    def __init__(self, loader: Any, whole: int | None = None) -> None:
        self._whole = batch_size_of(loader) or whole
        self._left: int | None = None  # to come in this pass; None: not known
        from torch.utils.data import BatchSampler

        batches = getattr(loader, "batch_sampler", None)
        batches = getattr(loader, "sampler", None) if batches is None else batches
        with contextlib.suppress(TypeError, NotImplementedError):  # of a stream
            if type(batches) is BatchSampler:
                self._left = len(batches.sampler)  # type: ignore[arg-type]

    def __call__(self, batch: Any) -> int:
        """Samples of the pass's next batch; 0: not known."""
        if self._left is None or self._whole is None:
            seen = samples_in(batch, self._whole)
            return (self._whole or 0) if seen is None else seen
        samples = min(self._whole, self._left) or self._whole  # a sampler may yield more than its length
        self._left = max(self._left - samples, 0)
        return samples


def samples_in(batch: Any, whole: int | None) -> int | None:
    """Samples in one batch, as far as the lengths in it tell; None where they do not.

    :param whole: samples of a whole batch. One of these lengths shows it, or they all agree on another number.
    """
    lengths, lists = set[int](), set[int]()
    _look(batch, lengths, lists)
    if whole is not None and whole in lengths | lists:
        return whole
    samples = lengths.pop() if len(lengths) == 1 else None
    return None if samples is None or (whole is not None and samples > whole) else samples


def _look(batch: Any, lengths: set[int], lists: set[int]) -> None:
    """Add the first dimensions of the tensors in a batch to ``lengths``, the lengths of other lists to ``lists``."""
    if isinstance(batch, Mapping):
        for part in batch.values():
            _look(part, lengths, lists)
    elif isinstance(batch, tuple | list):
        nested = any(hasattr(part, "__len__") and not isinstance(part, str | bytes) for part in batch[:8])
        (lists if nested else lengths).add(len(batch))
        for part in batch if nested else ():
            _look(part, lengths, lists)
    elif isinstance(shape := getattr(batch, "shape", None), tuple) and shape:
        lengths.add(shape[0])
