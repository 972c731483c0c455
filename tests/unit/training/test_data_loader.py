"""``run.data_loader``: real torch loaders of every kind,
and what each pass reports to the run handle.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
)
from torch.utils.data import TensorDataset as Tensors

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training import data_loader as loader
from airflow_provider_zeus.training.data_loader import ZeusDataLoader
from airflow_provider_zeus.training.interrupts import AttemptOver
from airflow_provider_zeus.training.run import ZeusRun
from tests.golden import Table
from tests.unit.training.conftest import SAMPLES, Kit, RealClock, explore, incumbent, loop

N = 600  # 256 + 256 + 88


class Numbers(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        return torch.as_tensor(index, dtype=torch.float32)


class Named(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((3,), float(index)), "name": str(index)}


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Foreign:
    """A loader of another library: iterable, not indexed, its length not known."""

    def __init__(self, batch_size: int | None, size: int = 256) -> None:
        self.size = batch_size or size
        if batch_size:
            self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        parts = torch.arange(N).split(self.size)
        return ((part, part.float()) for part in parts)


class Sized(Foreign):
    """As FFCV's."""

    def __len__(self) -> int:
        return -(-N // self.size)


class Dali(Foreign):
    """As NVIDIA DALI's: its own iterator, which begins again by itself,
    and gives lists of dictionaries.
    """

    batches: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.batches = self.batches or super().__iter__()
        for x, _ in self.batches:
            return [{"data": x.expand(2, -1).T, "label": x}]
        self.batches = None
        raise StopIteration


class Whole(IterableDataset):
    """A stream that gives whole batches."""

    def __iter__(self) -> Iterator[Any]:
        return ([x.expand(4, -1).T, x.float()] for x, _ in Foreign(256))


class WebLoader(IterableDataset):
    """As webdataset's: a stream around a torch loader."""

    def __init__(self) -> None:
        self.pipeline = [DataLoader(Whole(), batch_size=None)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipeline[0])


class Group(Sampler):
    """Batches of the author's own, as of images with like shapes."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(256)), list(range(256, 400)), list(range(400, 420))])

    def __len__(self) -> int:
        return 3


class SizedGroup(Group):
    batch_size = 256


def detection(**how: Any) -> DataLoader[Any]:
    """Batches that tell nothing of their size: a tuple of images, and one of boxes."""
    data = [(torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4)})] * N
    return DataLoader(data, collate_fn=lambda items: tuple(zip(*items, strict=True)), **how)


def tensors() -> Tensors:
    return Tensors(torch.arange(N), torch.zeros(N, 4))


def whole_batches() -> dict[str, Any]:
    return {"sampler": BatchSampler(RandomSampler(Numbers()), batch_size=256, drop_last=False)}


KINDS: dict[
    str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], list[int], float | None]
] = {
    "data set": (Numbers, dict, [256, 256, 88], 600.0),
    "tensors": (tensors, lambda: {"shuffle": True}, [256, 256, 88], 600.0),
    "drop_last": (tensors, lambda: {"drop_last": True}, [256, 256], 512.0),
    "list": (lambda: list(range(N)), dict, [256, 256, 88], 600.0),
    "dict batches": (Named, dict, [256, 256, 88], 600.0),
    "own loader": (lambda: DataLoader(tensors(), batch_size=256), dict, [256, 256, 88], 600.0),
    "workers": (tensors, lambda: {"num_workers": 1}, [256, 256, 88], 600.0),
    "stream": (Stream, dict, [256, 256, 88], None),
    "part": (Numbers, lambda: {"sampler": SubsetRandomSampler(range(300))}, [256, 44], 300.0),
    "batches of indices": (tensors, whole_batches, [256, 256, 88], 600.0),
    "batch_sampler": (
        Numbers,
        lambda: {"batch_sampler": whole_batches()["sampler"]},
        [256, 256, 88],
        600.0,
    ),
    "given size": (Numbers, lambda: {"batch_size": 256}, [256, 256, 88], 600.0),
    "another library's": (lambda: Foreign(256), dict, [256, 256, 88], None),
    "its size not said": (lambda: Foreign(None), dict, [256, 256, 88], None),
    "with a length": (lambda: Sized(256), dict, [256, 256, 88], None),
    "its own iterator": (lambda: Dali(256), dict, [256, 256, 88], None),
    "stream around a loader": (WebLoader, dict, [256, 256, 88], None),
    "stream of batches": (Whole, lambda: {"batch_size": None}, [256, 256, 88], None),
    "own batches": (Numbers, lambda: {"batch_sampler": SizedGroup()}, [256, 144, 20], 600.0),
    "detection": (lambda: detection(batch_sampler=SizedGroup()), dict, [256, 144, 20], 600.0),
    "detection, size not said": (
        lambda: detection(batch_sampler=Group()),
        dict,
        [256, 144, 20],
        600.0,
    ),
    "detection, workers": (
        lambda: detection(batch_sampler=Group(), num_workers=1),
        dict,
        [256, 144, 20],
        600.0,
    ),
}


def length(batch: Any) -> int:
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        if isinstance(batch, tuple):  # images
            break
    return len(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_is_counted_as_it_is(kit: Kit, kind: str) -> None:
    data, options, sizes, per_pass = KINDS[kind]
    expected: list[float | None] = []

    def train(run: ZeusRun) -> None:
        loader = run.data_loader(data(), **options())
        with contextlib.suppress(TypeError):  # a stream, another library's
            assert len(loader) == len(sizes)
        for epoch in run.epochs():
            seen = []
            for batch in loader:
                seen.append(length(batch))
                expected.append(run.progress.live._meter.samples_per_epoch)
            assert seen == sizes
            run.report(acc=float(epoch == 2))

    kit.run().train(train)
    observed = kit.last()
    assert (observed.samples, observed.epochs, observed.samples_per_epoch) == (
        3 * sum(sizes),
        3.0,
        sum(sizes),
    )
    assert expected[0] == per_pass  # what the first epoch is measured by while it runs
    assert sum(len(sizes) for _ in range(3)) == len(expected)


@pytest.mark.parametrize("count", [256, 20])
def test_a_stream_of_batches_that_is_batched_again_is_said_once(
    kit: Kit, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    class Short(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return ([torch.zeros(256, 4), torch.zeros(256)] for _ in range(count))

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for x, _ in run.data_loader(Short()):
                assert x.shape == (count, 256, 4)
            # as images of one row: right
            for _ in run.data_loader(Tensors(torch.zeros(256, 256), torch.zeros(256))):
                pass
            run.report(acc=float(epoch == 1))

    kit.run().train(train)
    assert caplog.text.count("run.data_loader(data, batch_size=None)") == 1


def test_a_loader_that_can_be_indexed_is_a_loader(kit: Kit) -> None:
    class Sequence(Sized):
        """As Keras's: it gives its batches by their numbers."""

        def __getitem__(self, index: int) -> Any:
            return next(iter(self))

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in run.data_loader(Sequence(256)):
                pass
            run.report(acc=float(epoch == 1))

    kit.run().train(train)
    assert kit.last().samples == 2 * N


@pytest.mark.parametrize(
    "of", [lambda: iter(Foreign(256)), lambda: (batch for batch in Foreign(256))]
)
def test_a_generator_is_counted_and_one_that_is_used_up_is_refused(
    kit: Kit, of: Callable[[], Any]
) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in run.data_loader(of()):
                pass
            run.report(acc=float(epoch == 1))

    kit.run().train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (2 * N, N)

    def once(run: ZeusRun) -> None:
        loader = run.data_loader(of())
        for _ in run.epochs():
            collections.deque(loader, maxlen=0)
            run.report(acc=0.5)

    def once_wrapped_anew(run: ZeusRun) -> None:
        batches = of()
        for _ in run.epochs():
            collections.deque(run.data_loader(batches), maxlen=0)
            run.report(acc=0.5)

    for train_once in (once, once_wrapped_anew):
        with pytest.raises(
            JobSpecError, match=r"used it up.*for batch in run\.data_loader\(batches\(\)\)"
        ):
            kit.run().train(train_once)


def test_a_generator_that_an_earlier_attempt_used_up_is_no_empty_slice(kit: Kit) -> None:
    batches = iter(Foreign(256))

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            collections.deque(
                run.data_loader(batches if run.attempt == 2 else iter(batches)), maxlen=0
            )
            run.report(acc=0.5)

    with pytest.raises(JobSpecError, match="used it up"):
        kit.run(explore(256, bound_epochs=0.5), incumbent(256)).train(train)
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.FAILED]


@pytest.mark.parametrize("told", [True, False])
def test_an_epoch_without_a_step_after_some_with_steps_teaches_nothing(
    kit: Kit, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    """Python's own iterators, used up after the first epoch."""

    def train(run: ZeusRun) -> int:
        batches = map(list, [range(run.batch_size)] * 4)
        for _ in run.epochs():
            for batch in batches if told else run.data_loader(batches):
                if told:
                    run.step(len(batch))
            run.report(acc=0.5)
        return run.batch_size

    assert kit.run().train(train) == 256
    (end,) = kit.ends()
    assert (end.state, end.observation.samples, end.observation.epochs) == (
        State.EXHAUSTED,
        1024,
        10.0,
    )
    assert str(end.observation.bypassed).startswith(
        "no step was counted in epoch 1, and earlier epochs had some: "
    )
    assert caplog.text.count("make it anew in each epoch") == 1


def test_a_slice_smaller_than_two_batches_may_have_epochs_without_a_step(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            if epoch % 2 == 0:
                run.step()
            run.report(acc=float(epoch == 3))

    kit.run().train(train)
    assert kit.last().bypassed is None


def test_an_endless_loop_keeps_its_last_batch_in_each_epoch(kit: Kit) -> None:
    done: list[int] = []

    def train(run: ZeusRun) -> None:
        loader = run.data_loader(Numbers(), drop_last=True)
        optimizer = torch.optim.SGD([torch.zeros(1)])
        batches = iter(loader)
        for epoch in run.epochs():
            for _ in range(5):
                try:
                    next(batches)
                except StopIteration:
                    batches = iter(loader)
                    next(batches)
                optimizer.step()
            run.report(acc=float(epoch == 2))
            done.append(run.progress.live._meter.samples)

    kit.run().train(train)
    assert done == [5 * 256, 10 * 256, 15 * 256]
    assert kit.last().samples == 15 * 256


@pytest.mark.parametrize(("first", "second", "samples"), [(N, N, N), (N, 512, 512), (300, N, 512)])
def test_two_loaders_side_by_side_count_once(
    kit: Kit, first: int, second: int, samples: int
) -> None:
    announced: list[float | None] = []

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in zip(
                run.data_loader(range(first)), run.data_loader(range(second)), strict=False
            ):
                announced.append(run.progress.live._meter.samples_per_epoch)
            run.report(acc=float(epoch == 1))

    kit.run().train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch, announced[0]) == (
        2 * samples,
        samples,
        first,
    )


def test_two_loaders_of_one_epoch_add_up_and_a_new_loader_each_epoch_does_not(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for data in (Numbers(), list(range(100))):
                for _ in run.data_loader(data):
                    pass
            run.report(acc=float(epoch == 1))

    kit.run().train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch, kit.last().epochs) == (
        1400,
        700.0,
        2.0,
    )


def test_one_loader_that_cannot_tell_its_size_leaves_the_first_epochs_unknown(kit: Kit) -> None:
    sizes: list[float | None] = []

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for data in (Numbers(), Stream(), Numbers()):
                for _ in run.data_loader(data):
                    sizes.append(run.progress.live._meter.samples_per_epoch)
            run.report(acc=float(epoch == 1))

    kit.run().train(train)
    assert sizes == 3 * [600.0] + 6 * [None] + 9 * [1800.0]


def test_a_loop_left_by_break_counts_its_last_batch_and_its_validation_is_rest(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        loader = run.data_loader(range(SAMPLES))
        for epoch in run.epochs():
            for index, _ in enumerate(loader):
                if index == 29:
                    break
            for _ in range(30):
                run.device.on_step(256)
            run.report(acc=float(epoch == 1))

    kit.run(mode="measure").train(train)
    step_s, _ = kit.gpu.load.step(kit.gpu.chip, 256, 250.0)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (2 * 30 * 256, 30 * 256)
    assert kit.last().rest_s == pytest.approx(2 * 30 * step_s)
    assert kit.last().time_s == pytest.approx(2 * 60 * step_s)


def test_a_look_at_the_first_batch_before_the_loop_is_neither_an_epoch_nor_a_step(kit: Kit) -> None:
    announced: list[float | None] = []

    def train(run: ZeusRun) -> list[int]:
        loader = run.data_loader(Numbers())
        assert len(next(iter(loader))) == 256
        done = []
        for epoch in run.epochs():
            for _ in loader:
                done.append(epoch)
                announced.append(run.progress.live._meter.samples_per_epoch)
            run.report(acc=float(epoch == 1))
        return done

    assert kit.run().train(train) == [0, 0, 0, 1, 1, 1]
    assert (kit.last().epochs, kit.last().samples, announced) == (2.0, 2 * N, 6 * [N])


def test_a_look_before_a_loop_that_tells_no_steps_is_no_empty_slice(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        next(iter(run.data_loader(Numbers())))
        for epoch in run.epochs():
            run.report(acc=float(epoch == 1))
        return run.batch_size

    assert kit.run().train(train) == 256
    assert [(end.state, end.observation.epochs) for end in kit.ends()] == [(State.CONVERGED, 2.0)]


def test_a_pass_that_is_dropped_late_disturbs_neither_the_next_pass_nor_the_next_attempt(
    kit: Kit,
) -> None:
    held: list[Iterator[Any]] = []

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            loader = run.data_loader(range(4 * 1024))
            for _ in loader:
                held.clear()
            held.append(iter(loader))
            next(held[0])
            run.report(acc=float(run.attempt == 2 and epoch == 2))

    kit.run(explore(1024, bound_epochs=1.0), incumbent(256)).train(train)
    assert [e.observation.samples for e in kit.ends()] == [4 * 1024, 3 * 4 * 1024]


def test_an_error_in_the_loop_is_raised_as_it_is(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in run.data_loader(Numbers()):
                raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        kit.run().train(train)
    assert kit.ends()[0].state is State.FAILED


def test_a_pass_that_is_over_stays_over_and_one_that_was_given_up_raises_again(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        if run.attempt == 2:
            return loop(run, epochs=1)
        for _ in run.epochs():
            batches = iter(run.data_loader(Numbers()))
            assert len(list(batches)) == 1
            newer = iter(run.data_loader(Numbers()))
            next(newer)
            assert list(batches) == []
            assert run.progress.live._meter.training  # the newer pass goes on
            endless = iter(
                run.data_loader(range(100 * SAMPLES), batch_sampler=_Same(run.batch_size))
            )
            for _ in range(3):
                with contextlib.suppress(AttemptOver):
                    collections.deque(endless, maxlen=0)
                    kit.never.append("the pass came to an end")
            with contextlib.suppress(AttemptOver):
                next(iter(run.data_loader(Numbers())))
                kit.never.append("a new pass began")
        kit.never.append("epochs() must not go on")
        return 0

    assert kit.run(explore(1024, bound_cost=500.0), incumbent(256)).train(train) == 256
    assert [e.state for e in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


class _Same:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter([range(self.batch_size)] * 5000)

    def __len__(self) -> int:
        return 5000


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "data in batches of 64": (Numbers, {"batch_size": 64}),
    "a DataLoader of batches of 64": (lambda: DataLoader(Numbers(), batch_size=64), {}),
    "a stream that is not batched": (Stream, {"batch_size": None}),
    "a generator of batches of nobody knows how many samples": (
        lambda: (object() for _ in range(3)),
        {},
    ),
    "another loader of batches of 64": (lambda: Foreign(64), {}),
    "workers for a loader that is built": (lambda: Foreign(256), {"num_workers": 2}),
    "shuffling for a loader that is built": (
        lambda: DataLoader(Numbers(), batch_size=256),
        {"shuffle": True},
    ),
}


@pytest.mark.parametrize("situation", REFUSED)
def test_data_that_does_not_fit_is_one_clear_error(kit: Kit, situation: str) -> None:
    data, options = REFUSED[situation]
    with pytest.raises(JobSpecError) as error:
        kit.run().train(lambda run: next(iter(run.data_loader(data(), **options))))
    Table("training_errors").check(situation, str(error.value))


def test_without_torch_the_remedy_is_named(
    kit: Kit, script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from airflow_provider_zeus.training.run import ZeusRun\n"
        "def train(run):\n"
        "    for _ in run.epochs():\n"
        "        run.step(); run.report(acc=1.0)\n"
        "    return run.data_loader([1, 2])\n"
        "ZeusRun.from_env().train(train)\n"
    )
    done = script(code, kit.plan())
    assert "ModuleNotFoundError: run.data_loader()" in done.stderr
    assert "airflow-provider-zeus[torch]" in done.stderr
    assert "run.step(samples)" in done.stderr


@pytest.mark.parametrize(("wait_s", "warned"), [(0.12, True), (0.0, False)])
def test_a_training_that_waits_for_its_data_is_told_so_once(
    kit: Kit,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    wait_s: float,
    warned: bool,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(loader, "perf_counter", lambda: now_s)

    def take(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    class Slow(Stream):
        def __iter__(self) -> Iterator[int]:
            for index in range(2 * 256):
                if index % 256 == 0:
                    take(wait_s)
                yield index

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in run.data_loader(Slow()):
                take(0.12)
            run.report(acc=float(epoch == 6))

    kit.run(on=RealClock(kit)).train(train)
    warnings = [
        r.getMessage()
        for r in caplog.records
        if r.levelname == "WARNING" and "for its batches" in r.getMessage()
    ]
    assert len(warnings) == warned
    assert all("num_workers" in warning for warning in warnings)


def test_the_loader_is_an_ordinary_iterable(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            loader = run.data_loader(Numbers(), shuffle=True)
            assert isinstance(loader, ZeusDataLoader)
            assert isinstance(loader.loader, DataLoader)
            assert sorted(float(x) for batch in loader for x in batch) == [
                float(i) for i in range(N)
            ]
            run.report(acc=1.0)

    kit.run().train(train)


def test_it_has_the_attributes_of_the_loader_also_as_a_copy(kit: Kit) -> None:
    data = tensors()
    mine = kit.run().data_loader(data, shuffle=True)
    for each in (mine, copy.copy(mine)):
        assert each.dataset is data
        assert (each.batch_size, len(each.sampler), len(each)) == (256, N, 3)
        with pytest.raises(AttributeError, match="no_such_name"):
            each.no_such_name  # noqa: B018


X = torch.zeros(N, 3)
Y = torch.zeros(N)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            [Numbers(), Numbers()],
            "'list': a list of data sets or loaders, 2 of them, and none itself. give one data set",
        ),
        (
            (DataLoader(Numbers(), batch_size=256), DataLoader(Numbers(), batch_size=256)),
            "a tuple of data sets or loaders",
        ),
        ([Foreign(256)], "a list of data sets or loaders, 1 of them"),
        ([Stream(), Numbers()], "for several side by side call run.data_loader() for each"),
        ([X, Y], f"a list of 2 arrays of {N} rows each, and no data set. .* TensorDataset(x, y)"),
        ((X, X), f"a tuple of 2 arrays of {N} rows each"),
        (
            {"a": DataLoader(Numbers(), batch_size=256)},
            "'dict': a dict with the entries a, and no data set",
        ),
        (
            {"x": X, "y": Y},
            "a dict with the entries x, y, and no data set. .* or one entry of a dict",
        ),
        (collections.UserDict(train=Numbers()), "'UserDict': a dict with the entries train"),
    ],
    ids=[
        "list",
        "tuple",
        "one",
        "streams",
        "arrays",
        "two of one",
        "dict",
        "dict of arrays",
        "other dict",
    ],
)
def test_several_data_sets_in_one_are_refused(kit: Kit, data: Any, said: str) -> None:
    with pytest.raises(JobSpecError) as caught:
        kit.run().train(lambda run: run.data_loader(data))
    for part in said.split(" .* "):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        [torch.zeros(3) for _ in range(N)],
        [(torch.zeros(3), 1.0) for _ in range(N)],
        [{"x": torch.zeros(3)} for _ in range(N)],
        [torch.zeros(3), torch.zeros(3)],
        list(range(N)),
    ],
    ids=["arrays", "pairs", "dicts", "two arrays", "numbers"],
)
def test_a_list_of_samples_is_a_data_set(kit: Kit, data: list[Any]) -> None:
    loaded = kit.run().data_loader(data)
    assert len(loaded.dataset) == len(data)
