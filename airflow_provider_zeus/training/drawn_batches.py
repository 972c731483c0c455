"""How many samples each batch of one pass has: for a loop of ours, and for the callback of a
framework's loop.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from typing import Any

from airflow_provider_zeus.training.samples import batch_size_of, batches_of, size_of
from airflow_provider_zeus.training.torch_loaders import Draw, DrawListener, LoaderPass, listen


class BatchCount(DrawListener):
    """Counts the samples of each batch of one pass.

    If torch's own sampler makes the batches, their sizes follow from its own, however a batch
    looks; of another sampler torch's iterator counts them. With a stream, or a loader that is not
    torch's, a batch is looked into; one that does not show it counts as a whole one.

    :param whole: samples of a whole batch, if the loader does not know them.
    :param likely: the same, only to recognise a whole batch by.
    """

    def __init__(self, loader: Any, whole: int | None = None, *, likely: int | None = None) -> None:
        self._whole = batch_size_of(loader) or whole
        self._likely = self._whole or likely
        self._left: int | None = None  # counted down, since the last batch may be smaller
        self._sizes = deque[int | None]()  # prefetched batches are drawn before they are trained on
        self._batches: Any = batches_of(loader)
        # Accelerate's loader takes batches apart, so its sampler does not tell their sizes.
        if self._batches is None or hasattr(loader, "split_batches"):
            return
        torch_data = sys.modules.get("torch.utils.data")
        # A subclass may make batches of any size, so these are counted as they are drawn.
        if type(self._batches) is not getattr(torch_data, "BatchSampler", None):
            listen(self)
            return
        with suppress(TypeError, NotImplementedError):  # the sampler of a stream has no length
            self._left = len(self._batches.sampler)

    def __call__(self, batch: Any) -> int:
        """Samples of the pass's next batch; 0: not known."""
        size = self._sizes.popleft() if self._sizes else None
        if size is not None:
            return size
        if self._left is None or self._whole is None:
            return size_of(batch, self._whole, self._likely)
        # A sampler may yield more than its length: these batches count as whole ones.
        samples = min(self._whole, self._left) or self._whole
        self._left = max(self._left - samples, 0)
        return samples

    def drawn(self, draw: Draw) -> None:
        """Keep the size of a batch of this loader."""
        if draw.of.iterator()._index_sampler is self._batches:
            self._sizes.append(draw.exact)


class DrawnBatches(DrawListener):
    """The batches of one pass that no step has used yet: of the first pass over a data set that
    begins from now on.
    """

    def __init__(self, dataset: Any, likely: int) -> None:
        self._dataset = dataset
        self._likely = likely
        self._pass: LoaderPass | None = None
        self._sizes = deque[int]()
        listen(self)

    def take(self, batches: int) -> int | None:
        """Samples of the next batches, fewer at the end of the pass; None if torch's iterator has
        none.
        """
        if self._pass is None:
            return None
        dispatch = self._pass.dispatch
        samples = 0
        for _ in range(min(batches * dispatch.draws, len(self._sizes))):
            samples += self._sizes.popleft()
        return dispatch.share(samples) or None

    def drawn(self, draw: Draw) -> None:
        """Keep the size of a batch of this pass."""
        if self._pass is None and draw.of.iterator()._dataset is self._dataset:
            self._pass = draw.of
        if self._pass is draw.of:
            self._sizes.append(draw.samples(self._likely))
