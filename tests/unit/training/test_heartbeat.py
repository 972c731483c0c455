"""The heartbeat, and a sink that fails: no sample is lost or sent twice,
and the training goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import pytest

from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.model.trial import PowerPoint, ProfileSample, State
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, loop, steps


def wait_for(condition: Callable[[], object], within_s: float = 60.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {within_s} s"
        time.sleep(0.005)


def test_lines_are_written_while_one_long_step_runs(kit: Kit) -> None:
    def beats() -> list[ResultLine]:
        return [line for line in kit.lines if line.kind == "beat"]

    def train(run: ZeusRun) -> None:
        rate = run.scale_lr(0.1)
        for _ in run.epochs():
            steps(run, 4 * SAMPLES)
            before = len(beats())
            # deep in a step, as far as anybody can tell
            wait_for(lambda before=before: len(beats()) >= before + 3)
            partial = beats()[-1].observation
            assert 3 * SAMPLES < partial.samples <= 4 * SAMPLES
            assert partial.energy_j > 0
            assert partial.learning_rate == rate
            run.report(acc=1.0)

    others = set(threading.enumerate())  # of a test before, whose device still hangs
    kit.run(incumbent(1024), heartbeat_s=0.02).train(train)
    assert kit.lines[-1].kind == "final"
    after = len(kit.lines)
    wait_for(lambda: "zeus-heartbeat" not in {t.name for t in set(threading.enumerate()) - others})
    assert len(kit.lines) == after


def news(lines: list[ResultLine]) -> tuple[list[ProfileSample], list[PowerPoint]]:
    """Samples added up, and points."""
    return [*summed(s for line in lines for s in line.profile)], [
        p for line in lines for p in line.points
    ]


class _Sometimes:
    """A sink that takes a line only every so many calls."""

    def __init__(self, every: int) -> None:
        self.every, self.calls, self.taken = every, 0, list[ResultLine]()

    def __call__(self, line: ResultLine) -> None:
        self.calls += 1
        if self.calls % self.every:
            raise OSError("the disk is full")
        self.taken.append(line)


@pytest.mark.parametrize("every", [2, 3])
def test_what_a_failing_sink_did_not_take_comes_later_in_order_and_once(
    kit: Kit, every: int
) -> None:
    def train(run: ZeusRun) -> int:
        for epoch in run.epochs():
            steps(run)
            if epoch % 2:
                run.progress.beat()
            run.report(acc=float(run.attempt == 2 and epoch == 5))
        return run.batch_size

    sink = _Sometimes(every)
    for target in (kit.lines.append, sink):
        for file in kit.tmp.glob("*.gpu"):
            file.unlink()  # the same device again, from its beginning
        attempts = explore(1024, bound_epochs=30.0), incumbent(256)
        run = kit.run(*attempts, heartbeat_s=1000.0, sink=target, max_epochs=60)
        assert run.train(train) == 256
    sink.every = 1
    run.progress.sender.send("final")  # one more line, and the last ones that wait go before it
    taken = sink.taken[:-1]
    assert news(taken) == news(kit.lines)
    assert len(news(taken)[0]) > 7
    assert len(news(taken)[1]) > 20
    ends_and_others = [(x.kind, x.attempt, x.observation) for x in taken if x.kind != "beat"]
    assert ends_and_others == [
        (x.kind, x.attempt, x.observation) for x in kit.lines if x.kind != "beat"
    ]


def test_a_sink_that_never_works_costs_log_lines_only(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def sink(line: ResultLine) -> None:
        raise ValueError("no")

    assert kit.run(explore(1024, bound_epochs=1.0), incumbent(256), sink=sink).train(loop) == 256
    said = [
        r
        for r in caplog.records
        if "Zeus could not write" in r.getMessage() and r.levelno > logging.DEBUG
    ]
    assert [r.levelno for r in said] == [logging.WARNING], "once, not for each line"


def test_beats_and_the_training_never_lose_or_repeat_a_point(kit: Kit) -> None:
    kit.run(incumbent(256), max_epochs=200).train(loop, epochs=30)
    undisturbed = news(kit.lines)
    assert len(undisturbed[1]) > 100
    assert len(undisturbed[0]) >= 5

    kit.lines.clear()
    next(kit.tmp.glob("*.gpu")).unlink()
    run = kit.run(incumbent(256), max_epochs=200)
    stop = threading.Event()

    def beats() -> int:
        return sum(line.kind == "beat" for line in kit.lines)

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run)
            wait_for(lambda epoch=epoch: beats() > epoch)  # the threads may begin late
            run.report(acc=0.9 if epoch == 29 else 0.5)

    def hammer() -> None:
        while not stop.is_set():
            run.progress.beat()

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        run.train(train)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    samples, points = news(kit.lines)
    assert points == undisturbed[1]
    for one, other in zip(samples, undisturbed[0], strict=True):
        assert (one.limit_w, one.samples, one.steps) == (other.limit_w, other.samples, other.steps)
        # added in another order
        assert (one.energy_j, one.time_s) == pytest.approx((other.energy_j, other.time_s))
    kinds = [line.kind for line in kit.lines]
    assert kinds[kinds.index("end") :] == ["end", "final"]
    assert kinds.count("beat") >= 30


def test_a_beat_that_raises_does_not_end_the_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def beat() -> None:
        calls.append(1)
        raise ValueError("no")

    heartbeat = Heartbeat(beat, 0.005)
    wait_for(lambda: len(calls) > 3)
    heartbeat.stop()
    wait_for(lambda: not heartbeat._thread.is_alive())
    assert "A heartbeat failed" in caplog.text


def test_a_forked_child_that_ends_writes_nothing_and_keeps_the_limit(kit: Kit) -> None:
    def train(run: ZeusRun) -> float:
        for _ in run.epochs():
            steps(run, 20 * SAMPLES)
            before = len(kit.lines)
            child = os.fork()
            if child == 0:
                run.close()
                os._exit(0 if len(kit.lines) == before else 1)
            assert os.waitpid(child, 0)[1] == 0
            limit_w = run.device.limit_w()
            run.report(acc=1.0)
        return limit_w

    assert kit.run(incumbent(1024)).train(train) < 250.0
    assert kit.ends()[0].state is State.CONVERGED
