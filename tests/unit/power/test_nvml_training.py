"""Whole trainings on a GPU behind NVML: whatever NVML answers,
the training goes on and the limit comes back.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import UNCAPPED, Observation, Phase, PlannedAttempt
from airflow_provider_zeus.training.profiling import measurement_windows
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import records, wait_for
from tests.unit.power.limits.test_guardian import WITHIN_S

SETTER = "nvmlDeviceSetPowerManagementLimit"
LIMITS_W = [250.0, 200.0, 150.0]


@pytest.fixture
def card(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(measurement_windows, "SETTLE_S", 0.02)
    return nvml.add(tick_s=0.002, settle_s=0.002)


class Training:
    """Plans on ``auto`` whose records lie in ``tmp``; ``lines`` is what the last run wrote down.

    :param wait: lets time pass [s]; a step takes 2 ms of it.
    """

    def __init__(self, tmp: Path, wait: Callable[[float], None]) -> None:
        self.tmp, self.wait, self.lines = tmp, wait, list[ResultLine]()

    def plan(self, **changes: Any) -> Plan:
        own = {
            name: changes.pop(name) for name in list(changes) if name in Plan.__dataclass_fields__
        }
        spec = {
            "batch_sizes": [32],
            "default_batch_size": 32,
            "target": "acc >= 0.9",
            "max_epochs": 50,
            "power_limits_w": LIMITS_W,
            "profile_s": 0.01,
        }
        return Plan(
            **{
                "job_id": "dag.train",
                "ti_id": "ti-1",
                "number": 1,
                "first_attempt": 1,
                "spec": ZeusJob(**{**spec, **changes}).to_dict(),
                "attempts": (PlannedAttempt(batch_size=32, phase=Phase.INCUMBENT, why="Known."),),
                "heartbeat_s": 60.0,
                "state_dir": str(self.tmp),
                **own,
            }
        )

    def run(
        self, *, step: Callable[[], object] | None = None, epochs: int = 2, **changes: Any
    ) -> Any:
        """Train 50 steps an epoch; the observation of the attempt."""
        self.lines.clear()
        step = step or partial(self.wait, 0.002)

        def fn(run: ZeusRun) -> str:
            for epoch in run.epochs():
                for _ in range(50):
                    step()
                    run.step()
                run.report(acc=1.0 if epoch + 1 >= epochs else 0.0)
            return "kept"

        assert ZeusRun.from_plan(self.plan(**changes), sink=self.lines.append).train(fn) == "kept"
        assert self.lines[-1].kind == "final"
        assert self.lines[-1].attempt == 1
        return self.observation

    @property
    def observation(self) -> Observation:
        (end,) = (line for line in self.lines if line.kind == "end")
        assert end.observation is not None
        return end.observation


@pytest.fixture
def training(tmp_path: Path, wait: Callable[[float], None]) -> Training:
    return Training(tmp_path, wait)


def test_all_is_measured_and_the_limit_found_comes_back(
    card: Gpu, nvml: FakeNvml, training: Training
) -> None:
    seen = training.run()
    assert seen.reasons == {}
    assert seen.energy_source == "nvml_counter"
    assert seen.time_s == pytest.approx(2 * 50 * 0.002)
    assert seen.energy_j == pytest.approx(190 * seen.time_s, rel=0.25)
    assert (seen.gpu_uuid, seen.limit_found_w, seen.max_power_w) == (
        card.uuid.decode(),
        250.0,
        250.0,
    )
    assert seen.device_model == "Tesla V100-SXM2-16GB"
    assert {s.limit_w for line in training.lines for s in line.profile} == set(LIMITS_W)
    assert nvml.sets[:2] == [150.0, 200.0]  # the highest was in force
    assert card.limit_w == 250.0
    assert records(training.tmp) == []


def test_the_host_beside_the_gpu_is_a_figure_of_its_own(
    card: Gpu, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.power.test_rapl import Host

    host = Host(tmp_path / "powercap")
    monkeypatch.setenv("ZEUS_POWERCAP", str(host.folder))
    steps = iter(range(1, 1000))

    def step() -> None:
        training.wait(0.002)
        n = next(steps)
        host.set("intel-rapl:0", 1000.0 + 0.02 * n)
        host.set("intel-rapl:1:1", 200.0 + 0.01 * n)

    seen = training.run(step=step, mode="measure")
    assert (seen.host_j, seen.host_source) == (pytest.approx(100 * 0.03, rel=0.05), "rapl")
    assert seen.energy_j == pytest.approx(240 * seen.time_s, rel=0.05), "it is no part of the GPU's"
    monkeypatch.setenv("ZEUS_POWERCAP", str(tmp_path))
    seen = training.run(mode="measure")
    assert (seen.host_j, seen.host_source) == (None, None)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_the_profile_ends_with_the_limit_that_eta_weighs_best(
    card: Gpu, training: Training, eta: float
) -> None:
    """A load that slows as its power is cut: the best limit falls as energy weighs more."""
    slowed = {250.0: 1.0, 200.0: 1.03, 150.0: 1.25}
    weights = Weights(eta, 250.0)
    cost = {w: weights.cost(min(w, card.demand_w) * s, s) for w, s in slowed.items()}
    seen = training.run(
        step=lambda: training.wait(0.01 * slowed[card.limit_w]), epochs=4, eta=eta, profile_s=0.2
    )
    assert seen.power_limit_w == min(cost, key=cost.__getitem__)
    assert seen.power_limit_w == {0.0: 250.0, 0.5: 200.0, 1.0: 150.0}[eta]
    assert card.limit_w == 250.0


def test_how_much_of_the_time_the_gpu_worked(card: Gpu, training: Training) -> None:
    card.busy_percent = 25.0
    assert training.run(step=partial(training.wait, 0.02)).gpu_busy == 0.25
    card.busy_percent = -1.0
    seen = training.run(step=partial(training.wait, 0.02))
    assert (seen.gpu_busy, "not supported" in seen.reasons["gpu_busy"]) == (None, True)


NEVER = "the training draws 74 W, and the lowest limit is 150 W: no limit holds it back"


def test_where_the_cap_never_binds_the_walk_ends_and_nothing_is_set(
    card: Gpu, nvml: FakeNvml, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    card.demand_w = 74.0
    seen = training.run(profile_s=0.1, epochs=6)
    assert (nvml.sets, seen.reasons) == ([], {UNCAPPED: NEVER})
    profile = tuple(s for line in training.lines for s in line.profile)
    assert {s.limit_w for s in profile} == {250.0}
    assert sum(s.time_s for s in profile) < 0.2, "no more than its first window"
    assert {(s.capped, s.sm_clock_mhz) for s in profile} == {(0.0, 1380.0)}
    assert caplog.text.count(f"{NEVER}. No power limit is chosen.") == 1
    (end,) = (line for line in training.lines if line.kind == "end")
    assert (end.notes["capped"], end.notes["sm_clock_mhz"]) == (0.0, 1380.0)

    seen = training.run(profile=profile, profile_s=0.1)
    assert (nvml.sets, seen.reasons, [s for line in training.lines for s in line.profile]) == (
        [],
        {UNCAPPED: NEVER},
        [],
    )


def test_a_limit_found_below_the_highest_stays(
    card: Gpu, nvml: FakeNvml, training: Training
) -> None:
    card.demand_w = 74.0
    card.limit_w = 200.0
    seen = training.run(profile_s=0.1)
    assert (nvml.sets, card.limit_w, seen.power_limit_w) == ([], 200.0, 200.0)


@pytest.mark.parametrize("counts", [1, 0])
def test_bursts_that_the_cap_holds_back_are_walked_however_little_they_draw_on_average(
    card: Gpu, training: Training, counts: int
) -> None:
    card.demand_w = 74.0
    card.has_violations = counts

    def step() -> None:
        training.wait(0.002)
        card.capped_ns += 0.0015e9 * counts
        card.reasons = 0 if counts else 4

    seen = training.run(step=step)
    assert {s.limit_w for line in training.lines for s in line.profile} > {250.0}
    assert UNCAPPED not in seen.reasons


@pytest.mark.parametrize(
    ("changes", "locked"), [({}, True), ({"reasons": 0x20}, False), ({"clock_mhz": 1380.0}, False)]
)
def test_a_clock_that_somebody_has_locked_is_said_and_nothing_is_chosen(
    card: Gpu, nvml: FakeNvml, training: Training, changes: dict[str, Any], locked: bool
) -> None:
    card.clock_mhz = 1005.0
    for name, value in changes.items():
        setattr(card, name, value)
    seen = training.run(profile_s=0.1, epochs=8)
    assert (
        "the clock stays at 1005 of 1530 MHz under load" in seen.reasons.get(UNCAPPED, "")
    ) is locked
    assert (nvml.sets == []) is locked


def test_somebody_elses_limit_stays(card: Gpu, training: Training) -> None:
    steps = iter(range(1000))

    def step() -> None:
        training.wait(0.002)
        if next(steps) == 60:
            card.limit_w = 180.0

    training.run(step=step)
    assert card.limit_w == 180.0


@pytest.mark.parametrize(
    "changes", [{"mode": "measure"}, {"mode": "off"}, {"power_read_only": True}]
)
def test_no_setter_is_called_where_none_may_be(
    card: Gpu, nvml: FakeNvml, training: Training, changes: dict[str, Any]
) -> None:
    seen = training.run(**changes)
    assert SETTER not in nvml.calls()
    assert nvml.sets == []
    assert (seen.energy_j is None) == (changes == {"mode": "off"})
    assert card.limit_w == 250.0


@pytest.mark.parametrize("changes", [{"processes": 1}, {"mig_enabled": 1}])
def test_a_shared_gpu_is_labelled_and_left_as_it_is(
    card: Gpu, nvml: FakeNvml, training: Training, changes: dict[str, int]
) -> None:
    for field, value in changes.items():
        setattr(card, field, value)
    seen = training.run()
    assert (seen.energy_source, seen.energy_j) == (None, None)
    assert "GPU of its own" in seen.reasons["energy_j"]
    assert seen.time_s > 0.1
    assert nvml.sets == []


def test_polled_energy_of_an_older_gpu(card: Gpu, training: Training) -> None:
    card.has_counter = 0
    seen = training.run(mode="measure", epochs=4)
    assert seen.energy_source == "nvml_poll"
    assert seen.energy_j == pytest.approx(240 * seen.time_s, rel=0.05)


def test_a_counter_that_goes_back_costs_the_energy_and_names_the_reason(
    card: Gpu, training: Training
) -> None:
    card.energy_mj = 1e9
    steps = iter(range(1000))

    def step() -> None:
        training.wait(0.002)
        if next(steps) == 60:
            card.energy_mj = 0.0

    seen = training.run(step=step, mode="measure")
    assert seen.energy_j is None
    assert "went back" in seen.reasons["energy_j"]


OPENING = [
    "nvmlInit",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPowerManagementLimit",
]
ABSENT_IS_ALONE = ("nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses_v3")
TRAINING = ["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerManagementLimit", SETTER]
CODES = [1, 3, 4, 15, 27, 999]


def explained(seen: Observation, function: str, said: str) -> None:
    """What is missing has its reason, and the reason or the log names the function that failed."""
    for name in ("energy_j", "power_limit_w"):
        if getattr(seen, name) is None:
            assert seen.reasons[name]
    assert function.split("_v")[0].removeprefix("nvml") in f"{seen.reasons} {said}"


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", OPENING)
def test_an_error_at_any_call_of_the_opening(
    card: Gpu,
    nvml: FakeNvml,
    training: Training,
    caplog: pytest.LogCaptureFixture,
    function: str,
    code: int,
) -> None:
    nvml.fail(function, code)
    seen = training.run()
    assert seen.time_s > 0
    assert nvml.sets == [] or card.limit_w == 250.0
    if function == "nvmlDeviceGetUUID":
        assert seen.gpu_uuid is None
        assert nvml.sets == []
    elif function == "nvmlDeviceGetPowerManagementLimitConstraints":
        assert seen.max_power_w is None
        assert nvml.sets == []
    elif function == "nvmlDeviceGetTotalEnergyConsumption" and code == 3:
        assert seen.energy_source == "nvml_poll"
    elif function == "nvmlDeviceGetName" or (code == 3 and function in ABSENT_IS_ALONE):
        assert seen.energy_source == "nvml_counter"
        assert seen.energy_j is not None
    else:
        explained(seen, function, caplog.text)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 2


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", TRAINING)
def test_an_error_in_the_middle_of_a_training_that_passes(
    card: Gpu,
    nvml: FakeNvml,
    training: Training,
    caplog: pytest.LogCaptureFixture,
    function: str,
    code: int,
) -> None:
    nvml.fail(function, code, after={SETTER: 1}.get(function, 12), times=1)
    seen = training.run()
    profiled = {s.limit_w for line in training.lines for s in line.profile}
    # else a piece was left out, and nothing lost
    if function == SETTER or seen.reasons or profiled != set(LIMITS_W):
        explained(seen, function, caplog.text)
    assert card.limit_w == 250.0
    assert nvml.sets[-1:] in ([], [250.0]), (
        "where it failed before the first window nothing was set"
    )
    assert records(training.tmp) == []


@pytest.mark.parametrize("code", [3, 999])
def test_a_limit_in_force_that_cannot_be_read(
    card: Gpu, nvml: FakeNvml, training: Training, code: int
) -> None:
    nvml.fail("nvmlDeviceGetEnforcedPowerLimit", code)
    assert training.run().reasons == {}
    assert card.limit_w == 250.0


def test_a_gpu_that_is_lost_in_the_middle_of_a_training(card: Gpu, training: Training) -> None:
    steps = iter(range(1000))

    def step() -> None:
        training.wait(0.002)
        if next(steps) == 70:
            card.lost = 1

    seen = training.run(step=step, mode="measure")
    assert (seen.energy_j, seen.power_limit_w) == (None, None)
    assert "the GPU is lost" in seen.reasons["energy_j"]
    assert "the GPU is lost" in seen.reasons["power_limit_w"]


def test_a_killed_training_leaves_the_limit_found(
    card: Gpu, nvml: FakeNvml, training: Training, start, guardians: Callable[[], list[int]]
) -> None:
    plan = training.plan(profile_s=30.0).to_json()
    trainer = start(f"""
from airflow_provider_zeus.training.profiling import measurement_windows
from airflow_provider_zeus.training.run import ZeusRun
measurement_windows.SETTLE_S = 0.02
from airflow_provider_zeus.power.nvml import gpu as nvml_gpu
nvml_gpu.moves = lambda read: True  # the test drives the clock
from airflow_provider_zeus.training.protocol.plan import Plan
import dataclasses
plan = Plan.from_json({plan!r})
plan = dataclasses.replace(plan, spec={{**plan.spec, "power_limits_w": [150.0]}})

def fn(run):
    for _ in run.epochs():
        run.step()
        say(limit_w=run.device.limit_w())
        time.sleep(60)

ZeusRun.from_plan(plan).train(fn)
""")
    trainer.hear()
    assert card.limit_w == 150.0
    trainer.die(signal.SIGKILL)
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
    wait_for(lambda: guardians() == records(training.tmp) == [], WITHIN_S)
