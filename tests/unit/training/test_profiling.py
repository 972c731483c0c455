"""Just-in-time profiling of the power limit on the simulated GPU,
and the limit that is given back.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.model.trial import Observation, ProfileSample
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.simulated.state_file import COUNTER_MJ, ENERGY_J
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.result_files import read_result
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, loop, steps

GRID_W = [250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0]


def cost_at(gpu: SimulatedGpu, batch_size: int, limit_w: float, eta: float) -> float:
    """Cost of a sample [J] by the load's own equations."""
    step_s, power_w = gpu.load.step(gpu.chip, batch_size, limit_w)
    return Weights(eta, 250.0).cost(step_s * power_w, step_s) / batch_size


def limits_in_force(run: ZeusRun, seen: list[float], epochs: int) -> None:
    for epoch in run.epochs():
        steps(run)
        seen.append(run.device.limit_w())
        run.report(acc=1.0 if epoch + 1 >= epochs else 0.0)


@pytest.mark.parametrize("batch_size", [256, 1024])
@pytest.mark.parametrize("eta", [0.3, 0.5, 1.0])
def test_limits_are_measured_coarse_to_fine_and_the_cheapest_is_set(
    kit: Kit, batch_size: int, eta: float
) -> None:
    seen: list[float] = []
    kit.run(incumbent(batch_size), eta=eta, max_epochs=60).train(limits_in_force, seen, 40)
    profile = kit.profile()  # added up in the attempt's last line: windows go on across epochs
    measured = [s.limit_w for s in profile]
    assert {250.0, 200.0, 150.0, 100.0} < set(measured) < set(GRID_W)
    assert measured == sorted(set(measured))
    at = GRID_W.index(seen[-1])
    assert set(GRID_W[max(at - 1, 0) : at + 2]) <= set(measured)
    assert all(s.time_s >= 5.0 and s.steps >= 10 and s.batch_size == batch_size for s in profile)
    gpu = kit.gpu
    for s in profile:
        step_s, power_w = gpu.load.step(gpu.chip, batch_size, s.limit_w)
        assert s.time_s / s.samples == pytest.approx(step_s / batch_size, rel=0.001)
        assert s.energy_j / s.samples == pytest.approx(step_s * power_w / batch_size, rel=0.05)
    best = min(cost_at(gpu, batch_size, w, eta) for w in GRID_W)
    assert cost_at(gpu, batch_size, seen[-1], eta) <= 1.01 * best
    assert kit.last().power_limit_w == seen[-1]
    assert gpu.limit_w() == 250.0
    assert kit.last().limit_found_w == 250.0


def test_the_optimum_of_the_equations_is_found_where_it_is_clear(kit: Kit) -> None:
    gpu = kit.gpu
    true_w = min(GRID_W, key=lambda w: cost_at(gpu, 1024, w, 1.0))
    assert true_w not in (GRID_W[0], GRID_W[-1]) or cost_at(gpu, 1024, true_w, 1.0) < cost_at(
        gpu, 1024, 250.0, 1.0
    )
    seen: list[float] = []
    kit.run(incumbent(1024), eta=1.0, max_epochs=60).train(limits_in_force, seen, 40)
    assert abs(seen[-1] - true_w) <= 25.0


def test_at_eta_0_nothing_below_the_highest_limit_is_tried(kit: Kit) -> None:
    seen: list[float] = []
    kit.run(incumbent(1024), eta=0.0, max_epochs=60).train(limits_in_force, seen, 10)
    assert set(seen) == {250.0}
    assert {s.limit_w for s in kit.profile()} == {250.0}


# 1 s and 0.3 s: settling takes 1 s
@pytest.mark.parametrize(("steps_per_epoch", "epochs"), [(17, 100), (5, 900)])
def test_an_epoch_of_a_few_steps_still_completes_the_profile(
    kit: Kit, steps_per_epoch: int, epochs: int
) -> None:
    kit.run(max_epochs=1000).train(loop, epochs=epochs, samples=steps_per_epoch * 256)
    profile = kit.profile()
    assert {250.0, 200.0, 150.0, 100.0} < {s.limit_w for s in profile}
    assert all(s.time_s >= 5.0 for s in profile)
    best_w = kit.last().power_limit_w
    assert best_w < 250.0
    kit.lines.clear()
    kit.run(profile=profile).train(loop)
    assert kit.profile() == ()
    assert (kit.last().power_limit_w, kit.last().excess_s) == (best_w, 0.0)


def test_what_a_run_could_not_finish_the_next_one_does(kit: Kit) -> None:
    kit.run(incumbent(1024)).train(loop, epochs=2)
    first = kit.profile()
    assert [s.limit_w for s in first] == [150.0, 200.0, 250.0]
    assert first[0].time_s < 5.0
    kit.lines.clear()
    seen: list[float] = []
    run = kit.run(incumbent(1024), profile=first, max_epochs=60)
    run.train(limits_in_force, seen, 30)
    again = kit.profile()
    in_all = {s.limit_w: s.time_s for s in summed((*first, *again))}
    assert again[0].limit_w == 100.0
    assert 5.0 <= in_all[150.0] < 6.0
    assert run.progress.profile[len(first)].limit_w == 150.0, "the window goes on"

    kit.lines.clear()
    kit.run(incumbent(1024), profile=(*first, *again)).train(limits_in_force, seen, 1)
    assert kit.profile() == ()
    assert seen[-1] == seen[-2] < 250.0  # set from the first step on
    assert (kit.last().excess_j, kit.last().excess_s) == (0.0, 0.0)


def test_runs_shorter_than_a_window_finish_a_profile_together(kit: Kit) -> None:
    """What the store keeps of each is its sum; no run has a whole window."""
    known: tuple[ProfileSample, ...] = ()
    for number in range(1, 200):  # noqa: B007
        kit.lines.clear()
        kit.run(incumbent(1024), profile=known).train(loop, epochs=1, samples=20 * 1024)  # 4 s
        if not kit.profile():
            break
        known = summed((*known, *kit.profile()))
    assert 10 < number < 60
    assert {s.limit_w for s in known} >= {250.0, 200.0, 150.0, 100.0}
    assert kit.last().power_limit_w < 250.0


def test_a_second_attempt_of_the_same_batch_size_knows_what_the_first_measured(kit: Kit) -> None:
    run = kit.run(explore(1024, bound_epochs=30.0), incumbent(1024), max_epochs=60)
    run.train(lambda run: loop(run, epochs=99 if run.attempt == 1 else 1))
    first, second = kit.ends()
    assert second.profile == ()
    assert second.observation.power_limit_w == first.observation.power_limit_w < 250.0


def best_from_the_start(kit: Kit, eta: float, profile: tuple, epochs: int) -> Observation:
    kit.lines.clear()
    kit.run(incumbent(1024), eta=eta, profile=profile, max_epochs=60).train(loop, epochs=epochs)
    return kit.last()


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_without_its_excess_a_run_costs_what_it_would_at_the_best_limit_throughout(
    kit: Kit, eta: float
) -> None:
    kit.run(incumbent(1024), eta=eta, max_epochs=60).train(loop, epochs=40)
    profiled = kit.last()
    profile = kit.profile()
    plain = best_from_the_start(kit, eta, profile, 40)
    assert profiled.time_s - profiled.excess_s == pytest.approx(plain.time_s, rel=0.01)
    assert profiled.energy_j - profiled.excess_j == pytest.approx(plain.energy_j, rel=0.02)
    assert profiled.excess_j > 100.0  # else nothing was put right
    cut = best_from_the_start(kit, eta, (), 3)  # profiling did not end: against the best so far
    assert cut.excess_j is not None
    assert cut.excess_s is not None


def test_energy_time_and_samples_add_up_and_a_short_last_batch_counts_as_it_is(kit: Kit) -> None:
    began_s = kit.gpu.now_s()
    began_j = kit.gpu.energy_j()
    kit.run().train(loop, epochs=3, samples=1000)  # 256, 256, 256, 232
    observed = kit.last()
    assert (observed.samples, observed.samples_per_epoch, observed.epochs) == (3000, 1000.0, 3.0)
    assert observed.time_s == pytest.approx(kit.gpu.now_s() - began_s)
    assert observed.energy_j == pytest.approx(kit.gpu.energy_j() - began_j)
    assert (observed.rest_j, observed.rest_s) == (0.0, 0.0)
    assert (observed.energy_source, observed.device_model, observed.max_power_w) == (
        "simulated",
        "simulated V100",
        250,
    )


def test_what_happens_beside_training_steps_is_rest(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in run.data_loader(range(60 * 256)):
                pass
            for _ in range(60):
                run.device.on_step(256)  # validation, as far as this device knows
            run.report(acc=1.0 if epoch == 2 else 0.0)

    kit.run(mode="measure").train(train)
    observed = kit.last()
    step_s, power_w = kit.gpu.load.step(kit.gpu.chip, 256, 250.0)
    assert observed.time_s == pytest.approx(3 * 120 * step_s)
    assert observed.rest_s == pytest.approx(3 * 60 * step_s)
    assert observed.rest_j == pytest.approx(3 * 60 * step_s * power_w, rel=0.03)
    points = [p for line in kit.lines for p in line.points]
    covered_s = {"train": 0.0, "validate": 0.0}
    for before_s, point in zip([0.0, *(p.t_s for p in points)], points, strict=False):
        covered_s[point.phase] += point.t_s - before_s
    assert covered_s["validate"] == pytest.approx(observed.rest_s, abs=0.01)
    assert covered_s["train"] == pytest.approx(observed.time_s - observed.rest_s, abs=0.01)


def test_power_points_tell_the_phase_and_the_limit_and_hold_all_the_energy(kit: Kit) -> None:
    kit.run(incumbent(1024), max_epochs=60).train(loop, epochs=40)
    points = [p for line in kit.lines for p in line.points]
    phases = [p.phase for p in points]
    assert phases.index("train") == len([p for p in phases if p == "profile"])
    assert {p.limit_w for p in points if p.phase == "profile"} == {s.limit_w for s in kit.profile()}
    assert {p.limit_w for p in points if p.phase == "train"} == {kit.last().power_limit_w}
    spans = [b.t_s - a.t_s for a, b in zip([None, *points], points, strict=False) if a is not None]
    assert all(0.5 <= s < 2.5 for s in spans)
    drawn_j = points[0].power_w * points[0].t_s + sum(
        s * p.power_w for s, p in zip(spans, points[1:], strict=True)
    )
    assert drawn_j == pytest.approx(kit.last().energy_j, rel=0.02)


def test_observe_mode_puts_the_limit_found_back_and_its_excess_is_against_that(kit: Kit) -> None:
    kit.gpu.set_limit_w(210.0)
    seen: list[float] = []
    kit.run(incumbent(1024), mode="observe", max_epochs=60).train(limits_in_force, seen, 40)
    assert min(seen) < 210.0
    assert (seen[-1], kit.last().power_limit_w, kit.last().limit_found_w) == (210.0, 210.0, 210.0)
    assert max(s.limit_w for s in kit.profile()) == 210.0
    step_s, power_w = kit.gpu.load.step(kit.gpu.chip, 1024, 210.0)
    made = kit.last().samples / 1024
    assert kit.last().time_s - kit.last().excess_s == pytest.approx(made * step_s, rel=0.01)
    assert kit.last().energy_j - kit.last().excess_j == pytest.approx(
        made * step_s * power_w, rel=0.03
    )


class _Watched(SimulatedGpu):
    """Fails the test when the setter is called."""

    def set_limit_w(self, limit_w: float) -> None:
        raise AssertionError("measure mode must never set a limit")


@pytest.mark.parametrize("mode", ["measure", "off"])
def test_measure_mode_never_calls_a_setter(kit: Kit, mode: str) -> None:
    gpu = _Watched("v100", load="shufflenet", state_file=kit.tmp / "gpu")
    kit.run(incumbent(1024), mode=mode, on=gpu).train(loop, epochs=9)
    assert (kit.profile(), kit.last().excess_j, kit.last().power_limit_w) == ((), 0.0, 250.0)


def test_a_limit_that_may_not_be_set_costs_one_line_in_the_log(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = SimulatedGpu("v100", load="shufflenet", state_file=kit.tmp / "gpu", may_set_limit=False)
    run = kit.run(explore(1024, bound_epochs=9.0), incumbent(256), on=gpu, max_epochs=20)
    assert run.train(lambda run: loop(run, epochs=99 if run.attempt == 1 else 9)) == 256
    (record,) = [
        r for r in caplog.records if r.levelno >= logging.WARNING and "limit" in r.getMessage()
    ]
    assert "the training continues" in record.getMessage()
    assert {s.limit_w for s in kit.profile()} == {250.0}  # what needed no change was measured
    assert kit.last().energy_j > 0


def test_a_limit_that_somebody_else_sets_while_profiling_is_left_alone_and_not_measured(
    kit: Kit,
) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for number in range(30):
                run.step()
                if (epoch, number) == (5, 15):
                    kit.gpu.set_limit_w(180.0)  # an administrator, through the driver
            run.report(acc=float(epoch == 30))

    kit.run(incumbent(1024), max_epochs=60).train(train)
    assert kit.gpu.limit_w() == 180.0
    assert kit.last().power_limit_w == 180.0
    for s in kit.profile():
        step_s, power_w = kit.gpu.load.step(kit.gpu.chip, 1024, s.limit_w)
        assert s.energy_j / s.time_s == pytest.approx(power_w, rel=0.05)
        assert s.time_s / s.steps == pytest.approx(step_s, rel=0.001)
    assert len(kit.profile()) >= 2


@pytest.mark.parametrize("shown_j", [None, 1e9])
def test_a_counter_that_is_gone_or_stands_still_ends_profiling_and_puts_the_limit_back(
    kit: Kit, caplog: pytest.LogCaptureFixture, shown_j: float | None
) -> None:
    class Stuck(SimulatedGpu):
        def energy_j(self) -> float | None:
            return shown_j if self.limit_w() < 175.0 else super().energy_j()

    gpu = Stuck("v100", load="shufflenet", state_file=kit.tmp / "gpu")
    seen: list[float] = []
    kit.run(incumbent(1024), on=gpu, max_epochs=60).train(limits_in_force, seen, 40)
    assert min(seen) == 150.0
    assert seen[-1] == 250.0
    assert "gives up profiling" in caplog.text
    assert kit.last().energy_j is None
    assert ("could not be read" if shown_j is None else "went back") in kit.last().reasons[
        "energy_j"
    ]
    assert {s.limit_w for s in kit.profile()} == {250.0, 200.0}
    assert kit.last().time_s > 0


def test_a_counter_that_goes_back_leaves_the_energy_unknown_with_its_reason(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            steps(run)
            run.device._slots[COUNTER_MJ] = run.device._slots[ENERGY_J] = 0.0
            steps(run)
            run.report(acc=1.0)

    kit.run(mode="measure").train(train)
    observed = kit.last()
    assert (observed.energy_j, observed.rest_j) == (None, None)
    assert "went back" in observed.reasons["energy_j"]
    assert observed.time_s > 0


def test_a_limit_out_of_range_is_an_error_and_the_attempt_is_written_down(kit: Kit) -> None:
    with pytest.raises(ValueError, match=r"power_limits_w = 90\.0"):
        kit.run(power_limits_w=[200.0, 90.0]).train(loop)
    assert [line.kind for line in kit.lines] == ["start", "end", "final"]
    assert (kit.lines[-1].attempt, kit.lines[1].state) == (None, "failed")


def test_the_limit_found_is_back_after_an_error_and_after_the_loop_alone(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            steps(run, 40 * SAMPLES)
            assert run.device.limit_w() < 250.0
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        kit.run(incumbent(1024)).train(train)
    assert kit.gpu.limit_w() == 250.0

    run = kit.run(explore(256), incumbent(1024))
    assert (run.batch_size, run.attempt) == (1024, 2)
    for _ in run.epochs():
        steps(run, 40 * SAMPLES)
        assert kit.gpu.limit_w() < 250.0
        run.report(acc=1.0)
    assert kit.gpu.limit_w() == 250.0
    assert [(line.kind, line.attempt) for line in kit.lines[-3:]] == [
        ("attempt", 2),
        ("end", 2),
        ("final", 2),
    ]
    assert kit.ends()[-1].state == "converged"


SCRIPT = """
import sys
from airflow_provider_zeus.training.run import ZeusRun
run = ZeusRun.from_env()
for epoch in run.epochs():
    for _ in range(2000):
        run.step(1024)
    print(run.device.limit_w(), flush=True)
    if {where!r} == "epoch":
        {how}
    run.report(acc=0.0)
    if {where!r} == "after":
        {how}
"""


@pytest.mark.parametrize(
    ("where", "how", "state", "kept", "reason"),
    [
        ("after", "break", "exhausted", 1, "left after 1 epoch,"),
        ("after", "raise ValueError('a bug')", "failed", None, "ValueError: a bug"),
        ("epoch", "raise ValueError('a bug')", "failed", None, "ValueError: a bug"),
        ("epoch", "sys.exit(3)", "failed", None, "left the loop before its end"),
    ],
)
def test_at_exit_a_script_gives_the_limit_back_and_says_how_it_left_its_loop(
    kit: Kit,
    script: Callable[..., subprocess.CompletedProcess[str]],
    where: str,
    how: str,
    state: str,
    kept: int | None,
    reason: str,
) -> None:
    result = kit.tmp / "result"
    done = script(SCRIPT.format(where=where, how=how), kit.plan(incumbent(1024)), result)
    assert float(done.stdout.split()[-1]) < 250.0, done.stderr
    *_, end, final = read_result(result)
    assert (end.state, final.kind, final.attempt) == (state, "final", kept)
    assert reason in end.reason
    assert kit.gpu.limit_w() == 250.0


def test_a_script_that_dies_before_it_trains_says_so(
    kit: Kit, script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = kit.tmp / "result"
    code = (
        "from airflow_provider_zeus.training.run import ZeusRun; ZeusRun.from_env(); raise"
        " SystemExit(2)"
    )
    assert script(code, kit.plan(explore(1024), incumbent(256)), result).returncode == 2
    start, end, final = read_result(result)
    assert (start.kind, end.state, end.batch_size, final.attempt) == ("start", "failed", 1024, None)
    assert "before it began" in end.reason


KILLED = """
import sys
from pathlib import Path
from airflow_provider_zeus.training.protocol.events import ResultWriter
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
run, printed = ZeusRun.from_env(), False
for epoch in run.epochs():
    while True:
        run.step(1024)
        if run.device.limit_w() < 250.0 and not printed:
            printed = True
            print(run.device.limit_w(), flush=True)
"""


def test_after_sigkill_the_limit_comes_back_and_every_line_written_is_whole(kit: Kit) -> None:
    result = kit.tmp / "result"
    plan: Plan = kit.plan(incumbent(1024), heartbeat_s=0.02)
    environment = {
        "ZEUS_PLAN": plan.to_json(),
        "ZEUS_RESULT": str(result),
        "PYTHONPATH": ":".join(sys.path),
    }
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert float(process.stdout.readline()) < 250.0
        while result.read_bytes().count(b"\n") < 20:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    lines = list(read_result(result))
    assert [line.kind for line in lines[:3]] == ["start", "attempt", "beat"]
    assert len(lines) == result.read_bytes().count(b"\n") >= 20
    assert {s.limit_w for line in lines for s in line.profile} >= {250.0}
    deadline = time.monotonic() + 60.0
    while kit.gpu.limit_w() != 250.0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert kit.gpu.limit_w() == 250.0
    assert not list(Path(kit.tmp).glob("limit-*"))


def test_in_a_loop_of_steps_the_first_one_began_with_the_epoch(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(NoneDevice, "now_s", lambda self: now_s)

    def train(run: ZeusRun) -> None:
        nonlocal now_s
        for epoch in run.epochs():
            for _ in range(2):
                now_s += 0.05
                run.step()
            run.report(acc=float(epoch == 1))

    kit.run(device="none", mode="off").train(train)
    assert kit.last().time_s == pytest.approx(0.2)
    assert kit.last().rest_s == pytest.approx(0.0)
