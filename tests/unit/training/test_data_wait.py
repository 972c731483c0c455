"""Waits for batches: found by how long they are, named where they are a waste,
with a remedy that can apply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from airflow_provider_zeus.model.trial import DATA_WAIT, UNCAPPED, DeviceInfo
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.training import attempt_checks, data_loader, torch_loaders, torch_steps
from airflow_provider_zeus.training.attempt_checks import DataWait, remedy
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, RealClock, incumbent

STEPS = 20
STEP_S = 0.1


class Clock:
    """Time that passes where a test lets it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Slow(Dataset[torch.Tensor]):
    """Each batch of two takes so long [s] of a clock."""

    def __init__(self, clock: Clock | None, batch_s: float) -> None:
        self.clock = clock
        self.batch_s = batch_s

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, n: int) -> torch.Tensor:
        if self.clock is None:
            time.sleep(self.batch_s / 2)
        else:
            self.clock.now_s += self.batch_s / 2
        return torch.ones(4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (torch_loaders, data_loader, torch_steps):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def trained(
    kit: Kit,
    loader: Any,
    step: Any,
    clock: Any = time.perf_counter,
    *,
    own: bool,
    works: list[tuple[float, float]] | None = None,
) -> Any:
    """The end of a training.

    :param works: gets when the work on each batch began and ended [s]; first of all when the
        training began, as a work that took no time.
    """

    def train(run: ZeusRun) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if works is not None:
            works.append((time.perf_counter(),) * 2)
        for epoch in run.epochs():
            for batch in loader if own else run.data_loader(loader):
                began_s = time.perf_counter()
                model(batch).sum().backward()
                step()
                optimizer.step()
                if works is not None:
                    works.append((began_s, time.perf_counter()))
            run.report(acc=float(epoch == 1))

    gpu = Queued(clock)
    gpu.share = None
    sizes = {"batch_sizes": [2], "default_batch_size": 2}
    kit.run(incumbent(2), on=gpu, mode="measure", **sizes).train(train)
    return kit.ends()[-1]


@pytest.mark.parametrize("own", [False, True], ids=["run.data_loader", "an own loader"])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8])
def test_the_share_is_found_and_no_alarm_below_a_tenth(
    kit: Kit, clock: Clock, share: float, *, own: bool
) -> None:
    def step() -> None:
        clock.now_s += STEP_S

    end = trained(
        kit,
        DataLoader(Slow(clock, STEP_S * share / (1 - share)), batch_size=2),
        step,
        clock,
        own=own,
    )
    assert end.notes["data_wait"] == pytest.approx(share, abs=0.03)
    assert end.notes["data_wait_s"] == pytest.approx(
        2 * STEPS * STEP_S * share / (1 - share), rel=0.1
    )
    assert end.observation.data_wait_s == pytest.approx(end.notes["data_wait_s"])
    assert (DATA_WAIT in end.observation.reasons) == (share >= 0.1)


class Queued(Device):
    """A GPU that works on what is queued while the host waits, by a clock of the test."""

    share: float | None = 0.95  # None: not known

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(DeviceInfo(model="H100", energy_source="nvml_counter"), "no limit here")
        self.now_s = clock

    def energy_j(self) -> float:
        return 300.0 * self.now_s()

    def busy(self) -> float | None:
        return self.share


def test_a_validation_without_the_gpu_makes_no_wait_a_waste(kit: Kit, clock: Clock) -> None:
    gpu = Queued(clock)

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            gpu.share = 0.95
            for _ in run.data_loader(DataLoader(Slow(clock, 0.1), batch_size=2)):
                clock.now_s += STEP_S
            gpu.share = 0.0
            clock.now_s += 30.0
            run.report(acc=float(epoch == 1))

    kit.run(incumbent(2), batch_sizes=[2], default_batch_size=2, on=gpu).train(train)
    seen = kit.last()
    assert seen.gpu_busy == pytest.approx(0.95 * 8 / 68, abs=0.02)
    assert seen.data_wait_s == pytest.approx(0.05 * 8, abs=0.02)
    assert DATA_WAIT not in seen.reasons


@pytest.mark.parametrize("kept", [False, True], ids=["a fresh pass", "persistent workers"])
def test_a_validation_between_the_epochs_is_neither_a_wait_nor_training(
    kit: Kit, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    """Its passes are freed, so that CPython gives their address to the next pass of the
    training.
    """
    seen: list[tuple[float, float]] = []
    monkeypatch.setattr(
        DataWait, "add", lambda waits, waited_s, looped_s, to_try: seen.append((waited_s, looped_s))
    )
    loader = DataLoader(
        Slow(None, 0.0), batch_size=2, num_workers=int(kept), persistent_workers=kept
    )
    slow = DataLoader(Slow(clock, 1.0), batch_size=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in slow:
                pass
            for _ in loader:
                clock.now_s += STEP_S
                optimizer.step()
            run.report(acc=float(epoch == 3))

    kit.run(incumbent(2), batch_sizes=[2], default_batch_size=2, mode="measure").train(train)
    spent = [each for each in seen if each != (0.0, 0.0)]
    assert spent == [(0.0, pytest.approx(STEPS * STEP_S))] * 4


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["run.data_loader", "an own loader"])
@pytest.mark.parametrize(("workers", "batch_s"), [(2, 0.05), (2, 0.4), (4, 0.4)])
def test_workers_wait_beside_the_training(
    kit: Kit, workers: int, batch_s: float, *, own: bool
) -> None:
    """The share is that of the time between the works on two batches, on however busy a host:
    of n workers a batch comes every 1/n.
    """
    loader = DataLoader(
        Slow(None, batch_s), batch_size=2, num_workers=workers, persistent_workers=True
    )
    works: list[tuple[float, float]] = []
    end = trained(kit, loader, lambda: time.sleep(0.05), own=own, works=works)
    least = share_between(works[1:]) - 0.2  # the loader's own work lies between, too
    most = share_between(works) + 0.05  # the first batch waits until all workers have started
    assert least <= end.notes["data_wait"] <= most


def share_between(works: list[tuple[float, float]]) -> float:
    """The share of the time between the works in that of all."""
    between_s = sum(after[0] - before[1] for before, after in pairwise(works))
    return between_s / (works[-1][1] - works[0][0])


@pytest.mark.parametrize(
    ("share", "limits_w"), [(0.8, {250.0}), (0.3, {250.0, 200.0, 150.0, 100.0})]
)
def test_where_the_wait_dominates_no_limit_is_chosen(
    kit: Kit, share: float, limits_w: set[float]
) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in range(10):
                run.step()
            run.progress.present.end_pass(10 * share, 10.0)
            run.report(acc=0.0)

    kit.run(incumbent(1024), eta=1.0, max_epochs=40, on=RealClock(kit)).train(train)
    assert {s.limit_w for s in kit.profile()} >= limits_w
    assert ({s.limit_w for s in kit.profile()} == {250.0}) is (share > 0.5)
    why = kit.last().reasons.get(UNCAPPED, "")
    assert ("waits for batches most of the time" in why) is (share > 0.5)
    assert "%" not in why, "the share is told once, of all its time"


def test_a_real_wait_is_no_part_of_a_simulated_time(kit: Kit) -> None:
    """It was told as 80 % of a time that no clock had measured, and no limit was chosen for it."""

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in range(10):
                run.step()
            run.progress.present.end_pass(8.0, 10.0)
            run.report(acc=0.0)

    kit.run(incumbent(1024), eta=1.0, max_epochs=40).train(train)
    seen = kit.last()
    assert seen.energy_source == "simulated"
    assert seen.data_wait_s is None
    assert not {DATA_WAIT, UNCAPPED} & set(seen.reasons)
    assert (seen.power_limit_w or 250.0) < 250.0


def test_a_first_epoch_on_a_cold_disk_leaves_the_run_its_power_limit(kit: Kit) -> None:
    """Its windows do not count in the profile, which begins anew, once,
    when the training no longer waits.
    """

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in range(10):
                run.step()
            run.progress.present.end_pass(9.0 if epoch == 0 else 0.0, 10.0)
            run.report(acc=0.0)

    kit.run(incumbent(1024), eta=1.0, max_epochs=60, on=RealClock(kit)).train(train)
    profile = kit.profile()
    assert [sample.is_mark for sample in profile].count(True) == 1
    assert {sample.limit_w for sample in profile if not sample.is_mark} == {
        250.0,
        200.0,
        150.0,
        125.0,
        100.0,
    }
    assert kit.last().power_limit_w < 250.0
    assert UNCAPPED not in kit.last().reasons


@pytest.mark.parametrize(
    ("busy", "wasted_s", "said"),
    [
        (
            None,
            4.0,
            "40 % of its time, 4 s and at most 0.111 Wh, was spent waiting for batches",
        ),
        (
            0.3,
            4.0,
            "40 % of its time, 4 s and at most 0.111 Wh, was spent waiting for batches: the GPU",
        ),
        (
            0.75,
            2.5,
            "25 % of its time, 2.5 s and at most 0.0694 Wh, was spent waiting for batches: the GPU",
        ),
        (0.95, 0.5, ""),
    ],
)
def test_it_is_a_waste_only_as_far_as_the_gpu_rests(
    busy: float | None, wasted_s: float, said: str
) -> None:
    waits = DataWait()
    waits.add(4.0, 10.0)
    text = waits.text(busy, 100.0, 10.0)
    assert text.startswith(said)
    assert bool(text) is bool(said)
    assert waits.notes(busy, 100.0) == {
        "data_wait": 0.4,
        "data_wait_s": pytest.approx(wasted_s),
        "data_wait_j": pytest.approx(100 * wasted_s),
    }


@pytest.mark.parametrize(
    ("processors", "options", "said"),
    [
        (8, {}, "num_workers=4 in the DataLoader (8 processors here)"),
        (2, {}, "num_workers=1 in the DataLoader"),
        (1, {}, "decoded ahead"),
        (8, {"num_workers": 2}, "persistent_workers=True"),
        (8, {"num_workers": 2, "persistent_workers": True}, "num_workers=4"),
        (3, {"num_workers": 2, "persistent_workers": True}, "prefetch_factor=4"),
        (3, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}, "decoded ahead"),
    ],
    ids=str,
)
def test_one_setting_is_named_that_can_apply_and_is_not_set(
    monkeypatch: pytest.MonkeyPatch, processors: int, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(attempt_checks.os, "sched_getaffinity", lambda _: range(processors))
    assert said in remedy(DataLoader(Slow(None, 0.0), batch_size=2, **options))


def test_a_loader_of_another_library_gets_no_setting_of_torch() -> None:
    def batches() -> Iterator[int]:
        yield 1

    assert "DataLoader" not in remedy(batches())


def test_the_share_is_of_all_its_time_with_validation() -> None:
    waits = DataWait()
    waits.add(4.0, 10.0)
    assert waits.text(None, None, 20.0).startswith("20 % of its time, 4 s, was spent waiting")
    assert waits.text(None, None, 100.0) == ""
    assert waits.text(None, None, None) == ""
