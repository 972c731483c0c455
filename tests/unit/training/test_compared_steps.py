"""Steps that are told or counted are compared with torch's own optimizer steps,
and with the samples that it drew.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    OF_OUTSIDE,
    TELL_EPOCHS,
    TELL_STEPS,
    State,
)
from airflow_provider_zeus.reports.job_remarks import remarks
from airflow_provider_zeus.training.attempt_checks import BatchSizeCheck, EpochSteps
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.plugin.kit import trial
from tests.unit.training.conftest import Kit, incumbent

B = 32
N = 1280


def data(n: int = N) -> TensorDataset:
    return TensorDataset(torch.randn(n, 4), torch.randn(n, 1))


DATA = data()


class Net:
    """A model and its optimizer."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-4)

    def backward(self, batch: Any) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss

    def fit(self, batch: Any) -> int:
        self.backward(batch)
        self.step()
        return len(batch[0])

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


Loop = Callable[[ZeusRun, Net], None]


def accumulated_over_ours(run: ZeusRun, net: Net) -> None:
    for index, batch in enumerate(run.data_loader(DATA)):
        net.backward(batch)
        if index % 4 == 3:
            net.step()


def accumulated_by_accelerate(run: ZeusRun, net: Net) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(
        net.model, net.optimizer, DataLoader(DATA, batch_size=B)
    )
    for x, y in run.data_loader(loader):
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def in_four_steps(run: ZeusRun, net: Net) -> None:
    for x, y in run.data_loader(DATA):
        for part in zip(x.split(8), y.split(8), strict=True):
            net.fit(part)


def beside_step(run: ZeusRun, net: Net) -> None:
    for batch in DataLoader(DATA, batch_size=8):
        net.fit(batch)
        run.step()


def beside_named_step(run: ZeusRun, net: Net) -> None:
    for batch in DataLoader(DATA, batch_size=128, num_workers=1):
        net.fit(batch)
        run.step(run.batch_size)


def fixed(run: ZeusRun, net: Net) -> None:
    for batch in DataLoader(DATA, batch_size=40):
        net.fit(batch)


def fixed_and_told(run: ZeusRun, net: Net) -> None:
    for batch in DataLoader(DATA, batch_size=40):
        run.step(net.fit(batch))


def told_twice(run: ZeusRun, net: Net) -> None:
    for batch in run.data_loader(DATA):
        run.step(net.fit(batch))


def told_once_for_two(run: ZeusRun, net: Net) -> None:
    for index, batch in enumerate(DataLoader(DATA, batch_size=B)):
        net.fit(batch)
        if index % 2:
            run.step()


WRONG: dict[Loop, int] = {
    accumulated_over_ours: 128,
    accumulated_by_accelerate: 128,
    in_four_steps: 8,
    beside_step: 8,
    beside_named_step: 128,
    fixed: 40,
    fixed_and_told: 40,
    told_twice: 64,
    told_once_for_two: 16,
}


def ours(run: ZeusRun, net: Net) -> None:
    for batch in run.data_loader(DATA):
        net.fit(batch)


def with_a_short_last_batch(run: ZeusRun, net: Net) -> None:
    for batch in run.data_loader(data(2 * B + 1)):
        net.fit(batch)


def of_two_data_sets(run: ZeusRun, net: Net) -> None:
    for each in (data(B + 2), data(B + 3)):
        for batch in run.data_loader(each):
            net.fit(batch)


def a_slice_below_two_batches(run: ZeusRun, net: Net) -> None:
    for batch in DataLoader(data(2 * B - 1), batch_size=8):
        run.step(net.fit(batch))


def sizes_that_vary(run: ZeusRun, net: Net) -> None:
    at = 0
    for size in (10, 120, 30, 90, 200, 60, 250, 300, 220):
        run.step(net.fit(DATA[at : at + size]))
        at += size


def in_four_steps_over_a_loader_of_their_sum(run: ZeusRun, net: Net) -> None:
    for x, y in DataLoader(DATA, batch_size=4 * B):
        for part in zip(x.split(B), y.split(B), strict=True):
            net.fit(part)


def in_parts(run: ZeusRun, net: Net) -> None:
    for x, y in run.data_loader(DATA):
        for part in zip(x.split(8), y.split(8), strict=True):
            net.backward(part)
        net.step()


def told_by_part(run: ZeusRun, net: Net) -> None:
    for index, batch in enumerate(DataLoader(DATA, batch_size=8)):
        net.backward(batch)
        run.step(8)
        if index % 4 == 3:
            net.step()


def with_a_part_left_over(run: ZeusRun, net: Net) -> None:
    """Of ten parts eight make two steps, and two wait for the next epoch."""
    for index, batch in enumerate(DataLoader(data(80), batch_size=8)):
        net.backward(batch)
        run.step(8)
        if index % 4 == 3:
            net.step()


def in_parts_by_accelerate(run: ZeusRun, net: Net) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(
        net.model, net.optimizer, DataLoader(DATA, batch_size=8)
    )
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def scaled(run: ZeusRun, net: Net) -> None:
    """Mixed precision: the scaler leaves many steps out until its scale is small enough."""
    for x, y in run.data_loader(DATA):
        loss = 1e9 * torch.nn.functional.mse_loss(net.model(x), y)
        net.scaler.scale(loss).backward()
        net.scaler.step(net.optimizer)
        net.scaler.update()
        net.optimizer.zero_grad()


def of_two_optimizers(run: ZeusRun, net: Net) -> None:
    """One steps after each batch, the other one after every fifth."""
    other = Net()
    for index, batch in enumerate(run.data_loader(DATA)):
        net.fit(batch)
        if index % 5 == 4:
            other.fit(batch)


def cut_by_hand(run: ZeusRun, net: Net) -> None:
    """Without a loader of torch: a validation by one shows nothing of the training."""
    for at in range(0, N, B):
        run.step(net.fit(DATA[at : at + B]))
    for batch in DataLoader(DATA, batch_size=7):
        net.model(batch[0])


def by_turns(run: ZeusRun, net: Net) -> None:
    """Of two optimizers, each steps after every other batch."""
    other = Net()
    for index, batch in enumerate(run.data_loader(DATA)):
        (net, other)[index % 2].fit(batch)


def with_another_optimizer(run: ZeusRun, net: Net) -> None:
    """Within an epoch another optimizer takes over, as after layers are unfrozen."""
    for index, batch in enumerate(run.data_loader(DATA)):
        if index == 20:
            net.optimizer = torch.optim.SGD(net.model.parameters(), lr=1e-4)
        net.fit(batch)


def with_a_probe(run: ZeusRun, net: Net) -> None:
    """Each epoch is validated by a model that is trained for it,
    in more steps than the training has.
    """
    ours(run, net)
    probe = Net()
    for batch in DataLoader(DATA, batch_size=8):
        probe.fit(batch)


def validated_within(run: ZeusRun, net: Net) -> None:
    """Two passes, and steps that are told between them."""
    for batch in run.data_loader(DATA):
        net.fit(batch)
    for at in range(0, N, B):
        run.step(net.fit(DATA[at : at + B]))


RIGHT: tuple[Loop, ...] = (
    by_turns,
    with_another_optimizer,
    with_a_probe,
    validated_within,
    ours,
    with_a_short_last_batch,
    of_two_data_sets,
    a_slice_below_two_batches,
    sizes_that_vary,
    in_four_steps_over_a_loader_of_their_sum,
    in_parts,
    told_by_part,
    with_a_part_left_over,
    in_parts_by_accelerate,
    scaled,
    of_two_optimizers,
    cut_by_hand,
)


def played(kit: Kit, one_epoch: Loop, epochs: int = 3) -> dict[str, str]:
    run = kit.run(incumbent(B), batch_sizes=[B, 128], default_batch_size=B)

    def fn(run: ZeusRun) -> None:
        net = Net()
        for epoch in run.epochs():
            one_epoch(run, net)
            run.report(acc=float(epoch == epochs - 1))

    run.train(fn)
    assert kit.ends()[-1].state is State.CONVERGED
    return dict(kit.last().reasons)


@pytest.mark.parametrize("one_epoch", WRONG)
def test_steps_of_another_size_are_said_once_and_at_the_first_epoch(
    kit: Kit, one_epoch: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    said_by_epoch: list[int] = []

    def watched(run: ZeusRun, net: Net) -> None:
        said_by_epoch.append(caplog.text.count(TELL_STEPS))
        one_epoch(run, net)

    with caplog.at_level(logging.WARNING):
        why = played(kit, watched)[BATCH_SIZE]
    size = WRONG[one_epoch]
    assert why == f"its steps had {size} samples each, and not the 32 of the chosen batch size"
    assert said_by_epoch == [0, 1, 1]
    assert caplog.text.count(why) == 1


@pytest.mark.parametrize("size", [8, 128])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_whose_size_changes_after_the_first_epoch_is_said(
    kit: Kit, size: int, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside ``run.step()``, which tells the chosen size all the same."""
    sizes = iter([B, size, B])

    def one_epoch(run: ZeusRun, net: Net) -> None:
        for batch in DataLoader(DATA, batch_size=next(sizes), num_workers=workers):
            net.fit(batch)
            run.step()

    why = played(kit, one_epoch)[BATCH_SIZE]
    assert why == f"its steps had {size} samples each, and not the 32 of the chosen batch size"
    assert caplog.text.count(why) == 1


@pytest.mark.parametrize("size", [30, 34])
def test_a_loader_of_nearly_the_chosen_size_after_the_first_epoch_teaches(
    kit: Kit, size: int
) -> None:
    sizes = iter([B, size, size])

    def one_epoch(run: ZeusRun, net: Net) -> None:
        for batch in DataLoader(DATA, batch_size=next(sizes)):
            net.fit(batch)
            run.step()

    assert BATCH_SIZE not in played(kit, one_epoch)


@pytest.mark.parametrize("one_epoch", RIGHT)
def test_steps_that_may_be_of_the_chosen_size_teach(
    kit: Kit, one_epoch: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    assert BATCH_SIZE not in played(kit, one_epoch)
    assert "teaches nothing" not in caplog.text


def test_steps_of_deepspeed_are_not_compared(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes one step of torch for each group of parameters; this machine has none of it."""
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))

    def one_epoch(run: ZeusRun, net: Net) -> None:
        for batch in run.data_loader(DATA):
            net.fit(batch)
            net.optimizer.step()

    assert BATCH_SIZE not in played(kit, one_epoch)


def statistics(run: ZeusRun, net: Net) -> None:
    """A pass over the data of which nothing is learned, by a loader that counts."""
    for x, _ in run.data_loader(DATA):
        x.mean()


@pytest.mark.parametrize(("one_epoch", "size"), [(accumulated_over_ours, 128), (ours, None)])
def test_an_attempt_that_ends_within_its_first_epoch_is_compared_too(
    kit: Kit, one_epoch: Loop, size: int | None
) -> None:
    run = kit.run(incumbent(B), batch_sizes=[B, 128], default_batch_size=B)

    def fn(run: ZeusRun) -> None:
        for _ in run.epochs():
            one_epoch(run, Net())
            raise ValueError("its data end")

    with pytest.raises(ValueError, match="its data end"):
        run.train(fn)
    why = kit.last().reasons.get(BATCH_SIZE)
    if size is None:
        assert why is None
    else:
        assert why == f"its steps had {size} samples each, and not the 32 of the chosen batch size"


def test_the_scaler_is_torchs_own_again_after_a_run(kit: Kit) -> None:
    before = torch.amp.GradScaler.step
    played(kit, scaled)
    assert torch.amp.GradScaler.step is before


def told_pass(run: ZeusRun, net: Net) -> None:
    for batch in DataLoader(DATA, batch_size=B):
        run.step(net.fit(batch))


@pytest.mark.parametrize("one_pass", [ours, told_pass])
@pytest.mark.parametrize("outside", [None, statistics], ids=["trains", "looks"])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_steps_outside_of_the_epochs_are_said_once(
    kit: Kit, one_pass: Loop, outside: Loop | None, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    outside = outside or one_pass
    run = kit.run(incumbent(B), batch_sizes=[B, 128], default_batch_size=B)
    why = {
        "before": f"2,560 samples count in epoch 0, 1,280 of them from before it{OF_OUTSIDE}",
        "between": f"2,560 samples count in epoch 1, 1,280 of them from before it{OF_OUTSIDE}",
        "after": f"1,280 samples were counted after epoch 1{OF_OUTSIDE}",
    }[when]

    def fn(run: ZeusRun) -> None:
        net = Net()
        if when == "before":
            outside(run, net)
        for epoch in run.epochs():
            one_pass(run, net)
            run.report(acc=float(epoch == 1))
            if when == "between" and epoch == 0:
                outside(run, net)
        if when == "after":
            outside(run, net)

    run.train(fn)
    assert kit.last().reasons[BATCH_SIZE] == why
    assert caplog.text.count(TELL_EPOCHS) == 1
    assert TELL_STEPS not in caplog.text


def test_a_few_steps_outside_of_the_epochs_change_little(kit: Kit) -> None:
    run = kit.run(incumbent(B), batch_sizes=[B, 128], default_batch_size=B)

    def fn(run: ZeusRun) -> None:
        net = Net()
        run.step(net.fit(DATA[:B]))
        for _ in run.epochs():
            told_pass(run, net)
            run.report(acc=1.0)
        run.step(net.fit(DATA[:B]))

    run.train(fn)
    assert BATCH_SIZE not in kit.last().reasons


def test_steps_of_another_package_are_compared_with_none_of_torchs(kit: Kit) -> None:
    run = kit.run(incumbent(B), batch_sizes=[B, 128], default_batch_size=B)

    def fn(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in range(N // B):
                run.step(B)
            run.report(acc=1.0)

    run.train(fn)
    assert kit.last().epochs == 1
    assert BATCH_SIZE not in kit.last().reasons


@pytest.mark.parametrize(
    ("steps", "is_wrong"), [(40, False), (44, False), (36, False), (46, True), (34, True)]
)
def test_ten_per_cent_is_the_bound(steps: int, is_wrong: bool) -> None:
    epoch = EpochSteps(samples=N, optimizer_steps=steps)
    assert (BatchSizeCheck(B).why_not_in(epoch) is not None) == is_wrong


@pytest.mark.parametrize(("in_epoch", "is_wrong"), [(4 * B - 1, False), (4 * B, True)])
def test_the_size_of_counted_steps_shows_in_epochs_of_two_such_steps(
    in_epoch: int, is_wrong: bool
) -> None:
    """In a shorter one the last batch, of any size, is all of it or half of its steps."""
    check = BatchSizeCheck(B)
    for _ in range(10):
        check.add(2 * B)
    assert (check.why_not_used(20 * B, 5, in_epoch) is not None) == is_wrong


def test_batches_that_a_thread_loads_in_advance_are_of_the_size_of_the_steps() -> None:
    """However many of them it draws between two steps: here five, five and two and a half."""
    check = BatchSizeCheck(16)
    for size in (80, 80, 40):
        check.add(size)
    drawn = {80: 2, 40: 1}
    epoch = EpochSteps(samples=200, is_told=False, optimizer_steps=13, of_all_optimizers=13)
    assert check.why_not_in(epoch._replace(drawn=drawn)) is None
    assert check.why_not_used(200, 1, 200.0) is None
    other = BatchSizeCheck(16)
    for size in (80, 80, 40):
        other.add(size)
    assert other.why_not_in(epoch._replace(drawn=drawn, optimizer_steps=3)) is not None


def told_of_target(kit: Kit, *metrics: float, start: Start | None = None, resumed: int = 0) -> None:
    """A run on "acc >= 0.9" whose epochs report these metrics."""
    planned = replace(incumbent(B), start=start)
    run = kit.run(planned, batch_sizes=[B, 128], default_batch_size=B)

    def fn(run: ZeusRun) -> None:
        if resumed:
            run.resumed(epochs=resumed)
        net = Net()
        for epoch, metric in zip(run.epochs(), metrics, strict=False):
            ours(run, net)
            run.report(acc=metric)
            assert epoch < len(metrics) + resumed

    run.train(fn)


AT_ONCE = "Acc 0.95 reaches the target (acc >= 0.9) at once. Remedy: if that is not meant, "


def test_a_target_that_the_first_report_reaches_is_a_remark_in_the_words_of_the_page(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told_of_target(kit, 0.95)
    assert caplog.text.count(AT_ONCE) == 1
    seen = kit.last()
    newest = replace(trial(1, "r1"), spec=kit.runs[-1].job.to_dict(), observation=seen)
    (remark,) = remarks([newest])
    assert f"Zeus: {remark.text}" in caplog.text
    assert BATCH_SIZE not in seen.reasons, "it teaches all the same"


@pytest.mark.parametrize(
    ("metrics", "start", "resumed"),
    [((0.5, 0.95), None, 0), ((0.95,), Start.WARM, 0), ((0.95,), None, 2)],
)
def test_a_target_that_is_reached_later_or_from_an_earlier_model_is_no_remark(
    kit: Kit,
    metrics: tuple[float, ...],
    start: Start | None,
    resumed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told_of_target(kit, *metrics, start=start, resumed=resumed)
    assert "at once" not in caplog.text


def test_the_rate_that_torchs_optimizer_begins_with_is_written_down(kit: Kit) -> None:
    def one_epoch(run: ZeusRun, net: Net) -> None:
        schedule = torch.optim.lr_scheduler.LinearLR(net.optimizer, start_factor=0.1)
        ours(run, net)
        schedule.step()

    played(kit, one_epoch)
    assert kit.last().learning_rate == pytest.approx(1e-3), "without its warm-up"


@pytest.mark.parametrize(("rule", "written"), [("linear", 1e-3), ("none", None)])
def test_a_rate_that_is_meant_for_every_size_is_not_compared(
    kit: Kit, rule: str, written: float | None
) -> None:
    def one_epoch(run: ZeusRun, net: Net) -> None:
        run.scale_lr(1e-3, rule)
        ours(run, net)

    played(kit, one_epoch)
    assert kit.last().learning_rate == written
