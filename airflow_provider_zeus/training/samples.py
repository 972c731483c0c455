"""How many samples a loader holds, and each of its batches."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import wraps
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from airflow_provider_zeus.errors import JobSpecError


def batch_size_of(loader: Any) -> int | None:
    """Batch size of a loader in this process, also where its sampler yields whole batches of indices.

    A sampler of Accelerate that splits batches gives each process a part of one.
    """
    parts: list[Any] = [loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    sizes: list[int] = [part.batch_size for part in parts if isinstance(getattr(part, "batch_size", None), int)]
    for part in parts if sizes else ():
        if getattr(part, "split_batches", False) is True:
            processes: int = getattr(part, "num_processes", None) or part.state.num_processes
            return sizes[0] // processes
    return sizes[0] if sizes else None


def samples_per_pass(loader: Any) -> float | None:
    """Samples of one pass over a torch loader; None for a stream and other loaders: their length is not known."""
    try:
        if loader.batch_size is None or not hasattr(loader.sampler, "__len__"):
            samples = len(loader.dataset)
        else:
            samples = len(loader.sampler)  # it may sample only a part of the data set
        return float(min(samples, len(loader) * (batch_size_of(loader) or samples)))
    except (TypeError, AttributeError):
        return None


def all_dropped(loader: Any) -> JobSpecError | None:
    """The error of a torch loader that gave no batch although it has samples; None where it has none, or is another."""
    batches = _batches_of(loader)
    if not getattr(batches, "drop_last", False):
        return None
    try:
        samples = len(getattr(batches, "sampler", loader.dataset))
        held = f"{samples} samples" if samples else ""
    except TypeError:  # a stream: look at its first sample
        held = ""
        with contextlib.suppress(Exception):
            held = "the samples" if any(True for _ in loader.dataset) else ""
    if not held:
        return None
    problem = f"batch size {batch_size_of(loader)} leaves no batch of {held}"
    return JobSpecError.of("drop_last", True, problem, "leave it out, or give the job smaller batch sizes")


def samples_held(loader: Any) -> int | None:
    """Samples of a pass of a torch loader in this process, with those that it drops; None where it does not know."""
    try:
        return len(getattr(_batches_of(loader), "sampler", loader.dataset))
    except (TypeError, AttributeError):
        return None


def _batches_of(loader: Any) -> Any:
    batches = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None) if batches is None else batches


class DrawListener:
    """Hears of the batches that torch's loaders give."""

    def drawn(self, iterator: Any, batch: Any, size: int | None, *, exact: bool, waited_s: float = 0.0) -> None:
        """A pass gave a batch of ``size`` samples, or of at most so many; None: torch does not know.

        :param waited_s: how long it was waited for.
        """
        raise NotImplementedError

    def exhausted(self, iterator: Any) -> None:
        """A pass has no more batches. The loader may have given its last ones in advance."""


class BatchCount(DrawListener):
    """Counts the samples of each batch of one pass.

    Where torch's own sampler makes the batches, their sizes follow from its own, however a batch looks; of
    another sampler torch's iterator counts them. With a stream, or a loader that is not torch's, a batch is looked
    into; one that does not show it counts as a whole one.

    :param whole: samples of a whole batch, where the loader does not know them.
    :param likely: the same, only to recognise a whole batch by.
    """

    def __init__(self, loader: Any, whole: int | None = None, *, likely: int | None = None) -> None:
        self._whole = batch_size_of(loader) or whole
        self._likely = self._whole or likely
        self._left: int | None = None  # to come in this pass; None: not known
        self._sizes = deque[int | None]()  # of batches that torch's iterator gave
        batches: Any = getattr(loader, "batch_sampler", None)
        self._batches: Any = getattr(loader, "sampler", None) if batches is None else batches
        if hasattr(loader, "split_batches"):  # Accelerate's that takes the batches of one process apart
            self._batches = None
        if type(self._batches) is not getattr(sys.modules.get("torch.utils.data"), "BatchSampler", None):
            if self._batches is not None:
                listen(self)
            return
        with contextlib.suppress(TypeError, NotImplementedError):  # of a stream
            self._left = len(self._batches.sampler)

    def __call__(self, batch: Any) -> int:
        """Samples of the pass's next batch; 0: not known."""
        known = self._sizes.popleft() if self._sizes else None
        if known is not None:
            return known
        if self._left is None or self._whole is None:
            return size_of(batch, self._whole, self._likely)
        samples = min(self._whole, self._left) or self._whole  # a sampler may yield more than its length
        self._left = max(self._left - samples, 0)
        return samples

    def drawn(self, iterator: Any, batch: Any, size: int | None, *, exact: bool, waited_s: float = 0.0) -> None:
        """Keep the size of a batch of this loader."""
        if iterator._index_sampler is self._batches:
            self._sizes.append(size if exact else None)


class DrawnBatches(DrawListener):
    """The batches of one pass that no step has used yet: of the first pass over a data set that begins from now on."""

    def __init__(self, dataset: Any, likely: int) -> None:
        self._dataset, self._likely = dataset, likely
        self._pass: Callable[[], Any] | None = None
        self._sizes = deque[int]()
        listen(self)

    def take(self, batches: int) -> int | None:
        """Samples of the next batches, fewer at the end of the pass; None where torch's iterator has none."""
        taken = [self._sizes.popleft() for _ in range(min(batches, len(self._sizes)))]
        return sum(taken) or None

    def drawn(self, iterator: Any, batch: Any, size: int | None, *, exact: bool, waited_s: float = 0.0) -> None:
        """Keep the size of a batch of this pass."""
        if self._pass is None and iterator._dataset is self._dataset:
            self._pass = ref(iterator)
        if self._pass is not None and self._pass() is iterator:
            self._sizes.append((size or 0) if exact else size_of(batch, size, self._likely))


def size_of(batch: Any, whole: int | None, likely: int | None) -> int:
    """Samples in one batch; 0: not known. A batch that does not tell is a whole one.

    :param whole: samples of a whole batch, where the loader knows them.
    :param likely: the same, only to recognise a whole batch by.
    """
    seen = samples_in(batch, whole or likely)
    return (whole or samples_in(batch, None) or 0) if seen is None else seen


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


def batches_again(batch: Any, shape: tuple[int, int]) -> bool:
    """Whether a batch seems to be made of batches: each of its tensors begins with this shape."""
    parts, tensors = [batch], 0
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            parts += part.values()
        elif isinstance(part, tuple | list):
            parts += part
        elif (own := getattr(part, "shape", None)) is not None:
            if tuple(own)[:2] != shape:
                return False
            tensors += 1
    return tensors > 0


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
    elif (shape := getattr(batch, "shape", None)) is not None:
        with contextlib.suppress(TypeError, ValueError, LookupError):  # a scalar; a shape that is not known
            lengths.add(int(shape[0]))


_listeners: WeakSet[Any] = WeakSet()
_sizes: WeakKeyDictionary[Any, dict[int, tuple[int, bool]]] = WeakKeyDictionary()
# iterator of a loader -> its batches under way, by torch's number: samples, and whether these are exact


def listen(listener: DrawListener) -> None:
    """Tell ``listener`` of each batch of torch's loaders while it is alive. Does nothing where torch is another."""
    with contextlib.suppress(Exception):
        kind = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        if not hasattr(kind.__next__, "__wrapped__"):
            kind._next_index, kind.__next__ = _sizing(kind._next_index), _telling(kind.__next__)
        _listeners.add(listener)


def _sizing(next_index: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's method that draws the indices of a batch: workers are given some of the later ones in advance."""

    @wraps(next_index)
    def sized(iterator: Any) -> Any:
        index = next_index(iterator)
        if not _listeners:
            return index
        with contextlib.suppress(Exception):  # nothing of this may fail a training
            held, number = _sizes.setdefault(iterator, {}), getattr(iterator, "_send_idx", 0)
            held.pop(number, None)
            if iterator._auto_collation or isinstance(index, list):
                held[number] = (len(index), index[0] is not None)  # of a stream only the most are known
        return index

    return sized


def _telling(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's method that gives the next batch."""

    @wraps(next_batch)
    def told(iterator: Any) -> Any:
        if not _listeners:
            return next_batch(iterator)
        asked_s = perf_counter()
        try:
            batch = next_batch(iterator)
        except StopIteration:
            with contextlib.suppress(Exception):
                for each in list(_listeners):
                    each.exhausted(iterator)
            raise
        waited_s = perf_counter() - asked_s
        with contextlib.suppress(Exception):
            size, exact = _sizes.get(iterator, {}).pop(getattr(iterator, "_rcvd_idx", 1) - 1, (None, False))
            for each in list(_listeners):
                each.drawn(iterator, batch, size, exact=exact, waited_s=waited_s)
        return batch

    return told


def ignore(listener: DrawListener) -> None:
    """Tell ``listener`` no more."""
    _listeners.discard(listener)
