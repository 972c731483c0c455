"""``run.data_loader()``: a torch loader of the chosen batch size that tells the run handle of every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_zeus.errors import JobSpecError


class ZeusDataLoader:
    """Iterates over a torch ``DataLoader``; each batch counts as one step when the next one is asked for."""

    def __init__(self, loader: Any, *, start: Callable[[], None], step: Callable[[int], None], end: Callable[[], None]):
        self.loader = loader
        self._start, self._step, self._end = start, step, end

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return _Steps(iter(self.loader), self._start, self._step, self._end)

    @property
    def samples_per_epoch(self) -> float | None:
        """Samples of one pass, None where the loader cannot tell (an iterable data set)."""
        try:
            samples = len(self.loader.dataset)
            batches = len(self.loader)
        except TypeError:
            return None
        size = _batch_size(self.loader)
        return float(min(samples, batches * size) if size else samples)


class _Steps:
    """One pass. Not a generator: after ``AttemptOver`` the next ``next()`` must raise it again, not end the loop."""

    def __init__(
        self, batches: Iterator[Any], start: Callable[[], None], step: Callable[[int], None], end: Callable[[], None]
    ) -> None:
        self._batches, self._start, self._step, self._end = batches, start, step, end
        self._samples: int | None = None  # of the batch that the caller has now; None before the first

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        if self._samples is None:
            self._start()
        else:
            self._step(self._samples)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._samples = 0
            self._end()
            raise
        self._samples = samples_in(batch)
        return batch


def make_loader(data: Any, batch_size: int, options: Mapping[str, Any]) -> Any:
    """A torch ``DataLoader`` over ``data`` (a data set), or ``data`` itself where it is one of this batch size.

    Raises JobSpecError: another batch size in ``options`` or in the loader; ModuleNotFoundError without torch.
    """
    try:
        from torch.utils.data import DataLoader
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "run.data_loader() needs torch: install airflow-provider-zeus[torch], "
            "or call run.step(samples) in your own loop for any other framework."
        ) from error
    if "batch_size" in options:
        raise _other(options["batch_size"], batch_size)
    if not isinstance(data, DataLoader):
        defaults: dict[str, Any] = {"batch_size": batch_size}
        if "batch_sampler" in options:
            defaults = {}
        elif getattr(options.get("sampler"), "batch_size", None) is not None:
            defaults = {"batch_size": None}  # the sampler yields whole batches of indices
        data = DataLoader(data, **defaults, **options)
    if _batch_size(data) != batch_size:
        raise _other(_batch_size(data), batch_size)
    return data


def samples_in(batch: Any) -> int:
    """Samples in one batch: the length of the first tensor found in it; 1 where there is none."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    if isinstance(batch, tuple | list) and batch and hasattr(batch[0], "__len__"):
        return samples_in(batch[0]) if not isinstance(batch[0], str) else len(batch)
    try:
        return len(batch)
    except TypeError:
        return 1


def _batch_size(loader: Any) -> int | None:
    """Batch size of a torch loader, also where its sampler yields whole batches of indices."""
    for part in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        size = getattr(part, "batch_size", None)
        if isinstance(size, int):
            return size
    return None


def _other(size: object, batch_size: int) -> JobSpecError:
    return JobSpecError.of(
        "run.data_loader(): batch_size",
        size,
        f"this attempt runs with batch size {batch_size}",
        "leave batch_size out, or build the loader with run.batch_size",
    )
