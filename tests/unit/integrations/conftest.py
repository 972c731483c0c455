"""The simulated GPU and plans of the training tests, for loops that frameworks own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_zeus.model.trial import TrialKey
from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints
from tests.unit.training.conftest import Kit, kit  # noqa: F401


def left_behind(kit: Kit, epochs: int) -> Checkpoints:  # noqa: F811
    """What a retry finds of the first run of a kit."""
    observation = kit.ends()[0].observation
    assert observation is not None
    key = TrialKey("ti-0")
    return Checkpoints(Checkpoint(path="/c", epochs=epochs, batch_size=16, key=key, observation=observation))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: of models this small several threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
