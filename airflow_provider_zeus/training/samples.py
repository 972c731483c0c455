"""How many samples a loader holds, and each of its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.units import counted


def batch_size_of(loader: Any) -> int | None:
    """Batch size of a loader in this process, also if its sampler yields whole batches of indices.

    A sampler of Accelerate that splits batches gives each process a part of one.
    """
    parts = [loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    sizes = [getattr(part, "batch_size", None) for part in parts]
    size: int | None = next((size for size in sizes if isinstance(size, int)), None)
    if size is None:
        return None
    for part in parts:
        if getattr(part, "split_batches", False) is True:
            processes: int = getattr(part, "num_processes", None) or part.state.num_processes
            return size // processes
    return size


def samples_per_pass(loader: Any) -> float | None:
    """Samples of one pass over a torch loader; None for a stream and other loaders: their length is
    not known.
    """
    try:
        if loader.batch_size is None or not hasattr(loader.sampler, "__len__"):
            samples = len(loader.dataset)
        else:
            samples = len(loader.sampler)  # not of the data set: it may sample only a part of it
        # With drop_last the batches hold fewer samples, without it the last one is not full.
        return float(min(samples, len(loader) * (batch_size_of(loader) or samples)))
    except (TypeError, AttributeError):
        return None


def all_dropped(loader: Any) -> JobSpecError | None:
    """The error of a torch loader that gave no batch although it has samples; None if it has none,
    or is another.
    """
    if not getattr(batches_of(loader), "drop_last", False):
        return None
    dropped = ""
    samples = samples_held(loader)
    if samples:
        dropped = counted(samples, "sample")
    elif samples is None:  # a stream has no length: only a first sample shows that it has some
        with contextlib.suppress(Exception):
            if any(True for _ in loader.dataset):
                dropped = "the samples"
    if not dropped:
        return None
    problem = f"batch size {batch_size_of(loader)} leaves no batch of {dropped}"
    return JobSpecError.of(
        "drop_last", True, problem, "leave it out, or give the job smaller batch sizes"
    )


def samples_held(loader: Any) -> int | None:
    """Samples of a pass of a torch loader in this process, with those that it drops; None if it
    does not know.
    """
    try:
        return len(getattr(batches_of(loader), "sampler", loader.dataset))
    except (TypeError, AttributeError):
        return None


def batches_of(loader: Any) -> Any:
    """The sampler of the batches of indices of a torch loader; None: it has no such part."""
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:
        return getattr(loader, "sampler", None)
    return batches


def size_of(batch: Any, whole: int | None, likely: int | None) -> int:
    """Samples in one batch; 0: not known. A batch that does not tell is a whole one.

    :param whole: samples of a whole batch, if the loader knows them.
    :param likely: the same, only to recognise a whole batch by.
    """
    samples = samples_in(batch, whole or likely)
    if samples is not None:
        return samples
    if whole:
        return whole
    return samples_in(batch, None) or 0


def samples_in(batch: Any, whole: int | None) -> int | None:
    """Samples in one batch, as far as the lengths in it tell; None if they do not.

    :param whole: samples of a whole batch. One of these lengths shows it, or they all agree on
        another number.
    """
    lengths = set[int]()
    lists = set[int]()
    for part in _parts(batch):
        if _is_nested(part):
            lists.add(len(part))
        elif isinstance(part, tuple | list):
            lengths.add(len(part))
        elif getattr(part, "shape", None) is not None:
            # A scalar has no first dimension, and a tensor of a graph may not know its own.
            with contextlib.suppress(TypeError, ValueError, LookupError):
                lengths.add(int(part.shape[0]))
    if whole in lengths | lists:
        return whole
    if len(lengths) != 1:
        return None
    samples = lengths.pop()
    if whole is not None and samples > whole:
        return None
    return samples


def batches_again(batch: Any, shape: tuple[int, int]) -> bool:
    """Whether a batch seems to be made of batches: each of its tensors begins with this shape."""
    shapes = [getattr(part, "shape", None) for part in _parts(batch)]
    begins = {tuple(tensor)[:2] for tensor in shapes if tensor is not None}
    return begins == {shape}


def _parts(batch: Any) -> Iterator[Any]:
    """The tensors and lists in a batch, however deep in its dicts and lists."""
    if isinstance(batch, Mapping):
        for part in batch.values():
            yield from _parts(part)
        return
    yield batch
    if _is_nested(batch):
        for part in batch:
            yield from _parts(part)


def _is_nested(part: Any) -> bool:
    """Whether a part of a batch is a list of others, and not one of numbers or texts."""
    if not isinstance(part, tuple | list):
        return False
    texts = (str, bytes)
    # The first ones tell: a list of a million numbers is not walked for each batch.
    return any(hasattr(one, "__len__") and not isinstance(one, texts) for one in part[:8])
