"""``run.data_loader()``: a torch loader of the chosen batch size that counts every step in the run handle."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.samples import BatchCount, all_dropped, batch_size_of, samples_per_pass

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Gets the events of a loader's passes: the run handle. Each call may raise an interrupt."""

    driven: bool  # a framework's callback counts the steps
    warned: set[str]  # warnings that were given once in this run

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass of so many samples; None when the loader does not know.

        Returns a function to call when the loop is left early, with the samples of the last batch (it raises nothing).
        """

    def step(self, samples: int) -> None:
        """Count a batch of so many samples that was trained on."""

    def no_batch(self, error: JobSpecError) -> None:
        """The pass that is under way had samples and no batch, for the reason that ``error`` says."""

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """End a pass that took ``looped_s`` seconds, ``waited_s`` of them spent waiting for batches."""


class ZeusDataLoader:
    """Iterates over a torch ``DataLoader``; each batch counts as one step when the next one is asked for.

    It has the loader's attributes, such as ``dataset``. Where a framework's callback drives the run, that one counts.
    """

    def __init__(self, loader: Any, listener: Listener, shared: Any = None) -> None:
        self.loader = loader
        self._listener = listener
        self._shared, self._passes = shared, 0  # sampler of this process's share of the data; passes begun

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # of a copy that is being made, which has no loader yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        if self._shared is not None:
            self._shared.set_epoch(self._passes)  # without it every pass has the same order
            self._passes += 1
        return iter(self.loader) if self._listener.driven else _Pass(self.loader, self._listener)


class _Pass:
    """One pass. No generator: after an interrupt the next ``next()`` must raise it again, not end the loop."""

    def __init__(self, loader: Any, listener: Listener) -> None:
        self._loader, self._listener = loader, listener
        self._batches: Iterator[Any] | None = None  # None before the first batch
        self._pending = 0  # samples of the batch that the caller has now
        self._empty, self._over = True, False
        self._began_s = self._waited_s = 0.0

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._pending:
            pending, self._pending = self._pending, 0
            self._listener.step(pending)
        batches = self._batches
        if batches is None:
            self._leave = self._listener.start_pass(samples_per_pass(self._loader))
            self._samples_of = BatchCount(self._loader)
            self._began_s = perf_counter()
            self._batches = batches = iter(self._loader)
        asked_s = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            self._over = True
            now_s = perf_counter()
            if self._empty and (error := all_dropped(self._loader)) is not None:
                self._listener.no_batch(error)
            self._listener.end_pass(self._waited_s, now_s - self._began_s)
            raise
        self._waited_s += perf_counter() - asked_s
        self._empty = False
        self._pending = self._samples_of(batch)
        return batch

    def __del__(self) -> None:
        """End a pass whose loop was left by ``break``: the loop drops its iterator."""
        if self._batches is not None and not self._over:
            with contextlib.suppress(Exception):
                self._leave(self._pending)


def run_loader(
    data: Any, batch_size: int, options: Mapping[str, Any], listener: Listener, ranks: Ranks, *, seed: int
) -> ZeusDataLoader:
    """What ``run.data_loader()`` returns. Of several processes each gets a disjoint share of the data set.

    :param batch_size: of this process [samples].
    :param seed: for shuffling the shares, the same in all processes; each pass adds 1.

    Raises what :func:`make_loader` raises.
    """
    shared: Any = None
    if ranks.several and options.keys().isdisjoint(("sampler", "batch_sampler")) and _is_indexed(data):
        from torch.utils.data import DistributedSampler

        shuffle, drop_last = bool(options.get("shuffle")), bool(options.get("drop_last"))
        how: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last, "seed": seed % 2**32}
        shared = DistributedSampler(data, ranks.size, ranks.rank, **how)
        options = {**{name: value for name, value in options.items() if name != "shuffle"}, "sampler": shared}
    loader = make_loader(data, batch_size, options)
    if ranks.several and (doubt := _not_divided(loader)) and doubt not in listener.warned:
        listener.warned.add(doubt)
        log.warning("Zeus: each of %d processes %s.", ranks.size, doubt)
    return ZeusDataLoader(loader, listener, shared)


def _not_divided(loader: Any) -> str:
    """What each of several processes does with a loader that seems to give all of the data to each; else empty."""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

    batches = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        return (
            "goes over all of the iterable data set, unless it divides itself: let it leave out the samples of the "
            "others"
        )
    if type(batches) is BatchSampler and type(batches.sampler) in (RandomSampler, SequentialSampler):
        return "goes over all of the data: give run.data_loader() the data set, or a loader with a DistributedSampler"
    return ""


def _is_indexed(data: Any) -> bool:
    """Whether a data set can be divided by index; an iterable one has to divide itself."""
    try:
        from torch.utils.data import DataLoader, IterableDataset
    except ModuleNotFoundError:  # make_loader raises it
        return False
    return not isinstance(data, DataLoader | IterableDataset)


def make_loader(data: Any, batch_size: int, options: Mapping[str, Any]) -> Any:
    """A torch ``DataLoader`` over ``data`` (a data set), or ``data`` itself where it is one of this batch size.

    Raises JobSpecError: another batch size in ``options`` or in the loader, options for a loader that is built
    already; ModuleNotFoundError without torch.
    """
    try:
        from torch.utils.data import DataLoader
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "run.data_loader() needs torch: install airflow-provider-zeus[torch], "
            "or call run.step(samples) in your own loop for any other framework."
        ) from error
    if isinstance(data, DataLoader):
        if options:
            names = ", ".join(sorted(options))
            problem = "the loader is built already and cannot take options"
            raise JobSpecError.of("run.data_loader(): options", names, problem, "give its data set, or leave them out")
    else:
        whole_batches = getattr(options.get("sampler"), "batch_size", None) is not None  # of indices, by the sampler
        size = {} if options.get("batch_sampler") is not None else {"batch_size": None if whole_batches else batch_size}
        data = DataLoader(data, **{**size, **options})
    if batch_size_of(data) is None:
        raise JobSpecError.of(
            "run.data_loader(): batch_size",
            None,
            f"the data set or its sampler makes its own batches, and nothing says that they have {batch_size} samples",
            "iterate over it yourself, with batches of run.batch_size (run.local_batch_size, where several processes "
            "train together), and call run.step(len(batch)) after each optimizer step",
        )
    if batch_size_of(data) != batch_size:
        raise JobSpecError.of(
            "run.data_loader(): batch_size",
            batch_size_of(data),
            f"this attempt runs with batch size {batch_size}",
            "leave batch_size out, or build the loader with run.batch_size (run.local_batch_size, where several "
            "processes train together)",
        )
    return data
