"""An own ``DataLoader(batch_size=run.batch_size)`` and torch's optimizers: nothing is told,
and the run teaches.
"""

from __future__ import annotations

import importlib
import itertools
import subprocess
import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)

from airflow_provider_zeus.model.trial import BATCH_SIZE, TELL_STEPS, State
from airflow_provider_zeus.training.interrupts import AttemptOver
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop

# twelve batches of 16 and one of 8
B = 16
N = 200
DATA = TensorDataset(torch.randn(N, 4), torch.randn(N, 1))
HOOKS = importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks


class Net:
    """A model, its optimizer, and what a loop keeps from epoch to epoch."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.kept: dict[str, Any] = {}

    def fit(self, x: torch.Tensor, y: torch.Tensor, *, step: bool = True) -> None:
        torch.nn.functional.mse_loss(self.model(x), y).backward()
        if step:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine = range(N) if worker is None else range(worker.id, N, worker.num_workers)
        return (DATA[index] for index in mine)


Loop = Callable[[ZeusRun, Net], None]


def over(data: Any = DATA, **options: Any) -> Loop:
    def one_epoch(run: ZeusRun, net: Net) -> None:
        if "loader" not in net.kept:
            net.kept["loader"] = DataLoader(data, **{"batch_size": run.batch_size, **options})
        for x, y in net.kept["loader"]:
            net.fit(x, y)

    return one_epoch


class Endless:
    """A batch sampler that never ends: a loader keeps its workers by it, as timm's and YOLO's."""

    def __init__(self, batches: Any) -> None:
        self.sampler = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


def one_iterator(run: ZeusRun, net: Net) -> None:
    if "batches" not in net.kept:
        whole = BatchSampler(RandomSampler(DATA), run.batch_size, drop_last=False)
        net.kept["batches"] = iter(DataLoader(DATA, batch_sampler=Endless(whole), num_workers=1))
    for x, y in itertools.islice(net.kept["batches"], 13):
        net.fit(x, y)


def validated(run: ZeusRun, net: Net) -> None:
    """A validation of larger batches in between, left by ``break``, and one behind the epoch."""
    valid = net.kept.setdefault(
        "valid", DataLoader(DATA, batch_size=64, num_workers=1, persistent_workers=True)
    )
    for index, (x, y) in enumerate(DataLoader(DATA, batch_size=run.batch_size)):
        net.fit(x, y)
        for _ in valid if index == 5 else ():
            break
    for _ in valid:
        pass


def all_in_advance(run: ZeusRun, net: Net) -> None:
    for x, y in list(DataLoader(DATA, batch_size=run.batch_size)):
        net.fit(x, y)


def accumulated(run: ZeusRun, net: Net) -> None:
    for index, (x, y) in enumerate(DataLoader(DATA, batch_size=4)):
        net.fit(x, y, step=index % 4 == 3 or index == N // 4 - 1)


def scaled(run: ZeusRun, net: Net) -> None:
    """Mixed precision: the first step overflows, and the scaler leaves it out."""
    scaler = net.kept.setdefault(
        "scaler", torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    )
    for x, y in DataLoader(DATA, batch_size=run.batch_size):
        scaler.scale(1000 * torch.nn.functional.mse_loss(net.model(x), y)).backward()
        scaler.step(net.optimizer)
        scaler.update()
        net.optimizer.zero_grad()


def adversarial(run: ZeusRun, net: Net) -> None:
    """Two optimizers: the second one steps after each, and after every fifth batch."""
    other, rare = net.kept.setdefault("others", (Net(), Net()))
    for index, (x, y) in enumerate(DataLoader(DATA, batch_size=run.batch_size)):
        net.fit(x, y)
        other.fit(x, y)
        if index % 5 == 4:
            rare.fit(x, y)


def endless(run: ZeusRun, net: Net) -> None:
    loader = DataLoader(DATA, batch_size=run.batch_size)
    for _ in range(13):
        net.kept["batches"] = batches = net.kept.get("batches") or iter(loader)
        try:
            batch = next(batches)
        except StopIteration:
            net.kept["batches"] = iter(loader)
            batch = next(net.kept["batches"])
        net.fit(*batch)


def drawn_anew(run: ZeusRun, net: Net) -> None:
    for _ in range(12):
        net.fit(*next(iter(DataLoader(DATA, batch_size=run.batch_size))))
    net.fit(*next(iter(DataLoader(DATA, batch_size=8))))


def in_advance(run: ZeusRun, net: Net) -> None:
    """A thread loads the batches."""
    queue: Queue[Any] = Queue(4)

    def load() -> None:
        for batch in DataLoader(DATA, batch_size=run.batch_size):
            queue.put(batch)
        queue.put(None)

    threading.Thread(target=load, daemon=True).start()
    for x, y in iter(queue.get, None):
        net.fit(x, y)


def accelerated(run: ZeusRun, net: Net) -> None:
    """Accelerate's loader is a batch ahead."""
    accelerate = pytest.importorskip("accelerate")
    if "loader" not in net.kept:
        accelerator = accelerate.Accelerator(cpu=True)
        net.kept["loader"] = accelerator.prepare(DataLoader(DATA, batch_size=run.batch_size))
    for x, y in net.kept["loader"]:
        net.fit(x, y)


def side_by_side(run: ZeusRun, net: Net) -> None:
    unlabelled = DataLoader(TensorDataset(torch.randn(7 * N, 4)), batch_size=7 * run.batch_size)
    for (x, y), _ in zip(DataLoader(DATA, batch_size=run.batch_size), unlabelled, strict=True):
        net.fit(x, y)


def looked_at(run: ZeusRun, net: Net) -> None:
    loader = DataLoader(DATA, batch_size=run.batch_size)
    next(iter(loader))
    for x, y in loader:
        net.fit(x, y)


def told(run: ZeusRun, net: Net) -> None:
    for x, y in DataLoader(DATA, batch_size=run.batch_size):
        net.fit(x, y)
        run.step(len(x))


def told_rarely(run: ZeusRun, net: Net) -> None:
    """The author tells a step where five critics were trained, so those do not count beside it."""
    for index, (x, y) in enumerate(DataLoader(DATA, batch_size=run.batch_size)):
        net.fit(x, y)
        if index % 5 == 4 or index == 12:
            run.step(100 if index == 4 else 50)


def own_hook(run: ZeusRun, net: Net) -> None:
    """The author tells each step from a hook of torch."""
    if "hook" not in net.kept:
        net.kept["hook"] = net.optimizer.register_step_post_hook(
            lambda *_: run.step(net.kept["size"])
        )
    for x, y in DataLoader(DATA, batch_size=run.batch_size):
        net.kept["size"] = len(x)
        net.fit(x, y)


LOOPS: dict[str, Loop] = {
    "data set": over(shuffle=True),
    "workers": over(num_workers=2),
    "persistent workers": over(num_workers=2, persistent_workers=True),
    "stream": over(Stream()),
    "batch sampler": over(batch_sampler=BatchSampler(RandomSampler(DATA), B, drop_last=False), batch_size=1),
    "whole batches": over(sampler=BatchSampler(RandomSampler(DATA), B, drop_last=False), batch_size=None),
} | {f.__name__: f for f in (
    one_iterator, validated, accumulated, scaled, adversarial, endless, drawn_anew, in_advance, all_in_advance,
    accelerated, side_by_side, looked_at, told, told_rarely, own_hook,
)}  # fmt: skip


def played(kit: Kit, one_epoch: Loop, epochs: int = 3, **job: Any) -> Any:
    before = len(HOOKS)
    run = kit.run(incumbent(B), **{"batch_sizes": [B, 64], "default_batch_size": B, **job})

    def fn(run: ZeusRun) -> None:
        net = Net()
        for epoch in run.epochs():
            one_epoch(run, net)
            run.report(acc=float(epoch == epochs - 1))

    run.train(fn)
    assert len(HOOKS) <= before
    return kit.last()


@pytest.mark.parametrize("name", LOOPS)
def test_what_torch_shows_counts_once(kit: Kit, name: str) -> None:
    seen = played(kit, LOOPS[name])
    assert (seen.samples, seen.samples_per_epoch, seen.epochs) == (3 * N, N, 3.0)
    assert seen.reasons.get(BATCH_SIZE) is None


def test_a_last_batch_that_is_dropped_does_not_count(kit: Kit) -> None:
    assert played(kit, over(drop_last=True)).samples == 3 * 192


def test_validation_is_no_training(kit: Kit) -> None:
    def one_epoch(run: ZeusRun, net: Net) -> None:
        over()(run, net)
        run.device.on_step(64 * B)

    seen = played(kit, one_epoch, mode="measure")
    assert seen.rest_s == pytest.approx(3 * kit.gpu.load.step(kit.gpu.chip, 64 * B, 250.0)[0])


@pytest.mark.parametrize("swallows", [False, True])
def test_an_exploration_is_given_up_within_an_epoch(kit: Kit, swallows: bool) -> None:
    steps: list[int] = []
    swallowed: list[AttemptOver] = []

    def fn(run: ZeusRun) -> int:
        if run.attempt == 2:
            return loop(run, epochs=1)
        net = Net()
        large = TensorDataset(torch.zeros(64_000, 4), torch.zeros(64_000, 1))
        for _ in run.epochs():
            for x, y in DataLoader(large, batch_size=64):
                try:
                    net.fit(x, y)
                except AttemptOver as over:
                    if not swallows or swallowed:
                        raise
                    swallowed.append(over)
                steps.append(len(x))
        return 0

    run = kit.run(
        explore(64, bound_cost=50.0), incumbent(B), batch_sizes=[B, 64], default_batch_size=B
    )
    assert run.train(fn) == B
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]
    assert len(swallowed) == swallows
    assert 0 < len(steps) < 100


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_loader_of_a_fixed_size_teaches_nothing(kit: Kit, size: int, ahead: bool) -> None:
    def one_epoch(run: ZeusRun, net: Net) -> None:
        loader = DataLoader(
            TensorDataset(torch.randn(640, 4), torch.randn(640, 1)), batch_size=size
        )
        if ahead:
            loader = pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(loader)
        for x, y in loader:
            net.fit(x, y)

    seen = played(kit, one_epoch)
    assert (
        seen.reasons[BATCH_SIZE]
        == f"its steps had {size} samples each, and not the 16 of the chosen batch size"
    )
    assert seen.samples == 3 * 640


def sliced(run: ZeusRun, net: Net) -> None:
    for x, y in zip(*(tensor.split(run.batch_size) for tensor in DATA.tensors), strict=True):
        net.fit(x, y)


def sliced_after_validation(run: ZeusRun, net: Net) -> None:
    for _ in DataLoader(TensorDataset(torch.randn(60, 4)), batch_size=60):
        pass
    for x, y in zip(*(tensor.split(4) for tensor in DATA.tensors), strict=True):
        net.fit(x, y)


def sliced_between_validations(run: ZeusRun, net: Net) -> None:
    sliced_after_validation(run, net)
    for _ in DataLoader(TensorDataset(torch.randn(60, 4)), batch_size=15):
        pass


def by_hand(run: ZeusRun, net: Net) -> None:
    for x, y in DataLoader(DATA, batch_size=run.batch_size):
        net.fit(x, y, step=False)


def cycled(run: ZeusRun, net: Net) -> None:
    """Only the first epoch draws batches."""
    net.kept.setdefault("cycle", itertools.cycle(DataLoader(DATA, batch_size=run.batch_size)))
    for _ in range(13):
        net.fit(*next(net.kept["cycle"]))


def cycled_ours(run: ZeusRun, net: Net) -> None:
    net.kept.setdefault("cycle", itertools.cycle(run.data_loader(DATA)))
    for _ in range(13):
        net.fit(*next(net.kept["cycle"]))


@pytest.mark.parametrize(
    ("one_epoch", "why"),
    [
        (sliced, "no step was counted"),
        (sliced_after_validation, "torch made more steps than batches were drawn for"),
        (sliced_between_validations, "torch made more steps than batches were drawn for"),
        (by_hand, "no step was counted"),
        (cycled, "torch made steps in epoch 1, and no batch was drawn for them"),
        (cycled_ours, "torch made steps in epoch 1, and no batch was drawn for them"),
    ],
)
def test_what_torch_does_not_show_has_one_line_as_its_remedy(
    kit: Kit, one_epoch: Loop, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert played(kit, one_epoch, epochs=2).reasons[BATCH_SIZE].startswith(why)
    assert caplog.text.count(TELL_STEPS) == 1


def test_nothing_counts_outside_of_an_epoch(kit: Kit) -> None:
    def fn(run: ZeusRun) -> None:
        net = Net()
        over()(run, net)
        for epoch in run.epochs():
            over()(run, net)
            run.report(acc=float(epoch == 1))
            over()(run, net)

    kit.run(incumbent(B), batch_sizes=[B, 64], default_batch_size=B).train(fn)
    assert (kit.last().samples, kit.last().epochs) == (2 * N, 2.0)


def test_a_run_that_was_left_unfinished_hears_nothing_of_the_next_one(kit: Kit) -> None:
    left = kit.run(incumbent(B), batch_sizes=[B, 64], default_batch_size=B)
    next(left.epochs())
    assert played(kit, over()).samples == 3 * N
    left.close()
    assert kit.last().samples == 0


def test_several_processes_count_their_own_share(kit: Kit) -> None:
    run = kit.rank(0)
    live = run.progress.begin()
    live._begin_epoch()
    net = Net()
    for x, y in DataLoader(DATA, batch_size=100):
        net.fit(x, y)
    live._end_epoch()
    live.stop()
    assert live.snapshot.samples == 2 * N


def test_torch_is_not_imported_for_it(
    kit: Kit, script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = (
        "import sys\n"
        "from airflow_provider_zeus.training.run import ZeusRun\n"
        "def train(run):\n"
        "    batches = run.data_loader([0.0] * run.batch_size for _ in range(3))\n"
        "    for _ in run.epochs():\n"
        "        print(sum(len(batch) for batch in batches)); run.report(acc=1.0)\n"
        "ZeusRun.from_env().train(train)\n"
        "print('torch' in sys.modules)\n"
    )
    done = script(code, kit.plan())
    assert done.stdout.split() == ["768", "False"], done.stderr
