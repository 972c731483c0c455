"""The one place that hears of the batches of torch's loaders, for all who ask. Torch is never
imported here.

A loader's iterator is one pass over the data. It draws the indices of a batch, some batches ahead
of the loop if it has workers, and gives the batch later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from airflow_provider_zeus.training.samples import size_of


class Dispatch(NamedTuple):
    """How one process draws the batches of all: Accelerate's loader for streams, and
    ``dispatch_batches``.
    """

    processes: int = 1
    draws: int = 1  # not always 1: Accelerate may draw a batch for each process, for one step

    def share(self, samples: int) -> int:
        """Samples of each process, of so many that were drawn: the last ones are filled up."""
        return -(-samples // self.processes)


class LoaderPass:
    """One pass over a loader, with the notes of its listeners."""

    def __init__(self, iterator: Any) -> None:
        # Weak: kept here, an iterator that the loop has dropped would keep its worker processes.
        self.iterator: Callable[[], Any] = ref(iterator)
        self.dispatch = Dispatch()
        self.is_asked = False
        # By torch's number of a batch: workers draw the indices of some batches in advance.
        self.indices: dict[int, int] = {}
        self.is_exact = True  # not of a stream: it may end before a batch has all of its indices
        self.samples = 0
        # None without a batch since the last step: the first one after it begins the measurement.
        self.waited_s: float | None = None


class Draw(NamedTuple):
    """A batch that a pass gave."""

    of: LoaderPass
    batch: Any
    indices: int | None  # a collate function may change how many samples a batch has
    waited_s: float

    @property
    def exact(self) -> int | None:
        """Samples of the batch by its indices; None if these do not tell, as those of a stream."""
        if self.of.is_exact:
            return self.indices
        return None

    def samples(self, likely: int) -> int:
        """Samples of the batch, by its indices or by a look into it; 0: not known.

        :param likely: of a whole batch, to recognise one by.
        """
        exact = self.exact
        if exact is None:
            return size_of(self.batch, self.indices, likely)
        return exact


class DrawListener:
    """Hears of the batches that torch's loaders give."""

    def drawn(self, draw: Draw) -> None:
        """A pass gave a batch."""

    def exhausted(self, loader_pass: LoaderPass) -> None:
        """A pass has no more batches. The loop may have taken its last ones in advance."""


_listeners: WeakSet[DrawListener] = WeakSet()
# Weak: kept here, the passes of a long training would fill the memory.
_passes: WeakKeyDictionary[Any, LoaderPass] = WeakKeyDictionary()


def listen(listener: DrawListener) -> None:
    """Tell ``listener`` of each batch while it is alive.

    Does nothing if torch is another than is known here.
    """
    with suppress(Exception):
        kind = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        if not hasattr(kind.__next__, "__wrapped__"):  # wrapped twice, each batch would count twice
            kind._next_index = _counting(kind._next_index)
            kind.__next__ = _telling(kind.__next__)
        _listeners.add(listener)


def ignore(listener: DrawListener) -> None:
    """Tell ``listener`` no more."""
    _listeners.discard(listener)


def _counting(next_index: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's method that draws the indices of a batch; they are counted here."""

    @wraps(next_index)
    def counting(iterator: Any) -> Any:
        index = next_index(iterator)
        if not _listeners:
            return index
        with suppress(Exception):  # nothing of this may fail a training
            loader_pass = _pass_of(iterator)
            number = getattr(iterator, "_send_idx", 0)
            loader_pass.indices.pop(number, None)  # persistent workers count from 0 in each pass
            # Else the data set makes its batches itself, and one index is one batch.
            if iterator._auto_collation or isinstance(index, list):
                loader_pass.is_exact = index[0] is not None
                loader_pass.indices[number] = len(index)
        return index

    return counting


def _telling(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's method that gives the next batch; the listeners are told of it here."""

    @wraps(next_batch)
    def telling(iterator: Any) -> Any:
        if not _listeners:
            return next_batch(iterator)
        if "accelerate.data_loader" in sys.modules:
            _note_dispatch(iterator, sys._getframe(1))
        asked_s = perf_counter()
        try:
            batch = next_batch(iterator)
        except StopIteration:
            with suppress(Exception):
                for listener in list(_listeners):
                    listener.exhausted(_pass_of(iterator))
            raise
        waited_s = perf_counter() - asked_s
        with suppress(Exception):
            loader_pass = _pass_of(iterator)
            number = getattr(iterator, "_rcvd_idx", 1) - 1
            draw = Draw(loader_pass, batch, loader_pass.indices.pop(number, None), waited_s)
            for listener in list(_listeners):
                listener.drawn(draw)
        return batch

    return telling


def _pass_of(iterator: Any) -> LoaderPass:
    loader_pass = _passes.get(iterator)
    if loader_pass is None:
        loader_pass = LoaderPass(iterator)
        _passes[iterator] = loader_pass
    return loader_pass


def _note_dispatch(iterator: Any, caller: FrameType) -> None:
    """Note for whom a pass draws: its iterator knows no loader, so the one that asks for its
    batches tells it.
    """
    loader_pass = _pass_of(iterator)
    if loader_pass.is_asked:
        return
    loader_pass.is_asked = True
    with suppress(Exception):  # nothing of this may fail a training
        loader = caller.f_locals.get("self")
        if isinstance(loader, sys.modules["accelerate.data_loader"].DataLoaderDispatcher):
            processes: int = loader.state.num_processes
            draws = 1 if loader.split_batches else processes
            loader_pass.dispatch = Dispatch(processes, draws)
