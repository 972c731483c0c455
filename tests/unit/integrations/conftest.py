"""The simulated GPU and plans of the training tests, for loops that frameworks own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints
from tests.golden import Table
from tests.unit.training.conftest import Kit, incumbent, kit  # noqa: F401

MESSAGES = Table("trainers")

SIZES: dict[str, Any] = {"batch_sizes": [16, 32], "default_batch_size": 16, "profile_s": 0.1}
FRAMEWORKS = {"huggingface": ("transformers", "accelerate"), "lightning": ("lightning",)}


def outcome(kit: Kit) -> tuple[State, float | None, float | None]:  # noqa: F811
    """State, epochs and samples of the attempt that ended last."""
    return kit.ends()[-1].state, kit.last().epochs, kit.last().samples


def refused(kit: Kit, training: Any, error: type[Exception], situation: str, **job: Any) -> None:  # noqa: F811
    """A training ends by an error, whose text is the row of a table."""
    with pytest.raises(error) as caught:
        kit.run(incumbent(16), **SIZES, **job).train(training)
    # transformers adds figures of its own, in each version others
    MESSAGES.check(situation, re.sub("only acc, .*? came", "only acc, ... came", str(caught.value)))


def left_behind(kit: Kit, epochs: int) -> Checkpoints:  # noqa: F811
    """What a retry finds of the first run of a kit."""
    observation = kit.ends()[0].observation
    assert observation is not None
    key = TrialKey("ti-0")
    return Checkpoints(
        Checkpoint(path="/c", epochs=epochs, batch_size=16, key=key, observation=observation)
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: of models this small several threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def imported(framework: str) -> Iterator[ModuleType]:
    """The kit of a framework, which takes seconds to import."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HUB_OFFLINE", "1")
        for name in FRAMEWORKS[framework]:
            pytest.importorskip(
                name, reason=f"{name} is not installed: airflow-provider-zeus[{framework}]"
            )
        with one_thread():
            yield import_module(f"tests.unit.integrations.{framework}_kit")


@pytest.fixture(scope="module")
def driver(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The kit of the framework that a test is run for."""
    with imported(request.param) as module:
        yield module
