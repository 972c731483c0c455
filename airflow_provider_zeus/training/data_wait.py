"""What waiting for batches takes of a training, and the one setting of its loader to try next."""

from __future__ import annotations

import os
import sys
from typing import Any

from airflow_provider_zeus.units import energy_text, time_text


class DataWait:
    """Adds up how long the loaders of an attempt let it wait.

    A GPU works on what is queued while its host waits, so the wait is an upper bound: it counts as waste only as far as
    the GPU does not work.
    """

    def __init__(self) -> None:
        self._waited_s = self._looped_s = 0.0
        self._remedy = ""

    @property
    def share(self) -> float | None:
        """Share of the training time in which the processor waits for batches; None below 1 s of training, and where
        none is seen.
        """
        return self._waited_s / self._looped_s if self._looped_s >= 1.0 else None

    def add(self, waited_s: float, looped_s: float, to_try: str = "") -> None:
        """Add ``looped_s`` seconds of training, ``waited_s`` of them spent waiting; ``to_try`` with that loader."""
        self._waited_s, self._looped_s = self._waited_s + waited_s, self._looped_s + looped_s
        self._remedy = to_try or self._remedy

    def waste(self, busy: float | None) -> float | None:
        """Share of the training time that the waits waste: at most that in which the GPU did not work."""
        return self.share if busy is None or self.share is None else min(self.share, 1.0 - busy)

    def wasted_s(self, busy: float | None) -> float | None:
        """The same in seconds of training."""
        return None if (waste := self.waste(busy)) is None else waste * self._looped_s

    def text(self, busy: float | None, power_w: float | None) -> str:
        """What the waits took, and what to try; empty where they are no waste, or a small one.

        :param busy: share of the time in which the GPU worked, 0 to 1; None: not known.
        :param power_w: mean power of the training.
        """
        waste, wasted_s, named = self.waste(busy), self.wasted_s(busy), 0.1  # share of the time that is worth a line
        if waste is None or wasted_s is None or waste < named:
            return ""
        energy = "" if power_w is None else f" and at most {energy_text(wasted_s * power_w)}"
        works = "" if busy is None else f": the GPU works {100 * busy:.0f} % of the time"
        took = f"{100 * waste:.0f} % of the training time, {time_text(wasted_s)}{energy}"
        return f"{took}, is spent waiting for batches{works}. Try {self._remedy or remedy(None)}"

    def notes(self, busy: float | None, power_w: float | None) -> dict[str, float]:
        """The processor's share, and what the waits waste, by name. At the mean power: a GPU that waits draws less."""
        share, wasted_s = self.share, self.wasted_s(busy)
        if share is None or wasted_s is None:
            return {}
        found = {"data_wait": share, "data_wait_s": wasted_s}
        return found if power_w is None else {**found, "data_wait_j": wasted_s * power_w}


def remedy(loader: Any) -> str:
    """The one setting to try next: one that can apply here, and is not set already.

    :param loader: of torch, or an iterator over it; anything else: no setting of it is known.
    """

    def setting(name: str) -> Any:
        return getattr(loader, name, getattr(loader, f"_{name}", None))

    workers, processors = setting("num_workers"), len(os.sched_getaffinity(0))
    ahead = "batches that are decoded ahead of the training, or a larger batch"
    if not isinstance(workers, int):
        return ahead
    if workers == 0 and processors > 1:
        return f"num_workers={min(processors - 1, 4)} in the DataLoader ({processors} processors here)"
    if workers and setting("persistent_workers") is False:
        return f"persistent_workers=True in the DataLoader: its {workers} workers are started again for each pass"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if setting("pin_memory") is False and cuda is not None and cuda.is_initialized():
        return "pin_memory=True in the DataLoader"
    if 0 < workers < processors - 1:
        return f"num_workers={min(2 * workers, processors - 1)} in the DataLoader ({processors} processors here)"
    if workers and (setting("prefetch_factor") or 0) <= 2:
        return "prefetch_factor=4 in the DataLoader"
    return ahead
