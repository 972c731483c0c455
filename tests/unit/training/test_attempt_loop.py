"""Attempts: which one is kept, how the others are left, what a function can do against it."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import random
import re
import signal
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from airflow_provider_zeus.errors import BelowTargetError, ReportError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.training.attempt_loop import out_of_memory
from airflow_provider_zeus.training.error_text import remedy_of
from airflow_provider_zeus.training.interrupts import AttemptOver, TrainingKilled
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.run import ZeusRun
from tests.golden import Table
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, loop, steps

ERRORS = Table("training_errors")
GIVEN_UP_AFTER_ONE = explore(1024, bound_epochs=1.0)


def test_epochs_end_on_the_target_and_the_value_is_returned(kit: Kit) -> None:
    assert kit.run().train(loop, epochs=3) == 256
    assert [line.kind for line in kit.lines] == ["start", "attempt", "end", "final"]
    end = kit.ends()[0]
    assert (end.state, end.reason) == (State.CONVERGED, None)
    assert (kit.last().epochs, kit.last().samples, kit.last().metric) == (3.0, 3 * SAMPLES, 0.9)
    assert kit.lines[-1].attempt == 1


def test_the_last_attempt_runs_to_max_epochs_whatever_it_costs_and_its_model_is_kept(
    kit: Kit,
) -> None:
    bounded = explore(256, bound_epochs=1.0, bound_cost=1.0, max_epoch_cost=1.0)
    assert kit.run(bounded, max_epochs=4).train(loop, epochs=99) == 256
    assert kit.ends()[0].state is State.EXHAUSTED
    assert "max_epochs 4" in kit.ends()[0].reason
    assert (kit.last().epochs, kit.lines[-1].attempt) == (4.0, 1)


def test_nothing_after_the_loop_runs_for_an_attempt_that_is_given_up(kit: Kit) -> None:
    saved: list[int] = []
    assert (
        kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), first_attempt=3).train(loop, saved=saved) == 256
    )
    assert saved == [256]
    assert [(e.attempt, e.batch_size, e.state) for e in kit.ends()] == [
        (3, 1024, State.GIVEN_UP),
        (4, 256, State.CONVERGED),
    ]
    assert "bound is 1" in kit.ends()[0].reason
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 4)
    assert len({line.start_id for line in kit.lines}) == 1


def test_an_exploratory_attempt_below_its_target_at_max_epochs_is_exhausted_and_the_next_runs(
    kit: Kit,
) -> None:
    saved: list[int] = []
    run = kit.run(explore(1024), incumbent(256), max_epochs=2)
    run.train(lambda run: loop(run, epochs=99 if run.attempt == 1 else 1, saved=saved))
    assert [e.state for e in kit.ends()] == [State.EXHAUSTED, State.CONVERGED]
    assert saved == [256]


def _by_report(run: ZeusRun) -> None:
    for _ in run.epochs():
        steps(run)
        run.report(acc=0.1)


def _by_step(run: ZeusRun) -> None:
    for _ in run.epochs():
        for _ in range(100_000):
            run.step()


def _by_batches(run: ZeusRun) -> None:
    for _ in run.epochs():
        for _ in run.data_loader(range(2000 * 1024), batch_sampler=_Batches(run.batch_size)):
            pass


class _Batches:
    """Batches of indices without the cost of real ones."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Any:
        return iter([range(self.batch_size)] * 2000)

    def __len__(self) -> int:
        return 2000


def _by_epochs(run: ZeusRun) -> None:
    for _ in run.epochs():
        steps(run)
        try:
            run.report(acc=0.1)
        except AttemptOver:
            continue


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (_by_report, "report"),
        (_by_step, "step"),
        (_by_batches, "__next__"),
        (_by_epochs, "_next_epoch"),
    ],
)
def test_the_signal_comes_out_of_every_call_of_the_handle(
    kit: Kit, body: Callable[[Any], None], name: str
) -> None:
    raised_by: list[str] = []

    def train(run: ZeusRun) -> str:
        if run.attempt == 2:
            return str(loop(run, epochs=1))
        try:
            body(run)
        except AttemptOver as over:
            trace = over.__traceback__
            while trace.tb_frame.f_code is not body.__code__:
                trace = trace.tb_next
            raised_by.append(trace.tb_next.tb_frame.f_code.co_name)
            raise
        return "never"

    bounds = {"bound_epochs": 1.0} if body in (_by_report, _by_epochs) else {"bound_cost": 500.0}
    assert kit.run(explore(1024, **bounds), incumbent(256)).train(train) == "256"
    assert raised_by == [name]
    assert kit.ends()[0].state is State.GIVEN_UP


def test_except_exception_lets_the_signal_pass(kit: Kit) -> None:
    caught: list[Exception] = []

    def train(run: ZeusRun) -> int:
        try:
            return loop(run)
        except Exception as error:
            caught.append(error)
            raise

    assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(train) == 256
    assert caught == []


@pytest.mark.parametrize("kind", ["bare", "BaseException"])
def test_a_signal_swallowed_inside_the_loop_is_raised_again_and_its_traceback_does_not_grow(
    kit: Kit, kind: str
) -> None:
    swallowed = 0
    depths: list[int] = []

    def swallow(run: ZeusRun) -> None:
        if kind == "bare":
            try:
                run.step()
            except:  # noqa: E722
                nonlocal swallowed
                swallowed += 1
        else:
            try:
                run.step()
            except BaseException:
                swallowed += 1

    def train(run: ZeusRun) -> int:
        if run.attempt == 2:
            return loop(run, epochs=1)
        for _ in run.epochs():
            for _ in range(5000):
                swallow(run)
            depth = 0
            trace = run.progress.live.interrupt.__traceback__
            while trace is not None:
                depth = depth + 1
                trace = trace.tb_next
            depths.append(depth)
        kit.never.append("epochs() must not go on")
        return 0

    assert kit.run(explore(1024, bound_cost=500.0), incumbent(256)).train(train) == 256
    assert swallowed > 1000
    assert 0 < depths[0] < 10
    assert [e.state for e in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


def _swallows_bare(run: ZeusRun) -> int:
    try:
        loop(run)
    except:  # noqa: E722  MARK bare
        return -1
    return -2


def _swallows_base(run: ZeusRun) -> int:
    try:
        try:
            loop(run)
        except ValueError:
            return -2
    except (ValueError, BaseException):  # MARK BaseException
        return -1
    return -1


def _swallows_inner(run: ZeusRun) -> int:
    try:
        try:
            loop(run)
        except BaseException:  # MARK inner
            return -1
    except BaseException:
        return -2
    return -3


def _swallows_finally(run: ZeusRun) -> int:
    try:
        loop(run)
    finally:
        return -1  # noqa: B012


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (_swallows_bare, "`except:  # noqa: E722  MARK bare` at "),
        (_swallows_base, "`except (ValueError, BaseException):  # MARK BaseException` at "),
        (_swallows_inner, "`except BaseException:  # MARK inner` at "),
        (_swallows_finally, "an except or finally around "),
    ],
)
def test_a_signal_swallowed_around_the_loop_costs_the_value_and_names_the_place(
    kit: Kit, caplog: pytest.LogCaptureFixture, train: Callable[[ZeusRun], int], text: str
) -> None:
    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256))
    assert run.train(lambda run: train(run) if run.attempt == 1 else loop(run)) == 256
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert text in record.getMessage()
    assert "value is dropped" in record.getMessage()
    path, line = re.search(r"(?:at|around) (\S+):(\d+) swallowed", record.getMessage()).groups()
    assert path == __file__
    with open(__file__) as file:
        named = file.read().splitlines()[int(line) - 1]
    assert "MARK" in named or named.strip() == "loop(run)"


def test_an_error_raised_on_the_way_out_does_not_cost_the_run_its_model(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        try:
            return loop(run)
        except BaseException as error:
            raise RuntimeError("wrapped, as frameworks do") from error

    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256))
    assert run.train(lambda run: train(run) if run.attempt == 1 else loop(run)) == 256
    assert [e.state for e in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


def test_killed_by_a_signal_handler_it_stops_for_good_even_when_swallowed(kit: Kit) -> None:
    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256))
    went_on = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: run.kill("stopped"))

    def train(run: ZeusRun) -> int:
        try:
            for _ in run.epochs():
                run.step()
                signal.raise_signal(signal.SIGUSR1)
        except BaseException:
            for call in (
                run.epochs,
                run.step,
                lambda: run.report(acc=1.0),
                lambda: run.set_target(1.0),
            ):
                with contextlib.suppress(TrainingKilled):
                    call()
                    kit.never.append("a call of a killed run came back")
            went_on.append(run.attempt)
        return 1

    try:
        with pytest.raises(TrainingKilled, match="stopped"):
            run.train(train)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert went_on == [1]
    assert [(e.state, e.reason) for e in kit.ends()] == [(State.FAILED, "killed: stopped")]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)
    assert kit.gpu.limit_w() == 250.0


def test_killed_between_two_attempts_the_second_does_not_begin(kit: Kit) -> None:
    def sink(line: ResultLine) -> None:
        kit.lines.append(line)
        if line.kind == "end":
            with contextlib.suppress(TrainingKilled):  # the store's driver, say, swallows it
                run.kill("late")

    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), sink=sink)
    with pytest.raises(TrainingKilled, match="late"):
        run.train(loop)
    assert [line.kind for line in kit.lines] == ["start", "attempt", "end", "final"]
    assert (kit.ends()[0].state, kit.lines[-1].attempt) == (State.GIVEN_UP, None)


def test_the_first_model_is_gone_and_generators_are_seeded_anew_when_the_second_attempt_begins(
    kit: Kit,
) -> None:
    models: list[weakref.ref[Any]] = []
    draws: list[tuple[float, ...]] = []

    def train(run: ZeusRun) -> int:
        if models:
            assert models[0]() is None
        model = torch.nn.Linear(8, 8)
        model.itself = [model]  # a cycle, as modules with hooks have them
        models.append(weakref.ref(model))
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
        try:
            raise ValueError("its context would keep the frame")
        except ValueError:
            return loop(run)

    for before in range(2):
        random.seed(before), np.random.seed(before), torch.manual_seed(before)
        assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), seed=7).train(train) == 256
        models.clear()
    assert draws[1] == draws[3]  # independent of earlier draws
    assert all(len(set(drawn)) == 3 for drawn in zip(draws[0], draws[1], draws[2], strict=True))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "Caught OutOfMemoryError in pin memory thread for device 0.\n"
            + "File x, line 1\n" * 100
        ),
        RuntimeError(
            "Original Traceback:\n" + "File x, line 1\n" * 100 + "MyError: CUDA out of memory"
        ),
        ExceptionGroup(
            "of tasks",
            [ValueError("one"), ExceptionGroup("more", [torch.OutOfMemoryError("CUDA")])],
        ),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:20]}",
)
def test_out_of_memory_in_the_first_attempt_runs_the_next_and_in_the_last_is_raised(
    kit: Kit, error: Exception
) -> None:
    held: list[weakref.ref[Any]] = []

    def train(run: ZeusRun) -> int:
        model = torch.nn.Linear(8, 8)
        held.append(weakref.ref(model))
        for _ in run.epochs():
            run.step()
            if run.batch_size == 1024:
                raise error
            gc.collect()
            assert held[0]() is None
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run(explore(1024), incumbent(256)).train(train) == 256
    assert [(e.state, e.observation.out_of_memory) for e in kit.ends()] == [
        (State.FAILED, True),
        (State.CONVERGED, False),
    ]
    with pytest.raises(type(error)):
        kit.run(explore(1024), incumbent(1024)).train(lambda run: train(run))
    assert [(e.state, e.observation.out_of_memory) for e in kit.ends()[2:]] == [
        (State.FAILED, True),
        (State.FAILED, False),  # the process is no longer fresh: it says nothing of the batch size
    ]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)


def test_out_of_memory_in_other_words_and_behind_another_error() -> None:
    behind = RuntimeError("the step failed")
    behind.__cause__ = torch.OutOfMemoryError("CUDA")
    full = [
        behind,
        type("Full", (torch.OutOfMemoryError,), {})("GPU 0"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("cudaErrorMemoryAllocation"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError(
            "Bus error. It is possible that dataloader's workers are out of shared memory."
        ),
        ValueError("OOM when allocating tensor with shape[8192,8192]"),
        RuntimeError("std::bad_alloc"),
    ]
    assert [error for error in full if not out_of_memory(error)] == []
    assert not any(
        map(
            out_of_memory,
            [RuntimeError("boom"), RuntimeError("a room"), OSError(28, "No space left")],
        )
    )


class _Large(Dataset[int]):
    """Its worker has no memory for 1024 samples,
    and says so by an error that cannot be made from a text alone.
    """

    class Full(torch.OutOfMemoryError):
        def __init__(self, wanted: str, free: str) -> None:
            super().__init__(f"CUDA out of memory. Tried to allocate {wanted}, {free} are free")

    def __len__(self) -> int:
        return SAMPLES

    def __getitems__(self, indices: list[int]) -> list[int]:
        if len(indices) == 1024:
            raise self.Full("2 GiB", "1 GiB")
        return indices


def test_out_of_memory_in_a_worker_of_the_data_loader(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            for _ in run.data_loader(_Large(), num_workers=1):
                pass
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run(explore(1024), incumbent(256)).train(train) == 256
    assert (kit.ends()[0].state, kit.ends()[0].observation.out_of_memory) == (State.FAILED, True)


def test_what_stands_in_for_the_last_attempt_runs_where_that_does_not_fit(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        if run.batch_size == 1024:
            raise MemoryError
        return loop(run, epochs=1)

    assert kit.run(incumbent(1024), stand_in=incumbent(256)).train(train) == 256
    assert [
        (e.attempt, e.batch_size, e.state, e.observation.out_of_memory) for e in kit.ends()
    ] == [
        (1, 1024, State.FAILED, True),
        (2, 256, State.CONVERGED, False),
    ]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 2)


def test_it_does_not_run_where_the_target_is_missed(kit: Kit) -> None:
    saved: list[int] = []
    run = kit.run(incumbent(1024), stand_in=incumbent(256), max_epochs=2)
    assert run.train(loop, epochs=99, saved=saved) == 1024
    assert (saved, [e.state for e in kit.ends()]) == ([1024], [State.EXHAUSTED])


def test_a_loop_without_train_keeps_the_model_of_the_last_attempt_whatever_stands_in_for_it(
    kit: Kit,
) -> None:
    run = kit.run(incumbent(1024), stand_in=incumbent(256), max_epochs=2)
    assert loop(run, epochs=99) == 1024
    assert [(e.batch_size, e.state) for e in kit.ends()] == [(1024, State.EXHAUSTED)]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 1)


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_any_other_error_is_written_down_and_raised(kit: Kit, error: BaseException) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in range(50):
                run.step()
            raise error

    with pytest.raises(type(error)) as raised:
        kit.run(incumbent(1024)).train(train)
    assert raised.value is error
    (end,) = kit.ends()
    assert (end.state, end.observation.out_of_memory) == (State.FAILED, False)
    assert end.reason.startswith(type(error).__name__)
    assert end.observation.samples == 50 * 1024
    # up to the error, not up to the last second
    assert end.observation.time_s == pytest.approx(kit.gpu.now_s())
    assert not out_of_memory(error)
    # the window that the error cut off is kept
    assert [s.limit_w for s in end.profile] == [200.0, 250.0]
    assert end.profile[1].time_s >= 5.0 > end.profile[0].time_s > 0.0


def test_a_required_target_that_is_missed_fails_after_everything_is_written(kit: Kit) -> None:
    with pytest.raises(BelowTargetError, match=r"256 .*max_epochs 2 .*acc >= 0\.9"):
        kit.run(max_epochs=2, require_target=True).train(loop, epochs=99)
    assert [line.kind for line in kit.lines] == ["start", "attempt", "end", "final"]
    assert (kit.ends()[0].state, kit.lines[-1].attempt) == (State.EXHAUSTED, 1)
    assert kit.run(max_epochs=2, require_target=True).train(loop, epochs=2) == 256


def test_an_exploratory_attempt_that_returns_without_a_report_is_followed(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        if run.batch_size == 1024:  # as where a loss is not finite
            return 1024
        return loop(run)

    assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(train) == 256
    assert [(e.batch_size, e.state) for e in kit.ends()] == [
        (1024, State.FAILED),
        (256, State.CONVERGED),
    ]
    assert "without one run.report" in (kit.ends()[0].reason or "")
    with pytest.raises(ReportError, match=r"without one run.report"):
        kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), strict=True, first_attempt=3).train(train)


def test_runs_follow_one_another_in_one_process_and_a_plan_runs_once(kit: Kit) -> None:
    for number in range(3):
        run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), first_attempt=1 + 2 * number)
        assert run.train(loop) == 256
        with pytest.raises(RuntimeError, match="once"):
            run.train(loop)
        run.close()
    assert [e.attempt for e in kit.ends()] == [1, 2, 3, 4, 5, 6]
    assert len({line.start_id for line in kit.lines}) == 3
    assert [line.kind for line in kit.lines].count("final") == 3


def _reach(run: ZeusRun, metric: float, *, most: int) -> int:
    """A loop of at most so many epochs; returns how many."""
    done = 0
    for _ in run.epochs():
        steps(run)
        run.report(acc=metric)
        done += 1
        if done == most:
            break
    return done


def test_a_loop_after_one_that_has_ended_by_itself_is_an_error(kit: Kit) -> None:
    """It would train nothing, and its model would be returned untrained."""
    with pytest.raises(ReportError) as error:
        kit.run().train(lambda run: [_reach(run, 1.0, most=5) for _ in range(3)])
    ERRORS.check("a loop after one that has ended", str(error.value))
    assert [(e.state, e.observation.epochs) for e in kit.ends()] == [(State.FAILED, 1.0)]


def test_a_loop_alone_after_its_end_is_an_error_too(kit: Kit) -> None:
    run = kit.run()
    assert loop(run) == 256
    with pytest.raises(ReportError, match="one run trains one model"):
        run.epochs()
    assert [e.state for e in kit.ends()] == [State.CONVERGED]


def test_a_loop_alone_that_is_left_at_the_begin_of_an_epoch_keeps_its_model(kit: Kit) -> None:
    run = kit.run()
    for epoch in run.epochs():
        if epoch == 2:
            break
        steps(run)
        run.report(acc=0.5)
    run.close()
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.EXHAUSTED, 2)
    assert kit.lines[-1].attempt == 1


def test_loops_that_are_left_by_break_follow_each_other(kit: Kit) -> None:
    assert kit.run().train(lambda run: [_reach(run, 0.5, most=2) for _ in range(3)]) == [2, 2, 2]
    assert kit.last().epochs == 6.0


def test_a_second_loop_over_an_empty_slice_is_no_error(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in range(2):
            for _ in run.epochs():
                for _ in run.data_loader([]):
                    pass
                run.report(acc=1.0)
        return run.batch_size

    assert kit.run().train(train) == 256
    assert [e.state for e in kit.ends()] == [State.NO_DATA]


@pytest.mark.parametrize(
    ("epochs", "situation"),
    [(1, "a loop is left in its first epoch"), (2, "a loop is left in its second epoch")],
)
def test_a_loop_that_its_author_leaves_early_keeps_its_model_below_the_target(
    kit: Kit, epochs: int, situation: str
) -> None:
    assert kit.run().train(lambda run: _reach(run, 0.5, most=epochs)) == epochs
    assert kit.ends()[0].state is State.EXHAUSTED
    ERRORS.check(situation, str(kit.ends()[0].reason))


BAD_REPORTS: dict[str, Callable[[ZeusRun], Any]] = {
    "no report": lambda run: None,
    "another metric": lambda run: run.report(loss=0.1),
    "another metric twice": lambda run: [run.report(loss=0.1) for _ in range(2)],
    "a report without a value": lambda run: run.report(),
    "a report of infinity": lambda run: run.report(acc=float("inf")),
    "a report of nan": lambda run: run.report(acc=float("nan")),
    "a report in per cent": lambda run: run.report(acc=75.3),
    "a report of 400 digits": lambda run: run.report(acc=10**400),
    "a report of 5,000 digits": lambda run: run.report(acc=10**5000),
    "a report of a word": lambda run: run.report(acc="high"),
    "two reports of an epoch": lambda run: (run.report(acc=0.1), run.report(acc=0.1)),
    "a step of no sample": lambda run: run.step(0),
}


@pytest.mark.parametrize("situation", BAD_REPORTS)
def test_bad_reports_are_named_in_one_clear_error(kit: Kit, situation: str) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            steps(run)
            BAD_REPORTS[situation](run)

    with pytest.raises(ReportError) as error:
        kit.run().train(train)
    ERRORS.check(situation, str(error.value))
    assert kit.ends()[0].state is State.FAILED


def test_a_loop_that_is_not_ours_is_refused_at_its_second_report(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in range(10):
            for _ in run.data_loader(list(range(SAMPLES))):
                pass
            run.report(acc=0.3 * epoch)

    with pytest.raises(ReportError) as error:
        kit.run().train(train)
    ERRORS.check("a loop of the author's own", str(error.value))
    assert [e.state for e in kit.ends()] == [State.FAILED]


def test_reports_of_one_epoch_are_one(kit: Kit) -> None:
    values = iter([0.5, 0.9])

    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            run.report(loss=0.4)
            steps(run)
            run.report(acc=next(values))
            run.report(f1=0.3)
        return run.batch_size

    assert kit.run(max_epochs=4).train(train) == 256
    assert kit.last().epochs == 2.0


def test_an_overflow_is_an_epoch_that_has_not_reached_its_target(kit: Kit) -> None:
    values = iter([math.inf, math.inf, 30.0, 12.0])

    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run)
            run.report(perplexity=next(values))
        return run.batch_size

    assert kit.run(target="perplexity <= 20").train(train) == 256
    assert (kit.last().epochs, kit.last().metric) == (4.0, 12.0)
    assert kit.last().epoch_metrics == (30.0, 12.0)

    values = iter([math.inf, math.inf])
    assert kit.run(target="perplexity <= 20", max_epochs=2).train(train) == 256
    assert (kit.last().metric, kit.last().reasons["metric"]) == (
        None,
        "it was infinite, or not evaluated yet, in the newest epoch",
    )


def test_a_run_that_its_function_closes_goes_on(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run)
            run.close()
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run().train(train) == 256
    assert [(e.state, e.reason) for e in kit.ends()] == [(State.CONVERGED, None)]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 1)
    assert "run.close() does nothing inside" in caplog.text


def test_a_target_of_the_run_itself_must_be_set_before_the_first_report(kit: Kit) -> None:
    with pytest.raises(ReportError, match=r"acc >= runtime"):
        kit.run(target="acc >= runtime").train(loop)
    with pytest.raises(ReportError, match=r"run\.set_target\(nan\)"):
        kit.run(target="acc >= runtime").train(lambda run: run.set_target(float("nan")))

    def train(run: ZeusRun) -> int:
        run.set_target(0.45)
        return loop(run, epochs=99)

    assert kit.run(target="acc >= runtime").train(train) == 256
    assert (kit.last().epochs, kit.last().target_value) == (1.0, 0.45)


def test_the_learning_rate_follows_the_batch_size_and_is_written_down(kit: Kit) -> None:
    def train(run: ZeusRun) -> float:
        rate = (
            run.scale_lr(0.1, "sqrt")
            if run.attempt == 1
            else run.scale_lr(0.1, "linear", reference_batch_size=512)
        )
        loop(run)
        return rate

    assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(train) == pytest.approx(0.05)
    assert [e.observation.learning_rate for e in kit.ends()] == [
        pytest.approx(0.2),
        pytest.approx(0.05),
    ]
    with pytest.raises(ValueError, match=r"rule = 'cubic'"):
        kit.run().train(lambda run: run.scale_lr(0.1, "cubic"))


def test_an_error_in_validation_counts_what_was_drawn_up_to_it(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in run.data_loader(range(SAMPLES)):
                pass
            for _ in range(40):
                run.device.on_step(256)
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        kit.run(mode="measure").train(train)
    step_s, _ = kit.gpu.load.step(kit.gpu.chip, 256, 250.0)
    assert kit.last().time_s == pytest.approx(kit.gpu.now_s())
    assert kit.last().rest_s == pytest.approx(40 * step_s)
    assert (kit.last().epochs, kit.last().metric) == (1.0, None)


def test_a_target_is_set_before_the_first_report_or_not_at_all(kit: Kit) -> None:
    def moving(run: ZeusRun) -> None:
        run.set_target(0.9)
        for _ in run.epochs():
            run.step()
            run.report(acc=0.5)
            run.set_target(0.1)

    with pytest.raises(ReportError, match=r"run\.set_target\(0\.1\)"):
        kit.run(incumbent(256), target="acc >= runtime").train(moving)
    with pytest.raises(ReportError, match=r"run\.set_target\(0\.1\): .*acc >= 0\.9"):
        kit.run(incumbent(256), target="acc >= 0.9").train(lambda run: run.set_target(0.1))


def test_a_missing_module_of_an_extra_names_what_to_install(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: ZeusRun) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch.nn")

    with pytest.raises(ModuleNotFoundError):
        kit.run().train(train)
    ERRORS.check("a module of an extra is missing", str(kit.ends()[0].reason))
    assert "pip install 'airflow-provider-zeus[torch]'" in caplog.text


def test_a_loop_over_epochs_without_its_brackets_is_told_of_them(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: ZeusRun) -> None:
        for _ in enumerate(run.epochs):  # type: ignore[var-annotated, arg-type]
            pass

    with pytest.raises(TypeError):
        kit.run().train(train)
    assert "write `for epoch in run.epochs():`, with the brackets" in caplog.text
    ERRORS.check("a loop over epochs without its brackets", str(kit.ends()[0].reason))


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'mine'", name="mine"),
        ModuleNotFoundError("odd"),
        ImportError("torch"),
    ],
)
def test_of_another_error_nothing_is_said(error: ImportError) -> None:
    assert remedy_of(error) is None


def test_a_counter_that_stands_still_since_the_training_began_measures_nothing(kit: Kit) -> None:
    gpu = kit.gpu
    stuck_j = gpu.energy_j()
    gpu.energy_j = lambda: stuck_j  # type: ignore[method-assign]
    kit.run(on=gpu).train(loop)
    assert (kit.ends()[0].state, kit.last().energy_j, kit.last().rest_j) == (
        State.CONVERGED,
        None,
        None,
    )
    assert "the energy counter stood still for" in kit.last().reasons["energy_j"]


def test_an_attempt_shorter_than_a_tick_has_no_energy_instead_of_none_drawn(kit: Kit) -> None:
    """It was told as 0 J, as if it had been free."""

    class Unmoved(SimulatedGpu):
        def energy_j(self) -> float:
            return 1000.0

    gpu = Unmoved("v100", load="shufflenet", state_file=kit.tmp / "short.gpu")

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.step()
            run.report(acc=0.95)

    kit.run(on=gpu).train(train)
    seen = kit.last()
    assert 0.0 < (seen.time_s or 0.0) < 1.0
    assert seen.energy_j is None
    assert seen.reasons["energy_j"] == "it was shorter than a tick of the energy counter"
