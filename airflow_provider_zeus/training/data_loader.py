"""``run.data_loader()``: a loader of the chosen batch size that counts every step in the run handle."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any
from weakref import ref

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.plan_progress import PlanProgress
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.samples import (
    BatchCount,
    all_dropped,
    batch_size_of,
    batches_again,
    samples_held,
    samples_per_pass,
)

log = guarded_log(__name__)


class ZeusDataLoader:
    """Iterates over a loader; each batch counts as one step when the next one is asked for, or the epoch is reported.

    It has the loader's attributes, such as ``dataset``. Where a framework's callback drives the run, that one counts.

    :param batch_size: of this process, to recognise batches by where the loader does not know it.
    :param shared: sampler of this process's share of the data.
    """

    def __init__(self, loader: Any, progress: PlanProgress, batch_size: int, shared: Any = None) -> None:
        self.loader = loader
        self._progress, self._likely = progress, batch_size
        self._shared, self._passes = shared, 0  # passes begun

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
        if self._progress.driven:
            return iter(self.loader)
        return _Pass(self.loader, self._progress, self._likely, first=self._passes == 1)


class _Pass:
    """One pass. No generator: after an interrupt the next ``next()`` must raise it again, not end the loop.

    Of passes side by side (``zip``) the newest one counts: an optimizer step trains on a batch of each.
    """

    def __init__(self, loader: Any, progress: PlanProgress, likely: int, *, first: bool) -> None:
        self._loader, self._progress, self._likely, self._first = loader, progress, likely, first
        self._batches: Iterator[Any] | None = None  # None before the first batch
        self._pending = 0  # samples of the batch that the caller has now
        self._empty, self._over, self._counted = True, False, False
        self._began_s = self._waited_s = 0.0
        self._me = ref(self)

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._pending:
            self._count()
        batches = self._batches
        if batches is None:
            self._batches = batches = self._begun()
        asked_s = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            self._end()
            raise
        self._waited_s += perf_counter() - asked_s
        self._pending = self._samples_of(batch)
        if self._empty:
            self._empty, self._steps_before = False, self._progress.present.optimizer_steps
            if batches is self._loader:
                with contextlib.suppress(TypeError):  # Python's map or zip; what has no hash
                    self._progress.drawn_from.add(batches)
            self._look_at(batch)
        return batch

    def flush(self) -> None:
        """Count the batch that the caller has, at the end of an epoch; not one that was only looked at."""
        if self._pending and (self._counted or self._progress.present.optimizer_steps > self._steps_before):
            self._count()

    def __del__(self) -> None:
        """End a pass whose loop was left by ``break``: the loop drops its iterator."""
        if self._batches is not None and not self._over:
            with contextlib.suppress(Exception):
                self._close()
                self._leave(self._pending)

    def _begun(self) -> Iterator[Any]:
        beside = self._progress.newest_pass()
        paired = beside is not None and beside._pending and not beside._counted
        self._leave = self._progress.start_pass(0.0 if paired else samples_per_pass(self._loader))
        self._before, self._progress.newest_pass = self._progress.newest_pass, self._me
        self._samples_of = BatchCount(self._loader, likely=self._likely)
        self._began_s = perf_counter()
        return iter(self._loader)

    def _count(self) -> None:
        pending, self._pending = self._pending, 0
        if self._progress.newest_pass is self._me:
            self._counted = True
            self._progress.step(pending)

    def _look_at(self, batch: Any) -> None:
        """Look at the first batch. Raises JobSpecError where it does not tell how many samples it has."""
        if not self._pending and batch_size_of(self._loader) is None:
            raise JobSpecError.of(
                "run.data_loader(): batch_size",
                None,
                f"the data make their own batches, and nothing says that they have {self._likely} samples",
                "iterate over them yourself, with batches of run.batch_size (run.local_batch_size, where several "
                "processes train together), and call run.step(len(batch)) after each optimizer step",
            )
        made, again = getattr(self._loader, "batch_sampler", None) is not None, "batches of batches"
        size, whole = self._pending, batch_size_of(self._loader) or self._likely
        if made and size > 1 and batches_again(batch, (size, whole)) and again not in self._progress.warned:
            self._progress.warned.add(again)
            log.warning(
                "Zeus: run.data_loader() makes batches of %d of what the data set gives, and that seems to be batches "
                "already: each tensor of a batch begins with %d x %d. Remedy: run.data_loader(data, batch_size=None).",
                *(whole, size, whole),
            )

    def _close(self) -> None:
        self._over = True
        if self._progress.newest_pass is self._me:
            self._progress.newest_pass = self._before

    def _end(self) -> None:
        now_s, counts = perf_counter(), self._progress.newest_pass is self._me
        self._close()
        if self._empty and self._batches is self._loader:
            drawn_before = not self._first
            with contextlib.suppress(TypeError):  # of what has no hash; so it is found where it is given anew, too
                drawn_before = drawn_before or self._loader in self._progress.drawn_from
            if drawn_before:
                remedy = "build a new one for each epoch: `for batch in run.data_loader(batches()):`"
                problem = "the pass before has used it up, and it gives no other"
                raise JobSpecError.of("run.data_loader()", type(self._loader).__name__, problem, remedy)
        if self._empty and (error := all_dropped(self._loader)) is not None:
            self._progress.present.no_batch(error, samples_held(self._loader))
        if counts:
            self._progress.present.end_pass(self._waited_s, now_s - self._began_s, self._loader)


def run_loader(
    data: Any, batch_size: int, options: Mapping[str, Any], progress: PlanProgress, ranks: Ranks, *, seed: int
) -> ZeusDataLoader:
    """What ``run.data_loader()`` returns. Of several processes each gets a disjoint share of the data set.

    :param batch_size: of this process [samples].
    :param seed: for shuffling the shares, the same in all processes; each pass adds 1.

    Raises what :func:`make_loader` raises.
    """
    shared: Any = None
    sampled = not options.keys().isdisjoint(("sampler", "batch_sampler"))
    if ranks.several and not sampled and not _is_loader(data) and not isinstance(data, _torch_data().IterableDataset):
        from torch.utils.data import DistributedSampler

        shuffle, drop_last = bool(options.get("shuffle")), bool(options.get("drop_last"))
        how: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last, "seed": seed % 2**32}
        shared = DistributedSampler(data, ranks.size, ranks.rank, **how)
        options = {**{name: value for name, value in options.items() if name != "shuffle"}, "sampler": shared}
    loader = make_loader(data, batch_size, options)
    if ranks.several and (doubt := _not_divided(loader)) and doubt not in progress.warned:
        progress.warned.add(doubt)
        log.warning("Zeus: each of %d processes %s.", ranks.size, doubt)
    return ZeusDataLoader(loader, progress, batch_size, shared)


def _not_divided(loader: Any) -> str:
    """What each of several processes does with a loader that seems to give all of the data to each; else empty."""
    torch_loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", ())
    if not isinstance(loader, torch_loader) or hasattr(loader, "split_batches"):  # Accelerate's divides each batch
        return ""
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


def _is_loader(data: Any) -> bool:
    """Whether ``data`` gives batches already: a loader of torch or of another library, a generator.

    What can be indexed is a data set, unless it has a batch size (as a Keras sequence), and so is a stream of torch
    that holds no loader itself.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.DataLoader):
        return True
    if torch_data is not None and isinstance(data, torch_data.IterableDataset):
        parts = list(getattr(data, "__dict__", {}).values())
        parts += [each for part in parts if isinstance(part, list | tuple) for each in part]
        return any(isinstance(part, torch_data.DataLoader) for part in parts)
    return hasattr(data, "__iter__") and (not hasattr(data, "__getitem__") or batch_size_of(data) is not None)


def _several_in_one(data: Any, batch_size: int) -> str:
    """Why a list, a tuple or a dict is no data set: it holds several, or their columns; empty where it may be one.

    A list of samples is a data set of torch: its entries are no data sets, and no columns of equal length.
    """
    torch_data = sys.modules.get("torch.utils.data")
    sets = () if torch_data is None else (torch_data.DataLoader, torch_data.Dataset)
    if isinstance(data, sets):
        return ""
    if isinstance(data, Mapping):
        names = ", ".join(map(str, list(data)[:5]))
        return f"a dict with the entries {names or 'none'}, and no data set"
    if not isinstance(data, list | tuple):
        return ""
    if any(isinstance(entry, sets) or batch_size_of(entry) is not None for entry in data[:8]):
        return f"a {type(data).__name__} of {len(data)} data sets or loaders, and not one of them"
    shapes = [tuple(getattr(entry, "shape", ())) for entry in data[:8]]
    if len(data) < 2 or len(data) > 8 or not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        return ""
    rows = shapes[0][0]
    if len(set(shapes)) > 1 or len(data) < batch_size <= rows:
        return f"a {type(data).__name__} of {len(data)} arrays of {rows} rows each, and no data set"
    return ""


def make_loader(data: Any, batch_size: int, options: Mapping[str, Any]) -> Any:
    """A torch ``DataLoader`` over ``data`` (a data set), or ``data`` itself where it is a loader of this batch size.

    Raises JobSpecError: a text or a path, several data sets in a list or a dict, another batch size in ``options``
    or in the loader, options for a loader that is built already; ModuleNotFoundError for a data set without torch.
    """
    if isinstance(data, str | bytes | os.PathLike):
        problem, remedy = "a text or a path, and no data", "read the file, and give its data set or its batches"
        raise JobSpecError.of("run.data_loader(): data", type(data).__name__, problem, remedy)
    problem = _several_in_one(data, batch_size)
    if problem:
        remedy = (
            "give one data set or loader, as TensorDataset(x, y) or ConcatDataset([a, b]) of torch.utils.data, or one "
        )
        remedy += "entry of a dict; for several side by side call run.data_loader() for each"
        raise JobSpecError.of("run.data_loader(): data", type(data).__name__, problem, remedy)
    if _is_loader(data):
        if options:
            names = ", ".join(sorted(options))
            problem = "the loader is built already and cannot take options"
            raise JobSpecError.of("run.data_loader(): options", names, problem, "give its data set, or leave them out")
    else:
        torch_data = _torch_data()
        whole_batches = getattr(options.get("sampler"), "batch_size", None) is not None  # of indices, by the sampler
        size = {} if options.get("batch_sampler") is not None else {"batch_size": None if whole_batches else batch_size}
        data = torch_data.DataLoader(data, **{**size, **options})
    if batch_size_of(data) not in (None, batch_size):
        raise JobSpecError.of(
            "run.data_loader(): batch_size",
            batch_size_of(data),
            f"this attempt runs with batch size {batch_size}",
            "leave batch_size out, or build the loader with run.batch_size (run.local_batch_size, where several "
            "processes train together); where gradients are accumulated, iterate over the loader itself: torch's steps "
            "are seen",
        )
    return data


def _torch_data() -> Any:
    """``torch.utils.data``. Raises ModuleNotFoundError with the remedy."""
    try:
        import torch.utils.data
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "run.data_loader() needs torch: install airflow-provider-zeus[torch], "
            "or call run.step(samples) in your own loop for any other framework."
        ) from error
    return torch.utils.data
