"""Peeks: what runs after the kept attempt, what it is charged, and that nothing in it hurts."""

from __future__ import annotations

import json
import logging
import random
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_provider_zeus.errors import BelowTargetError
from airflow_provider_zeus.optimizer.cost import Rates, Weights, best_limit
from airflow_provider_zeus.optimizer.peeks import PEEK_S
from airflow_provider_zeus.optimizer.trial import Observation, State
from airflow_provider_zeus.power.none import NoneDevice
from airflow_provider_zeus.power.simulated import SimulatedGpu
from airflow_provider_zeus.training.environment import Document
from airflow_provider_zeus.training.plan import Line, Plan, read_result
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.signals import AttemptOver, TrainingKilled
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, peek, steps
from tests.unit.training.conftest import loop as any_loop

BOTH = (explore(256, bound_epochs=50.0), incumbent(1024))
KEPT = 256  # what the first attempt runs
LONG = 20  # epochs: peeks are short beside such a run


def loop(run: ZeusRun, *, epochs: int = LONG, **options: Any) -> int:
    """A training that needs many epochs."""
    return any_loop(run, epochs=epochs, **options)


@pytest.fixture
def kit(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """With time for them."""
    plan = kit.plan
    monkeypatch.setattr(kit, "plan", lambda *a, **changes: plan(*a, **{"max_epochs": 60, **changes}))
    return kit


@dataclass
class Watch:
    """A sink that notes what the GPU showed at each line."""

    gpu: SimulatedGpu
    lines: list[Line] = field(default_factory=list)
    seen: list[tuple[float, float, float]] = field(default_factory=list)  # s, J, W of the limit

    def __call__(self, line: Line) -> None:
        self.lines.append(line)
        self.seen.append((self.gpu.now_s(), self.gpu.energy_j() or 0.0, self.gpu.limit_w()))

    def between(self, kind: str = "end") -> tuple[float, float]:
        """(s, J) from the first line of a peek to this one."""
        first = next(i for i, x in enumerate(self.lines) if x.peek is not None)
        last = next(i for i, x in enumerate(self.lines) if x.peek is not None and x.kind == kind)
        return self.seen[last][0] - self.seen[first][0], self.seen[last][1] - self.seen[first][1]


def peeks_of(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.kind == "end" and line.peek is not None]


def seen_by(line: Line) -> Observation:
    assert line.observation is not None
    return line.observation


def truth(gpu: SimulatedGpu, batch_size: int, limit_w: float) -> tuple[float, float]:
    """(J, s) per sample by the load's own equations."""
    step_s, power_w = gpu.load.step(gpu.chip, batch_size, limit_w)
    return step_s * power_w / batch_size, step_s / batch_size


def test_peeks_follow_the_final_line_and_the_value_and_the_handle_stay_the_kept_attempts(kit: Kit) -> None:
    saved: list[int] = []
    run = kit.run(*BOTH, peeks=(peek(512), peek(1024)))
    value = object()

    def train(run: ZeusRun) -> object:
        loop(run, saved=saved)
        return value

    assert run.train(train) is value
    assert [(x.kind, x.attempt, x.peek, x.batch_size) for x in kit.lines] == [
        ("start", None, None, None),
        ("attempt", 1, None, 256),
        ("end", 1, None, 256),
        ("final", 1, None, None),
        ("attempt", 3, 0, 512),
        ("end", 3, 0, 512),
        ("attempt", 4, 1, 1024),
        ("end", 4, 1, 1024),
    ]
    assert saved == [256], "nothing after the loop runs in a peek"
    assert (run.batch_size, run.attempt) == (256, 1)
    assert [x.state for x in peeks_of(kit.lines)] == [State.GIVEN_UP] * 2
    assert all(x.reason and x.reason.startswith("looked at for ") for x in peeks_of(kit.lines))
    assert [Line.from_json(x.to_json()) for x in kit.lines] == kit.lines


@pytest.mark.parametrize("mode", ["optimize", "observe", "measure"])
@pytest.mark.parametrize("batch_size", [128, 512, 1024])
def test_it_measures_one_limit_and_its_rates_are_those_of_steady_training(kit: Kit, batch_size: int, mode: str) -> None:
    watch = Watch(kit.gpu)
    limits: set[float] = set()

    def train(run: ZeusRun) -> None:
        if run.batch_size == batch_size:
            run.device.on_step(9000)  # set-up keeps the GPU busy
        for epoch in run.epochs():
            for _ in range(SAMPLES // run.batch_size):
                run.step()
                if run.batch_size == batch_size:
                    limits.add(run.device.limit_w())
            run.report(acc=0.9 if epoch == 39 else 0.0)

    run = kit.run(incumbent(KEPT), peeks=(peek(batch_size),), mode=mode, sink=watch, on=watch.gpu)
    run.train(train)
    kept, (end,) = next(x for x in watch.lines if x.kind == "end"), peeks_of(watch.lines)
    limit_w, o = seen_by(kept).power_limit_w, seen_by(end)
    assert limit_w is not None
    assert limits == {limit_w}, "the limit that the kept attempt chose, and no other"
    assert (mode == "optimize") == (limit_w < 250.0)
    rates, (j, s) = Rates.of(o), truth(watch.gpu, batch_size, limit_w)
    assert rates is not None
    assert rates.s_per_sample == pytest.approx(s, rel=0.05)
    assert rates.j_per_sample == pytest.approx(j, rel=0.05)
    assert (rates.rest_s, rates.rest_j) == (0.0, 0.0)
    assert (o.rest_s, o.reasons["rest_s"]) == (None, "a peek sees no validation")
    assert (o.time_s, o.energy_j) == pytest.approx(watch.between(), abs=1e-6), "all that this call has drawn"
    set_up_s = watch.gpu.load.step(watch.gpu.chip, 9000, limit_w)[0]
    assert o.excess_s is not None
    assert o.excess_s >= 0.9 * set_up_s, "set-up is charged, not learnt"
    assert (o.samples_per_epoch, o.epochs) == (seen_by(kept).samples_per_epoch, (o.samples or 0) / SAMPLES)
    assert 5.0 <= (o.time_s or 0.0) - set_up_s <= 8.0, "as long as a window and its warming up"
    samples = [x for line in watch.lines if line.peek is not None for x in line.profile]
    assert [(x.batch_size, x.limit_w) for x in samples] == ([] if mode == "measure" else [(batch_size, limit_w)])
    assert o.limit_found_w == (None if mode == "measure" else 250.0)
    assert kit.gpu.limit_w() == 250.0, "given back"


def test_after_a_profile_that_was_cut_off_it_takes_the_best_limit_so_far(kit: Kit) -> None:
    gpu = kit.gpu
    run = kit.run(incumbent(KEPT), peeks=(peek(512),), on=gpu, eta=0.1, profile_s=60.0)
    run.train(loop)
    kept = [s for s in kit.profile() if s.batch_size == KEPT]
    assert 1 < len({s.limit_w for s in kept}) < 7, "cut off"
    best = best_limit(kept, Weights(0.1, 250.0))
    assert best is not None
    assert seen_by(peeks_of(kit.lines)[0]).power_limit_w == best[0]
    assert seen_by(kit.ends()[0]).power_limit_w != best[0]


def test_at_most_ten_seconds(kit: Kit) -> None:
    run = kit.run(incumbent(KEPT), peeks=(peek(1024),), profile_s=60.0, mode="measure")
    run.train(loop, epochs=1, samples=20 * SAMPLES)
    o = seen_by(peeks_of(kit.lines)[0])
    step_s = kit.gpu.load.step(kit.gpu.chip, 1024, 250.0)[0]
    assert PEEK_S <= (o.time_s or 0.0) <= PEEK_S + 2 * step_s
    assert 0 < (o.epochs or 0.0) < 0.1
    rates = Rates.of(o)
    assert rates is not None
    assert rates.s_per_sample == pytest.approx(truth(kit.gpu, 1024, 250.0)[1], rel=0.05)


@pytest.mark.parametrize("by", ["steps", "report", "loader"])
def test_at_most_one_epoch(kit: Kit, by: str) -> None:
    data = torch.arange(16 * 1024)
    after: list[int] = []

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            if by == "loader":
                for _ in run.data_loader(data, drop_last=True):
                    pass
            else:
                steps(run, 16 * 1024 - (by == "report" and run.batch_size == 1024) * 1024)
            after.append(run.batch_size)
            run.report(acc=0.9 if epoch + 1 == LONG else 0.5)
            after.append(run.batch_size)

    kit.run(incumbent(KEPT), peeks=(peek(1024),)).train(train)
    (end,) = peeks_of(kit.lines)
    assert seen_by(end).samples == 16 * 1024 - (by == "report") * 1024
    assert after == [KEPT] * 2 * LONG + [1024] * (by == "report")
    rates = Rates.of(seen_by(end))
    assert rates is not None
    assert rates.s_per_sample == pytest.approx(truth(kit.gpu, 1024, seen_by(end).power_limit_w or 0)[1], rel=0.05)


def test_what_is_too_short_for_the_counter_teaches_nothing(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = kit.gpu
    frozen = {"energy_j": 0.0}
    run = kit.run(incumbent(KEPT), peeks=(peek(1024),), on=gpu)

    def train(run: ZeusRun) -> None:
        if run.batch_size == 1024:
            frozen["energy_j"] = gpu.energy_j() or 0.0
            monkeypatch.setattr(SimulatedGpu, "energy_j", lambda self: frozen["energy_j"])
        loop(run)

    run.train(train)
    o = seen_by(peeks_of(kit.lines)[0])
    assert Rates.of(o) is None, "0 J would look free"
    assert (o.epochs, o.reasons["epochs"]) == (None, "it trained too short to be measured")


def test_without_a_source_of_energy_time_is_measured(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(NoneDevice, "now_s", lambda self: now_s)

    def train(run: ZeusRun) -> None:
        nonlocal now_s
        for epoch in run.epochs():
            for _ in range(12):
                now_s += 0.002 if run.batch_size == KEPT else 0.004
                run.step(10)
            run.report(acc=0.9 if epoch + 1 == LONG else 0.5)

    kit.run(incumbent(KEPT), peeks=(peek(1024),), device="none").train(train)
    o = seen_by(peeks_of(kit.lines)[0])
    assert (o.energy_j, o.excess_j) == (None, None)
    assert "no source of energy" in o.reasons["energy_j"]
    rates = Rates.of(o)
    assert rates is not None
    assert rates.s_per_sample == pytest.approx(0.0004, rel=0.2)
    assert rates.j_per_sample is None


# --------------------------------------------------------------------- what can go wrong


def failing(error: BaseException, *, at: int = 512, first: bool = False) -> Callable[[ZeusRun], int]:
    """A training that raises at one batch size, in its set-up or after some steps."""

    def train(run: ZeusRun) -> int:
        if run.batch_size == at and first:
            raise error
        for epoch in run.epochs():
            for i in range(SAMPLES // run.batch_size):
                run.step()
                if run.batch_size == at and i == 5:
                    raise error
            run.report(acc=0.9 if epoch + 1 == LONG else 0.5)
        return run.batch_size

    return train


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("error", "no_memory"),
    [
        (RuntimeError("no such file"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (AttemptOver("somebody else's"), False),
        (SystemExit(1), False),
    ],
)
def test_an_error_ends_one_peek_and_the_next_follows(
    kit: Kit, error: BaseException, no_memory: bool, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = kit.run(*BOTH, peeks=(peek(512), peek(1024)))
    assert run.train(failing(error, first=first)) == KEPT
    bad, good = peeks_of(kit.lines)
    assert (bad.state, seen_by(bad).out_of_memory) == (State.FAILED, no_memory)
    assert type(error).__name__ in (bad.reason or "")
    assert seen_by(bad).time_s is not None, "what it cost is counted"
    assert (good.state, good.batch_size) == (State.GIVEN_UP, 1024)
    assert "The kept model is safe" in caplog.text
    assert error.__traceback__ is None, "its frames, and the model in them, are dropped"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), None])
def test_what_stops_the_task_passes_and_finds_all_written_down(kit: Kit, error: BaseException | None) -> None:
    def train(run: ZeusRun) -> int:
        if run.batch_size == 512:
            if error is not None:
                raise error
            run.kill("Airflow stopped the task")
        return loop(run)

    with pytest.raises(TrainingKilled if error is None else KeyboardInterrupt):
        kit.run(*BOTH, peeks=(peek(512), peek(1024))).train(train)
    assert [(x.kind, x.peek, x.state) for x in kit.lines[2:]] == [
        ("end", None, State.CONVERGED),
        ("final", None, None),
        ("attempt", 0, None),
        ("end", 0, State.FAILED),
    ]
    assert kit.gpu.limit_w() == 250.0


@pytest.mark.parametrize("raises", [False, True])
def test_a_kill_that_the_function_hides_ends_the_peeks_all_the_same(kit: Kit, raises: bool) -> None:
    def train(run: ZeusRun) -> int:
        if run.batch_size == 512:
            try:
                run.kill("stop")
            except BaseException:
                if raises:
                    raise RuntimeError("on its way out") from None
                return 0
        return loop(run)

    with pytest.raises(TrainingKilled):
        kit.run(*BOTH, peeks=(peek(512), peek(1024))).train(train)
    assert [x.reason for x in peeks_of(kit.lines)] == ["killed: stop"]


def test_a_function_that_swallows_the_signal_or_returns_early(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def train(run: ZeusRun) -> str:
        if run.batch_size == 1024:
            return "too early"
        try:
            loop(run)
        except BaseException:
            return "swallowed"
        return "kept"

    assert kit.run(*BOTH, peeks=(peek(512), peek(1024))).train(train) == "kept"
    swallowed, early = peeks_of(kit.lines)
    assert swallowed.state is State.GIVEN_UP
    assert "except BaseException" in caplog.text
    assert (early.state, early.reason) == (State.FAILED, "the function returned before the peek was over")


def test_a_device_that_fails_between_the_peeks_hurts_nothing(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: ZeusRun) -> int:
        if run.batch_size == 512:
            monkeypatch.setattr(SimulatedGpu, "synchronize", lambda self: 1 / 0)
        return loop(run)

    assert kit.run(*BOTH, peeks=(peek(512), peek(1024))).train(train) == KEPT
    assert "The kept model is safe" in caplog.text


def test_a_death_in_a_peek_loses_nothing(kit: Kit, script: Any, tmp_path: Path) -> None:
    code = """
import os
from airflow_provider_zeus.training.run import ZeusRun

def train(run):
    for epoch in run.epochs():
        for _ in range(100):
            run.step()
            if run.batch_size == 1024:
                os._exit(9)
        run.report(acc=0.9 if epoch == 19 else 0.5)
    return "model-7"

ZeusRun.from_env().train(train)
"""
    path = tmp_path / "return.json"
    code = f"import os; os.environ['ZEUS_XCOM'] = {str(path)!r}\n" + code
    done = script(code, kit.plan(incumbent(KEPT), peeks=(peek(1024),)), tmp_path / "result.jsonl")
    assert done.returncode == 9, done.stderr
    assert [x.kind for x in read_result(tmp_path / "result.jsonl")] == ["start", "attempt", "end", "final", "attempt"]
    document = json.loads(path.read_text())
    assert document["value"] == "model-7"
    assert document["zeus"]["lines"][-1]["kind"] == "final"


def test_the_document_is_written_anew_with_the_peeks(kit: Kit, tmp_path: Path) -> None:
    document = Document(tmp_path / "return.json")
    run = kit.run(incumbent(KEPT), peeks=(peek(512), peek(1024)), sink=document)
    run._hand_over = document.hand_over
    assert run.train(loop) == KEPT
    written = json.loads((tmp_path / "return.json").read_text())
    assert written["value"] == KEPT
    assert [x.get("peek") for x in written["zeus"]["lines"] if x["kind"] == "end"] == [None, 0, 1]


def test_the_process_is_clean_before_each_peek(kit: Kit) -> None:
    class Model:
        def __init__(self) -> None:
            self.itself = self  # only the collector frees it

    models: list[weakref.ref[Model]] = []
    alive: list[int] = []
    draws: list[float] = []

    def train(run: ZeusRun) -> int:
        alive.append(sum(ref() is not None for ref in models))
        draws.append(random.random())
        model = Model()
        models.append(weakref.ref(model))
        return loop(run)

    kit.run(*BOTH, peeks=(peek(512), peek(1024)), seed=7).train(train)
    assert alive == [0, 0, 0]
    assert draws[1:] == [random.Random(7 + 2 + index).random() for index in range(2)]


def test_heartbeats_tell_of_a_peek(kit: Kit) -> None:
    def beats() -> list[Line]:
        return [x for x in kit.lines if x.kind == "beat" and x.peek == 0]

    def train(run: ZeusRun) -> int:
        until_s = time.monotonic() + 60.0
        while run.batch_size == 1024 and len(beats()) <= 2 and time.monotonic() < until_s:
            time.sleep(0.01)
        return loop(run)

    kit.run(incumbent(KEPT), peeks=(peek(1024),), heartbeat_s=0.02).train(train)
    assert len(beats()) > 2
    assert {(x.attempt, x.batch_size) for x in beats()} == {(2, 1024)}
    assert kit.lines[-1].kind == "end", "none after its end"


def test_the_kept_models_weights_are_not_touched(kit: Kit) -> None:
    models: list[torch.nn.Module] = []
    data = torch.utils.data.TensorDataset(torch.randn(8192, 4), torch.randn(8192, 1))
    before: list[bytes] = []

    def weights(model: torch.nn.Module) -> bytes:
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    def train(run: ZeusRun) -> torch.nn.Module:
        before.extend(weights(models[0]) for _ in models[:1])
        model = torch.nn.Linear(4, 1)
        models.append(model)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in run.epochs():
            for x, y in run.data_loader(data, shuffle=True):
                opt.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                opt.step()
            run.report(acc=0.9 if epoch + 1 == LONG else 0.5)
        return model

    kept = kit.run(incumbent(KEPT), peeks=(peek(512), peek(1024))).train(train)
    assert len(models) == 3
    assert kept is models[0]
    assert before == [weights(kept)] * 2
    assert weights(models[1]) != before[0], "the peek did train"


# --------------------------------------------------------------------- when there is none


def test_none_after_a_first_attempt_that_was_given_up(kit: Kit) -> None:
    kit.run(explore(1024, bound_epochs=1.0), incumbent(KEPT), peeks=(peek(512),)).train(loop)
    assert [x.state for x in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


@pytest.mark.parametrize("require_target", [True, False])
def test_none_below_the_target(kit: Kit, require_target: bool) -> None:
    run = kit.run(incumbent(KEPT), peeks=(peek(512),), max_epochs=2, require_target=require_target)
    if require_target:
        with pytest.raises(BelowTargetError):
            run.train(loop)
    else:
        run.train(loop)
    assert [x.state for x in kit.ends()] == [State.EXHAUSTED]


def test_none_after_a_training_that_failed(kit: Kit) -> None:
    with pytest.raises(RuntimeError):
        kit.run(incumbent(KEPT), peeks=(peek(512),)).train(failing(RuntimeError("no"), at=KEPT))
    assert [x.state for x in kit.ends()] == [State.FAILED]


def test_none_where_nobody_tells_of_steps(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def train(run: ZeusRun) -> None:
        calls.append(run.batch_size)
        for _ in run.epochs():
            run.report(acc=0.9)

    with caplog.at_level(logging.INFO):
        kit.run(incumbent(KEPT), peeks=(peek(512),)).train(train)
    assert calls == [KEPT]
    assert "tells of no steps" in caplog.text


def test_none_under_epochs_alone(kit: Kit) -> None:
    loop(kit.run(incumbent(KEPT), peeks=(peek(512),)))
    assert [x.kind for x in kit.lines] == ["start", "attempt", "end", "final"]


def test_none_where_they_would_take_long_beside_the_run(kit: Kit) -> None:
    kit.run(incumbent(KEPT), peeks=(peek(512),)).train(loop, epochs=LONG - 1, samples=SAMPLES // 16)
    assert [x.state for x in kit.ends()] == [State.CONVERGED]


def test_a_plan_of_an_older_version_has_none(kit: Kit) -> None:
    text = json.loads(kit.plan(peeks=(peek(512),)).to_json())
    del text["peeks"]
    assert Plan.from_json(json.dumps(text)).peeks == ()
