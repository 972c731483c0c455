"""A training that was stopped for a while tells so: its log line, its observation,
and the rates that it teaches.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from airflow_provider_zeus.model.cost import Rates, Weights
from airflow_provider_zeus.model.trial import PAUSED, Observation
from airflow_provider_zeus.training.attempt_checks import bound_passed
from airflow_provider_zeus.training.pauses import NO_PAUSE, EpochSpent, Pauses, pause_of
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.commands import waited_for
from tests.unit.training.conftest import ROOT, Kit, explore, incumbent, steps


def epoch(time_s: float, rest_s: float = 0.5) -> EpochSpent:
    return EpochSpent(time_s, 100.0 * time_s, rest_s, 50.0 * rest_s)


def total(*times_s: float) -> float:
    pauses = Pauses()
    for time_s in times_s:
        pauses.end_epoch(epoch(time_s))
    return pauses.total(NO_PAUSE).time_s


@pytest.mark.parametrize(
    ("times_s", "paused_s"),
    [
        ((2.0, 2.0, 20.0), 0.0),  # three epochs tell nothing
        ((2.0, 2.0, 2.0, 20.0), 18.0),
        ((9.0, 2.0, 2.0, 2.0, 2.0), 0.0),  # the first one warms up
        ((2.0, 2.1, 1.9, 20.0, 2.0, 100.0, 2.0), 116.0),
        ((2.0, 2.0, 2.0, 5.9, 2.0), 0.0),  # less than three times the usual one
        ((0.01, 0.01, 0.01, 0.5), 0.0),  # shorter than a second
        ((2.0, 2.0, 2.0, 2.0, 9.0, 2.0, 2.0, 2.0, 2.0, 9.1), 0.0),  # each fifth one validates
        ((1.0, 1.0, 1.0, *[10.0] * 10), 0.0),  # it is slower from then on
    ],
)
def test_an_epoch_that_takes_far_longer_than_the_others_was_paused(
    times_s: tuple[float, ...], paused_s: float
) -> None:
    assert total(*times_s) == pytest.approx(paused_s)


def test_what_a_pause_took_is_beyond_the_usual_epoch_and_in_the_part_that_it_was_in() -> None:
    before = [epoch(2.0)] * 3
    assert pause_of(EpochSpent(20.0, 900.0, 0.5, 25.0), before) == EpochSpent(18.0, 700.0, 0.0, 0.0)
    assert pause_of(EpochSpent(20.0, 900.0, 18.5, 525.0), before) == EpochSpent(
        18.0, 700.0, 18.0, 500.0
    )
    assert pause_of(EpochSpent(20.0, None, 0.5, None), before) == EpochSpent(18.0, None, 0.0, None)
    assert pause_of(epoch(20.0), before[:2]) is None


def test_an_epoch_that_has_not_ended_may_be_paused_already() -> None:
    pauses = Pauses()
    for _ in range(3):
        pauses.end_epoch(epoch(2.0))
    assert pauses.total(epoch(20.0)).time_s == pytest.approx(18.0)
    pauses.end_epoch(epoch(20.0))
    assert pauses.total(NO_PAUSE).time_s == pytest.approx(18.0), "it counts once"


def test_rates_leave_a_pause_out_and_its_wall_time_and_energy_stay() -> None:
    usual = Observation(
        epochs=4.0, samples=400, samples_per_epoch=100.0, time_s=8.0, energy_j=800.0, rest_s=1.0
    )
    paused = Observation(
        **{
            **usual.to_dict(),
            "time_s": 26.0,
            "energy_j": 1300.0,
            "paused_s": 18.0,
            "paused_j": 500.0,
        }
    )
    assert Rates.of(paused) == Rates.of(usual)
    assert (paused.time_s, paused.energy_j) == (26.0, 1300.0)


def test_a_pause_does_not_end_a_try() -> None:
    planned = explore(64, bound_cost=1000.0)
    weights = Weights(1.0, 1.0)
    paused = Observation(epochs=4.0, time_s=26.0, energy_j=1300.0)
    assert bound_passed(planned, weights, paused, epoch_cost=None, at_end_of_epoch=False)
    told = Observation(**{**paused.to_dict(), "paused_s": 18.0, "paused_j": 500.0})
    assert bound_passed(planned, weights, told, epoch_cost=None, at_end_of_epoch=False) is None


def test_a_training_on_a_device_tells_its_pause(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    gpu = kit.gpu
    stood_s: list[float] = []

    def train(run: ZeusRun) -> None:
        for number in run.epochs():
            steps(run)
            if number == 4:
                began_s = gpu.now_s()
                for _ in range(8000):  # outside of the steps
                    gpu.on_step(256)
                stood_s.append(gpu.now_s() - began_s)
            run.report(acc=0.9 if number == 5 else 0.5)

    kit.run(incumbent(256), mode="off", on=gpu).train(train)
    seen = kit.last()
    assert seen.paused_s == pytest.approx(stood_s[0], rel=0.02)
    assert seen.time_s is not None
    assert seen.time_s > stood_s[0]
    assert seen.rest_s == pytest.approx(0.0, abs=0.02 * stood_s[0]), (
        "it was outside of the steps, and is no validation"
    )
    assert seen.paused_j is not None
    assert seen.energy_j is not None
    assert 0 < seen.paused_j < seen.energy_j
    assert seen.reasons[PAUSED].startswith("paused for ")
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("Zeus: paused for ") and "in epoch 4" in line for line in lines) == 1


TRAINING = """
import os, signal, time
from airflow_provider_zeus.training.run import ZeusRun

def train(run):
    for epoch in run.epochs():
        for step in range(10):
            time.sleep(0.02)
            run.step(run.batch_size)
            if (epoch, step) == (5, 3):
                os.kill(os.getpid(), signal.SIGSTOP)
        run.report(acc=0.9 if epoch == 8 else 0.5)

ZeusRun.from_env().train(train)
"""


def test_a_real_training_that_is_stopped_by_a_signal_tells_its_pause(
    kit: Kit, tmp_path: Path
) -> None:
    plan = kit.plan(incumbent(256), device="none", mode="off")
    result = tmp_path / "result"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "ZEUS_PLAN": plan.to_json(),
        "ZEUS_RESULT": str(result),
    }
    command = [sys.executable, "-c", TRAINING]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as training:
        process = psutil.Process(training.pid)
        assert waited_for(lambda: process.status() == psutil.STATUS_STOPPED)
        began_s = time.monotonic()
        assert waited_for(lambda: time.monotonic() - began_s > 4.0)
        os.kill(training.pid, signal.SIGCONT)
        _, errors = training.communicate(timeout=120)
    assert training.returncode == 0, errors
    ends = [
        line for line in map(json.loads, result.read_text().splitlines()) if line["kind"] == "end"
    ]
    seen = ends[-1]["observation"]
    assert seen["paused_s"] > 3.5
    assert seen["time_s"] > seen["paused_s"] + 1.0, "the wall time stays"
    assert seen["reasons"][PAUSED].startswith("paused for ")
    assert "Zeus: paused for" in errors
