"""A run whose steps do not add up to the chosen batch size teaches nothing;
one that may be right is left alone.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from airflow_provider_zeus.model.trial import BATCH_SIZE, TELL_STEPS, State
from airflow_provider_zeus.training.attempt_checks import BatchSizeCheck, EpochSteps
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent

CHOSEN = 128
N = 1024
Loop = Callable[[ZeusRun, torch.nn.Module, torch.optim.Optimizer], None]
TORCH_OPTIMIZER = importlib.import_module("torch.optim.optimizer")
HOOKS = TORCH_OPTIMIZER._global_optimizer_post_hooks  # the test reads what must be empty again


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    before = len(HOOKS)
    yield
    assert len(HOOKS) <= before


def batches(size: int, n: int = N) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(n, 3), torch.randn(n, 1)), batch_size=size)


def train_on(
    batch: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, step: bool = True
) -> int:
    x, y = batch
    torch.nn.functional.mse_loss(model(x), y).backward()
    if step:
        optimizer.step()
        optimizer.zero_grad()
    return len(x)


def untold(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in batches(32):
        train_on(batch, model, optimizer)


def told_of_32(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in batches(32):
        run.step(train_on(batch, model, optimizer))


def told_of_512(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in batches(512, 4 * N):
        run.step(train_on(batch, model, optimizer))


def our_loader(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run.data_loader(TensorDataset(torch.randn(N + 40, 3), torch.randn(N + 40, 1))):
        train_on(batch, model, optimizer)


def accumulated(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for i, batch in enumerate(batches(32)):
        run.step(train_on(batch, model, optimizer, step=i % 4 == 3))


def two_optimizers(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As a GAN: two optimizers, and each half of the gradients accumulated over four parts."""
    other = torch.optim.SGD(model.parameters(), lr=0.01)
    for i, batch in enumerate(batches(32)):
        told = train_on(batch, model, optimizer, step=False)
        if i % 4 == 3:
            other.step()
            optimizer.step()
            optimizer.zero_grad()
        run.step(told)


def small_slice(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in batches(CHOSEN, 100):
        run.step(train_on(batch, model, optimizer))


def sizes_that_vary(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for size in (10, 200, 20, 90, 400, 30, 60, 300):
        run.step(size)


def without_torch(run: ZeusRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(N // run.batch_size):
        run.step()


def played(kit: Kit, one_epoch: Loop) -> dict[str, str]:
    run = kit.run(incumbent(CHOSEN), batch_sizes=[32, CHOSEN], default_batch_size=CHOSEN)

    def fn(run: ZeusRun) -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in run.epochs():
            one_epoch(run, model, optimizer)
            run.report(acc=0.5 * epoch)

    run.train(fn)
    (end,) = [line for line in kit.lines if line.kind == "end"]
    assert end.state is State.CONVERGED
    return dict(end.observation.reasons)


@pytest.mark.parametrize("one_epoch", [untold, told_of_32, told_of_512])
def test_a_bypassed_loader_is_said_in_the_log_with_the_remedy(
    kit: Kit, one_epoch: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        why = played(kit, one_epoch)[BATCH_SIZE]
    assert str(CHOSEN) in why
    (said,) = [r.getMessage() for r in caplog.records if TELL_STEPS in r.getMessage()]
    assert why in said


@pytest.mark.parametrize(
    "one_epoch",
    [
        our_loader,
        accumulated,
        two_optimizers,
        small_slice,
        sizes_that_vary,
        without_torch,
    ],
)
def test_what_may_be_right_is_left_alone(
    kit: Kit, one_epoch: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    assert BATCH_SIZE not in played(kit, one_epoch)
    assert TELL_STEPS not in caplog.text


def test_a_torch_that_refuses_the_hook_fails_no_training(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(hook: object) -> None:
        raise RuntimeError("no hooks here")

    monkeypatch.setattr(TORCH_OPTIMIZER, "register_optimizer_step_post_hook", refuse)
    assert BATCH_SIZE in played(kit, told_of_32)


def test_before_an_epoch_has_ended_nothing_is_said() -> None:
    assert BatchSizeCheck(CHOSEN).why_not_used(0, 0, None) is None
    assert BatchSizeCheck(CHOSEN).why_not_used(0, 1, None) is not None


def test_an_epoch_shows_its_size_from_two_batches_on() -> None:
    check = BatchSizeCheck(CHOSEN)
    epoch = EpochSteps(
        samples=2 * CHOSEN, is_told=False, optimizer_steps=8, of_all_optimizers=8, drawn={32: 8}
    )
    assert check.why_not_in(epoch) is not None
    assert check.why_not_in(epoch._replace(samples=2 * CHOSEN - 1)) is None


@pytest.mark.parametrize(
    ("target", "metric", "said"),
    [("acc >= 90 %", 0.95, 1), ("acc >= 90", 0.95, 1), ("acc >= 0.9", 0.95, 0)],
)
def test_per_cent_against_a_share_is_said_once(
    kit: Kit, target: str, metric: float, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = kit.run(target=target)

    def fn(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.step()
            run.report(acc=metric)

    run.train(fn)
    assert caplog.text.count("in the unit of the target") == said


def test_a_target_in_the_wrong_direction_is_said_once_and_before_its_unit(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.step()
            run.report(acc=0.9)

    kit.run(explore(64), incumbent(32), target="acc <= 0.2", max_epochs=2).train(fn)
    assert caplog.text.count("Training should make acc rise, and the target acc <= 0.2") == 1
    assert caplog.text.count('Remedy: write "acc >= 0.2"') == 1
    assert "looks like" not in caplog.text
    assert len(kit.ends()) == 2, "each attempt has reported it"
