"""A profile over several runs: reset where training drifts, continued after a kill, logged."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.partial_sums import since_mark, summed
from airflow_provider_zeus.model.trial import DATA_WAIT, ProfileSample
from airflow_provider_zeus.power.device import Clocks, NoneDevice
from airflow_provider_zeus.power.meter import Reading
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.training.profiling.measurement_windows import (
    DriftDetector,
    MeasurementWindows,
)
from airflow_provider_zeus.training.profiling.profiler import Profiler
from airflow_provider_zeus.training.profiling.sweep import Sweep
from airflow_provider_zeus.training.protocol.events import ResultLine, read_lines
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import SAMPLES, Kit, RealClock, incumbent, loop, steps


class Other(SimulatedGpu):
    """The same GPU under a training whose samples take ``factor`` times as much of everything."""

    factor = 1.0

    def on_step(self, samples: int) -> None:
        super().on_step(round(samples * self.factor))


def lines_of(result: Path) -> list[ResultLine]:
    with result.open("rb") as file:
        return list(read_lines(file))


def other(kit: Kit, factor: float) -> Other:
    gpu = Other("v100", load="shufflenet", state_file=kit.tmp / "other.gpu")
    gpu.factor = factor
    return gpu


@pytest.fixture
def known(kit: Kit) -> tuple[ProfileSample, ...]:
    """A complete profile of batch size 1024."""
    kit.run(incumbent(1024), max_epochs=60).train(loop, epochs=20)
    profile = kit.profile()
    kit.lines.clear()
    return profile


@pytest.mark.parametrize("steps_per_epoch", [6, 50, 1000])  # 1 s, 10 s, 200 s
def test_where_a_sample_draws_over_a_tenth_more_the_profile_is_measured_anew_once(
    kit: Kit,
    known: tuple[ProfileSample, ...],
    steps_per_epoch: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    epochs = max(2000 // steps_per_epoch, 2)
    size = steps_per_epoch * 1024
    run = kit.run(incumbent(1024), on=other(kit, 1.5), profile=known, max_epochs=epochs)
    run.train(loop, epochs=epochs, samples=size)
    measured_again = kit.profile()
    assert [s.is_mark for s in measured_again].count(True) == 1
    now = summed((*known, *measured_again))
    assert now == summed(since_mark(measured_again)), "of the profile before nothing is left"
    before = {s.limit_w: s.energy_j / s.samples for s in known}
    assert all(s.energy_j / s.samples > 1.2 * before[s.limit_w] for s in now if s.limit_w in before)
    assert {s.limit_w for s in now} >= {250.0, 200.0, 150.0, 100.0}
    assert caplog.text.count("measured again") == 1

    kit.lines.clear()
    kit.run(incumbent(1024), on=other(kit, 1.5), profile=now, max_epochs=60).train(loop, epochs=20)
    assert kit.profile() == ()
    assert kit.last().excess_s == 0.0


@pytest.mark.parametrize("factor", [0.95, 1.0, 1.04])
def test_where_it_draws_about_the_same_nothing_is_measured_again(
    kit: Kit, known: tuple[ProfileSample, ...], factor: float
) -> None:
    kit.run(incumbent(1024), on=other(kit, factor), profile=known, max_epochs=60).train(
        loop, epochs=40
    )
    assert kit.profile() == ()


def test_a_change_in_the_middle_is_seen_and_validation_is_none(
    kit: Kit, known: tuple[ProfileSample, ...]
) -> None:
    gpu = other(kit, 1.0)
    marks = list[int]()

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            gpu.factor = 1.0 if epoch < 20 else 1.5
            steps(run)
            for _ in range(100):
                SimulatedGpu.on_step(gpu, 2048)  # validation, which draws twice as much
            marks.append([s.is_mark for s in run.progress.live.measured].count(True))
            run.report(acc=float(epoch == 39))

    kit.run(incumbent(1024), on=gpu, profile=known, max_epochs=60).train(train)
    assert marks[19] == 0
    assert 20 <= marks.index(1) <= 23
    assert marks[-1] == 1


@pytest.mark.parametrize("steps_per_epoch", [5, 17, 50])
def test_validation_is_no_part_of_a_profile_in_a_loop_of_steps(
    kit: Kit, steps_per_epoch: int
) -> None:
    """The end of the training steps is not announced;
    validation draws twice as much as a step of training.
    """
    gpu = other(kit, 1.0)

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run, steps_per_epoch * 1024)
            for _ in range(steps_per_epoch // 2):
                SimulatedGpu.on_step(gpu, 2048)
            run.report(acc=float(epoch == epochs - 1))

    epochs = 3000 // steps_per_epoch
    kit.run(incumbent(1024), on=gpu, max_epochs=epochs).train(train)
    profile = kit.profile()
    assert not any(s.is_mark for s in profile)
    assert len(profile) >= 5
    for s in profile:
        step_s, power_w = gpu.load.step(gpu.chip, 1024, s.limit_w)
        assert s.time_s / s.samples == pytest.approx(step_s / 1024, rel=0.001)
        # of a counter that is up to 100 ms behind, in parts of 0.7 s
        lag = 0.05 if steps_per_epoch > 5 else 0.1
        assert s.energy_j / s.samples == pytest.approx(step_s * power_w / 1024, rel=lag)


def test_a_watch_counts_stretches_in_a_row_and_goes_on_after_a_pause() -> None:
    detector = DriftDetector(5.0, 100)
    now = [0.0, 0.0, 0]

    def train(seconds: float, j_per_sample: float, *, pauses: bool = False) -> bool:
        now[0], now[1], now[2] = (
            now[0] + seconds,
            now[1] + 100 * seconds * j_per_sample,
            now[2] + round(100 * seconds),
        )
        return detector.drifted(Reading(now[1], now[0]), int(now[2]), 1.0, pauses=pauses)

    assert not detector.is_open
    assert not train(0.0, 1.0)
    assert [train(5.0, j) for j in (1.2, 1.0, 0.8, 1.05, 1.2)] == [False] * 5
    assert train(5.0, 0.85), "two in a row, whichever way"
    detector = DriftDetector(5.0, 100)
    now = [0.0, 0.0, 0]
    train(0.0, 1.0)
    assert not train(3.0, 1.2, pauses=True)
    assert not detector.is_open
    now[0], now[1] = 99.0, 9999.0  # validation
    assert not train(0.0, 1.0)
    assert [train(2.0, 1.2), train(5.0, 1.2)] == [False, True]


def test_a_watch_without_energy_says_nothing() -> None:
    detector = DriftDetector(5.0, 1)
    for number in range(9):
        assert not detector.drifted(
            Reading(None, 6.0 * number, "gone"), 100 * number, 1.0, pauses=False
        )


# --- pieces


def measured(
    windows: MeasurementWindows, rates: list[float], *, step_s: float = 0.1
) -> Iterator[int]:
    """Train through so many pieces, each of which takes so many seconds per 10 samples;
    how many each one gave.
    """
    now_s = 0.0
    samples = 0
    windows.begin(Reading(0.0, 0.0), 200.0)
    while not windows.edge_due(now_s):
        now_s += step_s
    windows.open(Reading(200 * now_s, now_s), samples)
    for rate in rates:
        done = False
        while not done:
            now_s = now_s + step_s * rate
            samples = samples + 10
            done = windows.edge_due(now_s)
        windows.close(Reading(200 * now_s, now_s), samples)
        yield len(windows.take(at_end=False))
        windows.open(Reading(200 * now_s, now_s), samples)


def test_after_a_change_pieces_count_once_two_agree_and_no_more_than_three_are_left_out() -> None:
    assert list(measured(MeasurementWindows(NoneDevice(), 10, 5.0, 10), [1.0, 1.01, 1.3, 1.0])) == [
        0,
        2,
        1,
        1,
    ]
    assert list(
        measured(MeasurementWindows(NoneDevice(), 10, 5.0, 10), [2.0, 1.5, 1.0, 1.02, 1.0])
    ) == [0, 0, 0, 2, 1]
    assert list(
        measured(MeasurementWindows(NoneDevice(), 10, 5.0, 10), [1.0, 2.0, 1.0, 2.0, 1.0])
    ) == [0, 0, 0, 1, 1]


def test_a_piece_waits_for_a_counter_that_has_not_ticked() -> None:
    windows = MeasurementWindows(NoneDevice(), 10, 5.0, 10)
    windows.begin(Reading(7.0, 0.0), 200.0)
    windows.open(Reading(7.0, 1.0), 0)
    windows.close(Reading(7.0, 2.0), 10)
    assert not windows.counter_moved
    windows.open(Reading(7.0, 2.0), 10)
    windows.close(Reading(7.0, 6.0), 20)
    assert windows.counter_moved
    assert windows.take(at_end=False) == []
    assert windows.failures == 1


# --- what is said, and what survives


def test_gradient_accumulation_and_short_batches_do_not_bias_a_profile(kit: Kit) -> None:
    """Costs count per sample, not per step: the samples of this load cost the same in any batch."""

    class PerSample(SimulatedGpu):
        def on_step(self, samples: int) -> None:
            for _ in range(samples // 64):
                super().on_step(64)

    def train(run: ZeusRun, accumulated: int) -> None:
        for epoch in run.epochs():
            for _ in range(400 // accumulated):
                run.step(256 * accumulated)
            run.step(64)  # the short last batch
            run.report(acc=float(epoch == 40))

    best = []
    for accumulated in (1, 8):
        kit.lines.clear()
        gpu = PerSample("v100", load="shufflenet", state_file=kit.tmp / f"{accumulated}.gpu")
        kit.run(on=gpu, max_epochs=60).train(train, accumulated)
        rates = {s.limit_w: (s.energy_j / s.samples, s.time_s / s.samples) for s in kit.profile()}
        best.append(kit.last().power_limit_w)
        for limit_w, (j, s) in rates.items():
            step_s, power_w = gpu.load.step(gpu.chip, 64, limit_w)
            assert s == pytest.approx(step_s / 64, rel=0.005)
            assert j == pytest.approx(step_s * power_w / 64, rel=0.03)
    assert best[0] == best[1]


def test_observe_says_what_the_optimum_would_have_saved(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_provider_zeus")
    kit.run(incumbent(1024), mode="observe", eta=1.0, max_epochs=60).train(loop, epochs=40)
    (said,) = re.findall(
        r"at (\d+) W instead of 250 W these 2048000 samples would have saved (\S+) J of energy .*"
        r" and (\S+) s of time",
        caplog.text,
    )
    limit_w, saved_j, saved_s = (float(each) for each in said)
    gpu = kit.gpu
    rates = {}
    for w in (250.0, limit_w):
        step_s, power_w = gpu.load.step(gpu.chip, 1024, w)
        rates[w] = step_s * power_w / 1024, step_s / 1024
    assert saved_j == pytest.approx(2_048_000 * (rates[250.0][0] - rates[limit_w][0]), rel=0.05)
    assert saved_s == pytest.approx(2_048_000 * (rates[250.0][1] - rates[limit_w][1]), rel=0.02)
    assert saved_j > 0 > saved_s
    notes = kit.ends()[-1].notes
    assert (notes["optimum_w"], notes["optimum_saves_j"]) == (
        limit_w,
        pytest.approx(saved_j, rel=0.001),
    )
    assert notes["optimum_saves_energy"] == pytest.approx(
        1 - rates[limit_w][0] / rates[250.0][0], abs=0.03
    )
    low = notes["optimum_saves_energy_low"]
    high = notes["optimum_saves_energy_high"]
    assert 0 < low < 1 - rates[limit_w][0] / rates[250.0][0] < high < low + 0.1
    assert ResultLine.from_json(kit.ends()[-1].to_json()).notes == notes
    assert kit.last().power_limit_w == 250.0
    caplog.clear()
    kit.run(incumbent(1024)).train(loop)
    assert "would have saved" not in caplog.text


def test_a_saving_that_the_noise_of_the_profile_hides_is_not_clear_yet(kit: Kit) -> None:
    """Two limits whose J per sample differ by less than the scatter of their pieces."""
    noisy = {200.0: (0.97, 1.05, 0.96, 1.04), 250.0: (1.0, 1.06, 0.97, 1.03)}
    profiler = Profiler(
        [250.0, 200.0], (), batch_size=64, weights=Weights(1.0, 250.0), min_s=1.0, min_steps=1
    )
    for limit_w, rates in noisy.items():
        for j in rates:
            profiler.add(
                ProfileSample(
                    batch_size=64,
                    limit_w=limit_w,
                    samples=100,
                    energy_j=100 * j,
                    time_s=10.0,
                    steps=9,
                )
            )
    limits = SimpleNamespace(found_w=250.0, can_set=True)
    sweep = Sweep(kit.gpu, limits, profiler, observe=True)  # type: ignore[arg-type]
    saving = sweep.missed_saving(1000)
    assert saving is not None
    missed = saving.notes(1000)
    assert missed["optimum_w"] == 200.0
    assert (
        missed["optimum_saves_energy_low"]
        < 0
        < missed["optimum_saves_energy"]
        < missed["optimum_saves_energy_high"]
    )
    assert "not clear yet" in saving.text(1000)


def test_a_piece_knows_what_was_seen_of_the_cap_in_it_and_nothing_of_one_that_was_dropped(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = kit.gpu
    now = Clocks(900.0, 1530.0, 4, 0.0)
    limit_w = 250.0
    monkeypatch.setattr(gpu, "clocks", lambda: now)
    monkeypatch.setattr(gpu, "limit_w", lambda: limit_w)
    profiler = Profiler(
        [250.0, 200.0], (), batch_size=10, weights=Weights(0.5, 250.0), min_s=5.0, min_steps=5
    )
    limits = SimpleNamespace(found_w=250.0, can_set=True, set_w=lambda _w: True)
    sweep = Sweep(gpu, limits, profiler, observe=False)  # type: ignore[arg-type]
    sweep.start(Reading(0.0, 0.0), 0)
    sweep.pass_edge(Reading(200.0, 1.0), 0)
    # capped all the time, and somebody has set another limit
    now = Clocks(900.0, 1530.0, 4, 1.0)
    limit_w = 180.0
    sweep.pass_edge(Reading(400.0, 2.0), 10)
    assert sweep.measured == []
    now = Clocks(1380.0, 1530.0, 0, 1.0)
    limit_w = 250.0
    sweep.start(Reading(400.0, 2.0), 10)
    for second in (3, 4, 5):
        sweep.pass_edge(Reading(200.0 * second, float(second)), 10 * (second - 2))
    assert {(piece.capped, piece.sm_clock_mhz) for piece in sweep.measured} == {(0.0, 1380.0)}


@pytest.mark.parametrize(
    ("eta", "within"),
    [
        (1.0, (100, 125)),
        (0.0, (250, 250)),
    ],
)
def test_the_limit_set_is_the_best_by_the_job_s_eta(
    kit: Kit, eta: float, within: tuple[int, int]
) -> None:
    kit.run(incumbent(1024), eta=eta, max_epochs=60).train(loop, epochs=40)
    lowest, highest = within
    assert lowest <= kit.last().power_limit_w <= highest


def test_what_to_try_is_said_at_the_end(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "airflow_provider_zeus")

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            for _ in range(10):
                run.step()
            run.progress.present.end_pass(2.0, 10.0)
            run.report(acc=float(epoch == 1))

    kit.run(on=RealClock(kit)).train(train)
    assert caplog.text.count("this training waits for its batches. Try ") == 1
    end = kit.ends()[-1]
    assert (end.notes["data_wait"], end.notes["data_wait_s"]) == (
        pytest.approx(0.2),
        pytest.approx(4.0),
    )
    assert end.observation.reasons[DATA_WAIT].endswith("was spent waiting for batches")
    assert end.observation.wait_remedy.startswith(" Try ")
    assert "% of" not in caplog.text, "the run's last line says how much"


def test_notes_that_are_no_figures_make_no_line() -> None:
    line = ResultLine(kind="end", start_id="a", notes={"data_wait": 0.2})
    assert ResultLine.from_json(line.to_json()) == line
    assert "notes" not in ResultLine(kind="end", start_id="a").to_json()
    for wrong in ('"much"', "[0.2]", '{"data_wait": "much"}', '{"data_wait": null}'):
        with pytest.raises(ValueError, match="result line"):
            ResultLine.from_json(line.to_json().replace('{"data_wait": 0.2}', wrong))


KILLED = """
import sys
from airflow_provider_zeus.training.run import ZeusRun
run = ZeusRun.from_env()
for epoch in run.epochs():
    while True:
        run.step(1024)
        if run.device.now_s() > 17.0:
            run.progress.beat()
            print("now", flush=True)
            sys.stdin.read()
"""


def test_a_killed_run_leaves_what_it_measured_down_to_pieces_of_a_window(kit: Kit) -> None:
    result = kit.tmp / "result"
    plan = kit.plan(incumbent(1024), heartbeat_s=60.0)
    environment = {
        "ZEUS_PLAN": plan.to_json(),
        "ZEUS_RESULT": str(result),
        "PYTHONPATH": ":".join(sys.path),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], env=environment, stdin=pipe, stdout=pipe
    ) as process:
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
    left = {s.limit_w: s.time_s for line in lines_of(result) for s in line.profile}
    assert left[250.0] >= 5.0
    assert left[200.0] >= 5.0
    assert 1.0 < left[150.0] < 5.0, "a part of its window"
    deadline = time.monotonic() + 60.0
    while kit.gpu.limit_w() != 250.0 and time.monotonic() < deadline:
        time.sleep(0.02)
    kit.run(
        incumbent(1024), profile=tuple(s for line in lines_of(result) for s in line.profile)
    ).train(loop, epochs=1, samples=SAMPLES // 5)
    assert kit.profile()[0].limit_w == 150.0
