"""An exploratory attempt that fails is given up, and the run goes on;
any other failure stays its author's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from torch.utils.data import TensorDataset

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.model.trial import NO_STRIKE, State
from airflow_provider_zeus.training.attempt_loop import may_be_due_to_batch_size
from airflow_provider_zeus.training.interrupts import TrainingKilled
from airflow_provider_zeus.training.protocol.events import ResultWriter
from airflow_provider_zeus.training.run import ZeusRun
from tests.result_files import read_result
from tests.unit.training.conftest import Kit, explore, incumbent, loop, steps


def fails(error: BaseException) -> Callable[[ZeusRun], int]:
    """A training that raises at batch size 1024 only."""

    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run)
            if run.batch_size == 1024:
                raise error
            run.report(acc=1.0)
        return run.batch_size

    return train


def test_an_exploratory_attempt_that_raises_is_given_up_and_the_incumbent_trains(kit: Kit) -> None:
    assert kit.run(explore(1024), incumbent(256)).train(fails(ValueError("bad shape"))) == 256
    assert [(e.batch_size, e.state, e.reason) for e in kit.ends()] == [
        (1024, State.FAILED, "ValueError: bad shape"),
        (256, State.CONVERGED, None),
    ]
    assert kit.ends()[0].observation.samples, "what it drew is kept"
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])  # of ``acc >= ...``
def test_an_exploratory_attempt_that_reports_no_finite_number_is_given_up(
    kit: Kit, value: float
) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run)
            run.report(acc=value if run.batch_size == 1024 else 1.0)
        return run.batch_size

    assert kit.run(explore(1024), incumbent(256)).train(train) == 256
    assert [e.state for e in kit.ends()] == [State.FAILED, State.CONVERGED]


def test_an_error_that_the_incumbent_raises_too_fails_the_run(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        raise ValueError(f"no data at {run.batch_size}")

    with pytest.raises(ValueError, match="no data at 256"):
        kit.run(explore(1024), incumbent(256)).train(train)
    assert [e.state for e in kit.ends()] == [State.FAILED, State.FAILED]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)


@pytest.mark.parametrize("plan", [{}, {"stand_in": incumbent(256)}])
def test_an_error_without_a_relief_is_its_authors(kit: Kit, plan: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="bad shape"):
        kit.run(incumbent(1024), **plan).train(fails(ValueError("bad shape")))
    with pytest.raises(ReportError):
        kit.run(explore(1024), **plan).train(fails(ReportError("nan")))
    assert [e.state for e in kit.ends()] == [State.FAILED, State.FAILED]


RELIEF = {"reliefs": (incumbent(256),)}
ERRORS = [
    # of a batch norm
    ValueError("Expected more than 1 value per channel when training, got input size [1, 8]"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    ZeroDivisionError(),
    SystemExit(3),
    ExceptionGroup("two", [ValueError("bad shape")]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_default_follows_another_size_that_fails(kit: Kit, error: BaseException) -> None:
    assert kit.run(incumbent(1024), **RELIEF).train(fails(error)) == 256
    assert [(e.batch_size, e.state, e.attempt) for e in kit.ends()] == [
        (1024, State.FAILED, 1),
        (256, State.CONVERGED, 2),
    ]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 2)


def test_a_metric_that_is_no_number_is_followed_by_the_default(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run)
            run.report(acc=math.nan if run.batch_size == 1024 else 1.0)
        return run.batch_size

    assert kit.run(incumbent(1024), **RELIEF).train(train) == 256


def test_at_most_one_attempt_more_runs(kit: Kit) -> None:
    sizes: list[int] = []

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            sizes.append(run.batch_size)
            raise ValueError(f"no data at {run.batch_size}")

    with pytest.raises(ValueError, match="no data at 256"):
        kit.run(explore(1024), incumbent(512), **RELIEF, batch_sizes=[256, 512, 1024]).train(train)
    assert sizes == [1024, 512, 256]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)


def test_the_relief_is_the_first_size_that_has_not_failed_in_the_run(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run)
            if run.batch_size in (256, 1024):
                raise ValueError("bad shape")
            run.report(acc=1.0)
        return run.batch_size

    reliefs = (incumbent(256), incumbent(512))
    sizes = [256, 512, 1024]
    assert (
        kit.run(explore(256), incumbent(1024), reliefs=reliefs, batch_sizes=sizes).train(train)
        == 512
    )
    assert [e.batch_size for e in kit.ends()] == [256, 1024, 512]


def before_the_first_epoch(run: ZeusRun) -> None:
    raise ValueError("the data cannot be read")


def after_the_loop(run: ZeusRun) -> None:
    loop(run)
    raise OSError("the model cannot be saved")


def after_early_stopping(run: ZeusRun) -> None:
    for _ in run.epochs():
        steps(run)
        run.report(acc=0.5)
        break
    raise OSError("the model cannot be saved")


def without_a_report(run: ZeusRun) -> None:
    for _ in run.epochs():
        steps(run)
        break


@pytest.mark.parametrize(
    "train",
    [before_the_first_epoch, after_the_loop, after_early_stopping, without_a_report],
    ids=lambda fn: fn.__name__,
)
def test_what_fails_outside_of_an_epoch_is_its_authors(
    kit: Kit, train: Callable[[ZeusRun], None]
) -> None:
    with pytest.raises((ValueError, OSError, ReportError)):
        kit.run(incumbent(1024), **RELIEF).train(train)
    (end,) = kit.ends()
    assert (end.state, end.notes["authors"]) == (State.FAILED, 1.0)


MISTAKES = [
    ImportError("no such module"),
    NameError("name 'x' is not defined"),
    SyntaxError("invalid syntax"),
]


@pytest.mark.parametrize("error", MISTAKES, ids=lambda error: type(error).__name__)
def test_a_mistake_in_the_code_is_its_authors(kit: Kit, error: Exception) -> None:
    with pytest.raises(type(error)):
        kit.run(incumbent(1024), **RELIEF).train(fails(error))
    assert [e.state for e in kit.ends()] == [State.FAILED]


def test_a_strict_job_fails_without_a_relief(kit: Kit) -> None:
    with pytest.raises(ValueError, match="bad shape"):
        kit.run(incumbent(1024), **RELIEF, strict=True).train(fails(ValueError("bad shape")))
    assert [e.state for e in kit.ends()] == [State.FAILED]


@pytest.mark.parametrize(
    ("error", "says_nothing"),
    [
        (AirflowSkipException("none"), True),
        (KeyboardInterrupt(), True),
        (AirflowFailException("no"), False),
        (AirflowTaskTimeout("too late"), False),
    ],
)
def test_what_steers_the_task_is_followed_by_nothing(
    kit: Kit, error: BaseException, says_nothing: bool
) -> None:
    with pytest.raises(type(error)):
        kit.run(incumbent(1024), **RELIEF).train(fails(error))
    (end,) = kit.ends()
    assert (NO_STRIKE in end.observation.reasons) is says_nothing


def test_a_killed_training_is_followed_by_nothing_and_says_nothing_against_its_size(
    kit: Kit,
) -> None:
    run = kit.run(incumbent(1024), **RELIEF)

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.kill("Airflow stopped the task")

    with pytest.raises(TrainingKilled):
        run.train(train)
    (end,) = kit.ends()
    assert NO_STRIKE in end.observation.reasons


@pytest.mark.parametrize(
    ("left_s", "sizes"), [(50.0, [1024]), (5000.0, [1024, 256]), (None, [1024, 256])]
)
def test_the_default_runs_where_the_time_limit_leaves_its_usual_time(
    kit: Kit, left_s: float | None, sizes: list[int]
) -> None:
    run = kit.run(
        incumbent(1024), reliefs=(replace(incumbent(256), usual_s=100.0),), time_left_s=left_s
    )
    if len(sizes) == 1:
        with pytest.raises(ValueError, match="bad shape"):
            run.train(fails(ValueError("bad shape")))
    else:
        assert run.train(fails(ValueError("bad shape"))) == 256
    assert [e.batch_size for e in kit.ends()] == sizes


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_follows_where_cuda_is_lost(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """No machine here has a GPU: the three calls that ask for its state answer as they do with
    one.
    """

    def synchronize() -> None:
        if lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    run = kit.run(incumbent(1024), **RELIEF)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    train = fails(RuntimeError("CUDA error: an illegal memory access was encountered"))
    if lost:
        with pytest.raises(RuntimeError, match="illegal memory access"):
            run.train(train)
    else:
        assert run.train(train) == 256
    assert [e.batch_size for e in kit.ends()] == ([1024] if lost else [1024, 256])
    assert "authors" not in kit.ends()[0].notes, "another process may train"


def of_slice(samples: int, sizes: list[int]) -> Callable[[ZeusRun], int]:
    """A training on a slice of so many samples, with a loader that drops its last batch."""

    def train(run: ZeusRun) -> int:
        sizes.append(run.batch_size)
        data = TensorDataset(torch.zeros(samples, 1))
        for _ in run.epochs():
            batches = [len(x) for (x,) in run.data_loader(data, drop_last=True)]
            # no batch: ZeroDivisionError
            run.report(acc=sum(b == run.batch_size for b in batches) / len(batches))
        return run.batch_size

    return train


def test_a_slice_with_fewer_samples_than_the_size_takes_the_largest_that_fits(kit: Kit) -> None:
    sizes: list[int] = []
    listed = [32, 64, 128, 256]
    run = kit.run(
        incumbent(256), reliefs=(incumbent(32),), batch_sizes=listed, default_batch_size=32
    )
    assert run.train(of_slice(200, sizes)) == 128
    assert sizes == [256, 128]
    first, last = kit.ends()
    assert (first.state, first.notes["too_few"], last.state) == (
        State.FAILED,
        200.0,
        State.CONVERGED,
    )
    assert NO_STRIKE in first.observation.reasons


def test_a_try_with_too_few_samples_is_followed_by_the_incumbent_where_that_fits(kit: Kit) -> None:
    sizes: list[int] = []
    run = kit.run(
        explore(256), incumbent(64), batch_sizes=[32, 64, 128, 256], default_batch_size=32
    )
    assert run.train(of_slice(200, sizes)) == 64
    assert sizes == [256, 64]


def test_where_no_size_fits_a_slice_the_error_stands(kit: Kit) -> None:
    sizes: list[int] = []
    run = kit.run(
        incumbent(256), reliefs=(incumbent(32),), batch_sizes=[32, 256], default_batch_size=32
    )
    with pytest.raises(ZeroDivisionError):
        run.train(of_slice(20, sizes))
    assert sizes == [256]


def test_a_strict_job_fails_with_its_exploratory_attempt(kit: Kit) -> None:
    with pytest.raises(ValueError, match="bad shape"):
        kit.run(explore(1024), incumbent(256), strict=True).train(fails(ValueError("bad shape")))
    assert [e.state for e in kit.ends()] == [State.FAILED]


@pytest.mark.parametrize(
    "error", [AirflowSkipException("none"), AirflowFailException("no"), KeyboardInterrupt()]
)
def test_what_steers_the_task_leaves_the_run(kit: Kit, error: BaseException) -> None:
    with pytest.raises(type(error)):
        kit.run(explore(1024), incumbent(256)).train(fails(error))
    assert [e.state for e in kit.ends()] == [State.FAILED]


def test_which_errors_may_be_the_batch_sizes_doing() -> None:
    class OwnSkip(AirflowSkipException):
        """Of a user's."""

    deferred = TaskDeferred.__new__(TaskDeferred)
    steer = [
        AirflowSkipException(),
        AirflowFailException(),
        OwnSkip(),
        deferred,
        SystemExit(0),
        KeyboardInterrupt(),
    ]
    assert [may_be_due_to_batch_size(error) for error in steer] == [False] * len(steer)
    assert may_be_due_to_batch_size(AirflowException("a hook failed"))
    assert may_be_due_to_batch_size(SystemExit(1))
    assert may_be_due_to_batch_size(
        RuntimeError("CUDA error: an illegal memory access was encountered")
    )


def test_the_kept_call_is_the_last_one_whatever_ran_before(kit: Kit) -> None:
    """A function that saves in ``finally`` leaves the kept weights:
    nothing is called after it has returned.
    """
    saved: list[int] = []
    calls: list[str] = []

    def train(run: ZeusRun) -> int:
        calls.append(f"begin {run.batch_size}")
        try:
            return loop(run, epochs=40)
        finally:
            saved[:] = [run.batch_size]
            calls.append(f"end {run.batch_size}")

    run = kit.run(explore(1024, bound_epochs=1.0), incumbent(256), max_epochs=50)
    value = run.train(train)
    assert (value, saved) == (256, [256])
    assert calls == ["begin 1024", "end 1024", "begin 256", "end 256"]
    assert kit.lines[-1].kind == "final"


class WithoutWords(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise AttributeError("no text")


@dataclass(frozen=True)
class Frozen(Exception):
    """Takes no attribute."""

    size: int = 1024


@pytest.mark.parametrize("error", [WithoutWords(), Frozen()])
def test_an_odd_exception_is_given_up_like_any_other(kit: Kit, error: Exception) -> None:
    assert kit.run(explore(1024), incumbent(256)).train(fails(error)) == 256
    assert [e.state for e in kit.ends()] == [State.FAILED, State.CONVERGED]
    assert kit.ends()[0].reason.startswith(type(error).__name__)
    with pytest.raises(type(error)):
        kit.run(incumbent(1024)).train(fails(error))


@pytest.mark.parametrize("one", [np.int64(1), np.float32(1.0), torch.tensor(1)])
def test_numbers_of_other_libraries_are_numbers_of_ours(kit: Kit, tmp_path: Path, one: Any) -> None:
    """What JSON does not take must not hold the result back: its end would be written nowhere."""
    run = kit.run(sink=ResultWriter(tmp_path / "result.jsonl"))

    def train(run: ZeusRun) -> int:
        assert run.scale_lr(one * 0.1) == pytest.approx(0.1)
        for _ in run.epochs():
            for _ in range(3):
                run.step(one * 256)
            run.report(acc=one)
        return run.batch_size

    assert run.train(train) == 256
    end = next(line for line in read_result(tmp_path / "result.jsonl") if line.kind == "end")
    assert (end.observation.samples, type(end.observation.samples)) == (768, int)
    assert end.observation.learning_rate == pytest.approx(0.1)


def test_a_learning_rate_that_is_no_number_is_not_written_down(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        run.scale_lr(math.nan)
        return loop(run)

    assert kit.run().train(train) == 256
    assert kit.last().learning_rate is None


def test_a_value_that_cannot_be_handed_over_is_returned_all_the_same(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_PLAN", kit.plan().to_json())
    monkeypatch.setenv("ZEUS_XCOM", str(tmp_path / "return.json"))
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]

    def train(run: ZeusRun) -> list[object]:
        loop(run)
        return nested

    kit.runs.append(ZeusRun.from_env())
    assert kit.runs[-1].train(train) is nested
    assert len(json.loads((tmp_path / "return.json").read_text())["zeus"]["lines"]) == 4


def test_a_model_that_was_returned_is_kept_where_the_device_fails_at_the_end(kit: Kit) -> None:
    run = kit.run()

    def train(run: ZeusRun) -> int:
        value = loop(run)
        for name in ("now_s", "energy_j", "limit_w", "each_j", "synchronize"):
            if hasattr(run.device, name):
                monkey.setattr(run.device, name, gone)
        return value

    def gone(*_: object) -> None:
        raise RuntimeError("GPU is lost")

    with pytest.MonkeyPatch.context() as monkey:
        assert run.train(train) == 256
    assert [e.state for e in kit.ends()] == [State.CONVERGED]
