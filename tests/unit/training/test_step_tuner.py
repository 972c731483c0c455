"""Power limits tuned by the steps that torch tells, of trainings that know nothing of it. Real torch, simulated GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, Phase, PlannedAttempt, ProfileSample, summed
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.training import step_tuner
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.step_handle import StepHandle
from airflow_provider_zeus.training.step_tuner import StepTuner, step_kind
from tests.fake_nvml import FakeNvml

torch = pytest.importorskip("torch")

LIMITS_W = [250.0, 175.0, 100.0]


def plan(profile: tuple[ProfileSample, ...] = (), **changes: Any) -> Plan:
    fields = {"eta": 1.0, "power_limits_w": LIMITS_W, "profile_s": 0.5, "profile_steps": 4} | changes
    planned = PlannedAttempt(batch_size=None, phase=Phase.MEASURED, why="")
    spec = ZeusJob(**fields).to_dict()
    return Plan(job_id="d.t", ti_id="ti", number=1, first_attempt=1, spec=spec, attempts=(planned,), profile=profile)


@pytest.fixture
def gpu(tmp_path: Path) -> SimulatedGpu:
    return SimulatedGpu("v100", load="shufflenet", state_file=tmp_path / "gpu")


@pytest.fixture
def tuned(tmp_path: Path, gpu: SimulatedGpu) -> Iterator[Callable[..., StepTuner]]:
    made: list[StepTuner] = []

    def make(with_plan: Plan | None = None) -> StepTuner:
        made.append(StepTuner(with_plan or plan(), str(tmp_path), gpu))
        made[-1].look()
        return made[-1]

    yield make
    for tuner in made:
        tuner.stop()
        tuner.close()


def training(width: int = 4) -> tuple[Any, Callable[[], None]]:
    model = torch.nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, width)).sum().backward()
        optimizer.step()

    return optimizer, step


def kept(tuner: StepTuner) -> tuple[ProfileSample, ...]:
    tuner.stop()
    return summed(tuner.take_unsent())


def test_plain_torch_is_profiled_and_trains_on_at_the_best_limit(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    tuner, (optimizer, step) = tuned(), training()
    for _ in range(600):
        step()
    assert gpu.limit_w() == 100.0, "it draws least energy"
    seen = tuner.observed(Observation(energy_j=1.0, time_s=1.0, samples=None))
    assert seen.step_kind == step_kind(optimizer)
    assert seen.samples == 600 - step_tuner.LEAD_STEPS
    assert (seen.limit_found_w, seen.power_limit_w) == (250.0, 100.0)
    assert seen.excess_j is not None
    assert seen.excess_j > 0
    profile = kept(tuner)
    assert {s.limit_w for s in profile} == set(LIMITS_W)
    assert {s.batch_size for s in profile} == {step_kind(optimizer)}
    assert all(s.samples == s.steps for s in profile)
    tuner.close()
    assert gpu.limit_w() == 250.0, "the limit found is back"


def test_the_next_run_takes_the_profile_and_another_model_is_profiled_anew(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu
) -> None:
    first, (_, step) = tuned(), training()
    for _ in range(600):
        step()
    profile = kept(first)
    first.close()

    second, (_, step) = tuned(plan(profile)), training()
    for _ in range(step_tuner.LEAD_STEPS + 1):
        step()
    assert gpu.limit_w() == 100.0
    assert not second.take_unsent()
    _, other = training(width=8)
    for _ in range(step_tuner.LEAD_STEPS):
        other()
    assert gpu.limit_w() == 250.0, "another model: its profile begins at the highest limit"
    second.stop()


def test_the_optimizer_that_steps_most_leads(tuned: Callable[..., StepTuner]) -> None:
    tuner, (often, critic), (_, generator) = tuned(), training(width=16), training()
    for i in range(60):
        critic()
        if i % 5 == 0:
            generator()
    seen = tuner.observed(Observation())
    assert (seen.step_kind, seen.samples) == (step_kind(often), 60 - step_tuner.LEAD_STEPS)


def test_accumulated_gradients_count_as_the_step_that_they_end_in(tuned: Callable[..., StepTuner]) -> None:
    tuner, model = tuned(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in range(80):
        model(torch.ones(2, 4)).sum().backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert tuner.observed(Observation()).samples == 20 - step_tuner.LEAD_STEPS


def test_a_window_that_a_pause_breaks_is_dropped(tuned: Callable[..., StepTuner], gpu: SimulatedGpu) -> None:
    tuner, (_, step) = tuned(), training()
    for i in range(600):
        step()
        if i % 40 == 39:
            for _ in range(30):
                gpu.on_step(256)  # validation: the GPU works, and no optimizer steps
    profile, full = kept(tuner), 0.0
    tuner.close()
    alone, (_, step) = tuned(), training()
    for _ in range(600):
        step()
    for with_pauses, without in zip(profile, kept(alone), strict=False):
        if with_pauses.limit_w == without.limit_w:
            full += 1
            assert with_pauses.time_s / with_pauses.samples == pytest.approx(without.time_s / without.samples, rel=0.05)
    assert full


def test_where_limits_cannot_be_told_apart_none_is_chosen(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(step_tuner, "SIMULATED_SAMPLES", 32)  # a load that draws less than any limit
    caplog.set_level("INFO")
    _, (_, step) = tuned(plan(eta=0.5, profile_s=5.0)), training()
    for _ in range(2500):
        step()
    assert gpu.limit_w() == 250.0
    assert "none is chosen" in caplog.text


@pytest.mark.parametrize(("mode", "limit_w"), [("observe", 250.0), ("measure", 250.0)])
def test_other_modes_leave_the_limit(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, mode: str, limit_w: float
) -> None:
    tuner, (_, step) = tuned(plan(mode=mode)), training()
    for _ in range(600):
        step()
    assert gpu.limit_w() == limit_w
    assert bool(kept(tuner)) is (mode == "observe")


def test_a_forked_child_tells_nothing(tuned: Callable[..., StepTuner]) -> None:
    tuner, (_, step) = tuned(), training()
    for _ in range(20):
        step()
    before = tuner.steps
    if (pid := os.fork()) == 0:
        step()
        os._exit(0 if tuner.steps == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_fails_in_here_fails_no_training(
    tuned: Callable[..., StepTuner], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    tuner, (_, step) = tuned(), training()
    for _ in range(40):
        step()

    def broken() -> float:
        raise RuntimeError("the device fell off the bus")

    monkeypatch.setattr(gpu, "now_s", broken)
    for _ in range(10):
        step()
    assert tuner.said
    assert caplog.text.count("tunes no power limit from here on") == 1


def test_steps_of_another_framework_are_told_by_the_handle(tuned: Callable[..., StepTuner], gpu: SimulatedGpu) -> None:
    tuner = tuned()
    run = StepHandle(tuner)
    for _ in range(600):
        run.step()
    assert gpu.limit_w() == 100.0
    with pytest.raises(Exception, match=r"run\.epochs needs a job that chooses batch sizes"):
        run.epochs()


@pytest.fixture
def plan_of_gpu(nvml: FakeNvml) -> Plan:
    nvml.add(tick_s=0.002, settle_s=0.002)
    return plan(device="nvml", profile_s=0.01, profile_steps=1)


def test_a_gpu_that_another_training_uses_gets_no_limit_and_nobody_waits(
    plan_of_gpu: Plan, nvml: FakeNvml, tmp_path: Path, caplog: Any
) -> None:
    holder = os.fork()
    if holder == 0:
        lock = GpuLock(tmp_path, [nvml.gpu(0).uuid.decode()], how="wait", wait_s=0.0)
        (tmp_path / "held").touch()
        while not (tmp_path / "done").exists():
            pass
        lock.close()
        os._exit(0)
    try:
        while not (tmp_path / "held").exists():
            pass
        tuner = StepTuner(plan_of_gpu, str(tmp_path))
        tuner.look()
        _, step = training()
        for _ in range(40):
            step()
        assert nvml.gpu(0).limit_w == 250.0
        assert "another training of this host uses" in caplog.text
        assert not kept(tuner)
        tuner.close()
    finally:
        (tmp_path / "done").touch()
        os.waitpid(holder, 0)
