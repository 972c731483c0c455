"""How many samples a torch loader holds, and each of its batches."""

from __future__ import annotations

import contextlib
from typing import Any

from airflow_provider_zeus.errors import JobSpecError


def batch_size_of(loader: Any) -> int | None:
    """Batch size of a torch loader, also where its sampler yields whole batches of indices."""
    for part in (loader, loader.batch_sampler, loader.sampler):
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
