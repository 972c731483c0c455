"""The simulated GPU and plans of the training tests, for loops that frameworks own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.unit.training.conftest import kit  # noqa: F401


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: of models this small several threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
