"""``run.data_loader()``: a loader of the chosen batch size that counts every step in the run
handle.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Any
from weakref import ref

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.drawn_batches import BatchCount
from airflow_provider_zeus.training.plan_progress import PlanProgress
from airflow_provider_zeus.training.samples import (
    all_dropped,
    batch_size_of,
    batches_again,
    samples_held,
    samples_per_pass,
)

log = guarded_log(__name__)


class ZeusDataLoader:
    """Iterates over a loader; each batch counts as one step when the next one is asked for, or the
    epoch is reported.

    It has the loader's attributes, such as ``dataset``. If a framework's callback drives the run,
    that one counts.

    :param batch_size: of this process, to recognise batches by if the loader does not know it.
    :param shared: sampler of this process's share of the data.
    """

    def __init__(
        self, loader: Any, progress: PlanProgress, batch_size: int, shared: Any = None
    ) -> None:
        self.loader = loader
        self._progress = progress
        self._likely = batch_size
        self._shared = shared
        self._passes = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        # A copy that is being made has no loader yet: to look it up would call this for ever.
        if name == "loader" or name.startswith("__"):
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
    """One pass. No generator: after an interrupt the next ``next()`` must raise it again, not end
    the loop.

    Of passes side by side (``zip``) the newest one counts: an optimizer step trains on a batch of
    each.
    """

    def __init__(self, loader: Any, progress: PlanProgress, likely: int, *, first: bool) -> None:
        self._loader = loader
        self._progress = progress
        self._likely = likely
        self._first = first
        # Opened with the first batch: iter() starts a loader's worker processes.
        self._batches: Iterator[Any] | None = None
        self._pending = 0  # counted late: the caller trains on a batch only after it was given
        self._empty = True
        self._over = False
        self._counted = False
        self._steps_before = 0  # a pass without a step is no training, but a look at its batches
        self._began_s = 0.0
        self._waited_s = 0.0
        self._me = ref(self)

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        self._count()
        batches = self._batches
        if batches is None:
            batches = self._begun()
            self._batches = batches
        asked_s = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            self._end()
            raise
        self._waited_s += perf_counter() - asked_s
        self._pending = self._samples_of(batch)
        if self._empty:
            self._empty = False
            self._steps_before = self._progress.present.optimizer_steps
            # An iterator, as Python's map or zip, gives its batches once: a later pass over it gets
            # an error, and is no epoch without data.
            if batches is self._loader:
                with contextlib.suppress(TypeError):  # without a hash it cannot be remembered
                    self._progress.drawn_from.add(batches)
            self._look_at(batch)
        return batch

    def flush(self) -> None:
        """Count the batch that the caller has, at the end of an epoch; not one that was only looked
        at.
        """
        has_stepped = self._progress.present.optimizer_steps > self._steps_before
        if self._counted or has_stepped:
            self._count()

    def __del__(self) -> None:
        """End a pass whose loop was left by ``break``: the loop drops its iterator."""
        if self._batches is not None and not self._over:
            with contextlib.suppress(Exception):
                self._close()
                self._leave(self._pending)

    def _begun(self) -> Iterator[Any]:
        beside = self._progress.newest_pass()
        # Side by side with another pass a step has a batch of each: its samples count once.
        expected: float | None = 0.0
        if beside is None or beside._counted or not beside._pending:
            expected = samples_per_pass(self._loader)
        self._leave = self._progress.start_pass(expected)
        self._before = self._progress.newest_pass
        self._progress.newest_pass = self._me
        self._samples_of = BatchCount(self._loader, likely=self._likely)
        self._began_s = perf_counter()
        return iter(self._loader)

    def _count(self) -> None:
        """Count the batch that the caller has, if it has one."""
        pending = self._pending
        self._pending = 0
        if pending and self._progress.newest_pass is self._me:
            self._counted = True
            self._progress.step(pending)

    def _look_at(self, batch: Any) -> None:
        """Look at the first batch.

        Raises JobSpecError if it does not tell how many samples it has.
        """
        own_size = batch_size_of(self._loader)
        if not self._pending and own_size is None:
            raise JobSpecError.of(
                "run.data_loader(): batch_size",
                None,
                f"the data make their own batches, and nothing says that they have {self._likely} "
                "samples",
                "iterate over them yourself, with batches of run.batch_size (run.local_batch_size, "
                "where several processes train together), and call run.step(len(batch)) after each "
                "optimizer step",
            )
        again = "batches of batches"
        size = self._pending
        whole = own_size or self._likely
        is_single = getattr(self._loader, "batch_sampler", None) is None or size < 2
        if is_single or again in self._progress.warned:
            return
        if batches_again(batch, (size, whole)):
            self._progress.warned.add(again)
            log.warning(
                "Zeus: run.data_loader() makes batches of %d of what the data set gives, and that "
                "seems to be batches already: each tensor of a batch begins with %d x %d. Remedy: "
                "run.data_loader(data, batch_size=None).",
                *(whole, size, whole),
            )

    def _close(self) -> None:
        self._over = True
        if self._progress.newest_pass is self._me:
            self._progress.newest_pass = self._before

    def _end(self) -> None:
        looped_s = perf_counter() - self._began_s
        counts = self._progress.newest_pass is self._me
        self._close()
        if self._empty:
            self._check_unused()
            error = all_dropped(self._loader)
            if error is not None:
                self._progress.present.no_batch(error, samples_held(self._loader))
        if counts:
            self._progress.present.end_pass(self._waited_s, looped_s, self._loader)

    def _check_unused(self) -> None:
        """Raise JobSpecError if an iterator gave no batch, since a pass before has used it up."""
        if self._batches is not self._loader:
            return
        drawn_before = not self._first
        with contextlib.suppress(TypeError):  # an iterator without a hash is in no set
            # Not by this loader alone: another run.data_loader() may have used it up.
            drawn_before |= self._loader in self._progress.drawn_from
        if drawn_before:
            raise JobSpecError.of(
                "run.data_loader()",
                type(self._loader).__name__,
                "the pass before has used it up, and it gives no other",
                "build a new one for each epoch: `for batch in run.data_loader(batches()):`",
            )


def run_loader(
    data: Any, batch_size: int, options: Mapping[str, Any], progress: PlanProgress
) -> ZeusDataLoader:
    """The loader of ``run.data_loader()``. Of several processes each gets a disjoint share of the
    data set.

    :param batch_size: of this process [samples].

    Raises the errors of :func:`make_loader`.
    """
    ranks = progress.ranks
    if not ranks.several:
        return ZeusDataLoader(make_loader(data, batch_size, options), progress, batch_size)
    shared: Any = None
    if _is_to_divide(data, options):
        # The same in all processes: the shares are then disjoint.
        seed = progress.plan.seed
        if progress.live is not None:
            seed += progress.live.passes
        shared = _torch_data().DistributedSampler(
            data,
            ranks.size,
            ranks.rank,
            shuffle=bool(options.get("shuffle")),
            drop_last=bool(options.get("drop_last")),
            seed=seed % 2**32,
        )
        options = {name: value for name, value in options.items() if name != "shuffle"}
        options["sampler"] = shared
    loader = make_loader(data, batch_size, options)
    doubt = _not_divided(loader)
    if doubt:
        progress.say_once(f"each of {ranks.size} processes {doubt}.")
    return ZeusDataLoader(loader, progress, batch_size, shared)


def _is_to_divide(data: Any, options: Mapping[str, Any]) -> bool:
    """Whether each process gets a share of ``data`` from us: a data set, and no sampler of the
    author.
    """
    if not options.keys().isdisjoint(("sampler", "batch_sampler")):
        return False
    return not _is_loader(data) and not isinstance(data, _torch_data().IterableDataset)


def _not_divided(loader: Any) -> str:
    """The doubt about a loader that seems to give all of the data to each of several processes;
    else empty.
    """
    torch_loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", ())
    # Accelerate's loader divides each batch itself, so no sample is trained on twice.
    if not isinstance(loader, torch_loader) or hasattr(loader, "split_batches"):
        return ""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

    batches = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        return (
            "goes over all of the iterable data set, unless it divides itself: let it leave out "
            "the samples of the others"
        )
    if type(batches) is BatchSampler and type(batches.sampler) in (
        RandomSampler,
        SequentialSampler,
    ):
        return (
            "goes over all of the data: give run.data_loader() the data set, or a loader with a "
            "DistributedSampler"
        )
    return ""


def _is_loader(data: Any) -> bool:
    """Whether ``data`` gives batches already: a loader of torch or of another library, a generator.

    An object with an index is a data set, unless it has a batch size (as a Keras sequence), and so
    is a stream of torch that holds no loader itself.
    """
    torch_data = sys.modules.get("torch.utils.data")
    torch_loader = getattr(torch_data, "DataLoader", ())
    if isinstance(data, torch_loader):
        return True
    if isinstance(data, getattr(torch_data, "IterableDataset", ())):
        parts = list(getattr(data, "__dict__", {}).values())
        lists = [part for part in parts if isinstance(part, list | tuple)]
        return any(isinstance(part, torch_loader) for part in chain(parts, *lists))
    if not hasattr(data, "__iter__"):
        return False
    return not hasattr(data, "__getitem__") or batch_size_of(data) is not None


def _several_in_one(data: Any, batch_size: int) -> str:
    """Why a list, a tuple or a dict is no data set: it holds several, or their columns; empty if it
    may be one.

    A list of samples is a data set of torch: its entries are no data sets, and no columns of equal
    length.
    """
    torch_data = sys.modules.get("torch.utils.data")
    sets = (getattr(torch_data, "DataLoader", ()), getattr(torch_data, "Dataset", ()))
    if isinstance(data, sets):
        return ""
    if isinstance(data, Mapping):
        names = ", ".join(map(str, list(data)[:5]))
        return f"a dict with the entries {names or 'none'}, and no data set"
    if not isinstance(data, list | tuple):
        return ""
    kind = type(data).__name__
    loaders = [entry for entry in data[:8] if batch_size_of(entry) is not None]
    if loaders or any(isinstance(entry, sets) for entry in data[:8]):
        return f"a {kind} of data sets or loaders, {len(data)} of them, and none itself"
    rows = _rows_of_columns(data, batch_size)
    if rows is None:
        return ""
    return f"a {kind} of {len(data)} arrays of {rows} rows each, and no data set"


def _rows_of_columns(data: Sequence[Any], batch_size: int) -> int | None:
    """Rows of the arrays in a list if these are the columns of a data set; None if they are not."""
    most_columns = 8  # a longer list is one of samples rather than of columns: judgement
    if not 2 <= len(data) <= most_columns:
        return None
    shapes = [tuple(getattr(entry, "shape", ())) for entry in data]
    if not all(shapes):
        return None
    rows: int = shapes[0][0]
    if any(shape[0] != rows for shape in shapes):
        return None
    # Arrays of one shape may be samples, unless there are too few of them for one batch.
    if len(set(shapes)) == 1 and not len(data) < batch_size <= rows:
        return None
    return rows


def make_loader(data: Any, batch_size: int, options: Mapping[str, Any]) -> Any:
    """A torch ``DataLoader`` over ``data`` (a data set), or ``data`` itself if it is a loader of
    this batch size.

    Raises JobSpecError: a text or a path, several data sets in a list or a dict, another batch size
    in ``options`` or in the loader, options for a loader that is built already; ModuleNotFoundError
    for a data set without torch.
    """
    if isinstance(data, str | bytes | os.PathLike):
        problem = "a text or a path, and no data"
        remedy = "read the file, and give its data set or its batches"
        raise JobSpecError.of("run.data_loader(): data", type(data).__name__, problem, remedy)
    problem = _several_in_one(data, batch_size)
    if problem:
        remedy = "give one data set or loader, as TensorDataset(x, y) or ConcatDataset([a, b]) "
        remedy += "of torch.utils.data, or one entry of a dict; "
        remedy += "for several side by side call run.data_loader() for each"
        raise JobSpecError.of("run.data_loader(): data", type(data).__name__, problem, remedy)
    if _is_loader(data):
        if options:
            names = ", ".join(sorted(options))
            problem = "the loader is built already and cannot take options"
            raise JobSpecError.of(
                "run.data_loader(): options", names, problem, "give its data set, or leave them out"
            )
    else:
        sized: dict[str, int | None] = {"batch_size": batch_size}
        if getattr(options.get("sampler"), "batch_size", None) is not None:
            sized = {"batch_size": None}  # with a size, torch would make batches of its batches
        if options.get("batch_sampler") is not None:
            sized = {}
        data = _torch_data().DataLoader(data, **{**sized, **options})
    own_size = batch_size_of(data)
    if own_size not in (None, batch_size):
        raise JobSpecError.of(
            "run.data_loader(): batch_size",
            own_size,
            f"this attempt runs with batch size {batch_size}",
            "leave batch_size out, or build the loader with run.batch_size (run.local_batch_size, "
            "where several processes train together); where gradients are accumulated, iterate "
            "over the loader itself: torch's steps are seen",
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
