"""An attempt that is over leaves the author's code in many wrappings:
the next one follows all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTerminated,
    AirflowTaskTimeout,
)

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training.interrupts import AttemptOver
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop

GIVEN_UP_AFTER_ONE = explore(1024, bound_epochs=1.0)


def in_a_task_group(run: ZeusRun) -> int:
    async def train() -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            task = group.create_task(asyncio.to_thread(loop, run))
        return task.result()

    return asyncio.run(train())


def in_two_groups(run: ZeusRun) -> int:
    try:
        return loop(run)
    except BaseException as error:
        raise BaseExceptionGroup(
            "all", [ValueError("another"), BaseExceptionGroup("some", [error])]
        ) from None


def by_an_exit(run: ZeusRun) -> int:
    try:
        return loop(run)
    except BaseException:
        sys.exit(0)


def by_a_cancelled_task(run: ZeusRun) -> int:
    try:
        return loop(run)
    except BaseException:
        raise asyncio.CancelledError from None


def as_its_cause(run: ZeusRun) -> int:
    class Stop(BaseException):
        pass

    try:
        return loop(run)
    except AttemptOver as over:
        raise Stop from over


def in_a_thread(run: ZeusRun) -> int:
    with ThreadPoolExecutor() as pool:
        return pool.submit(loop, run).result()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "train",
    [in_a_task_group, in_two_groups, by_an_exit, by_a_cancelled_task, as_its_cause, in_a_thread],
)
def test_the_next_attempt_follows(kit: Kit, train: Callable[[ZeusRun], int], strict: bool) -> None:
    def once(run: ZeusRun) -> int:
        return train(run) if run.attempt == 1 else loop(run)

    assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), strict=strict).train(once) == 256
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]
    assert "bound is 1" in str(kit.ends()[0].reason)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        AirflowTaskTimeout("too long"),
        AirflowTaskTerminated("stopped"),
        AirflowSkipException("not today"),
        AirflowFailException("never"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_ends_or_steers_the_task_wins(kit: Kit, error: BaseException, grouped: bool) -> None:
    def train(run: ZeusRun) -> int:
        try:
            return loop(run)
        except AttemptOver as over:
            raise BaseExceptionGroup("both", [over, error]) if grouped else error from None

    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256))
    with pytest.raises(BaseExceptionGroup if grouped else type(error)):
        run.train(train)
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)


def test_an_attempt_that_is_not_over_leaves_a_group_to_its_author(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        raise BaseExceptionGroup("stale", [AttemptOver("of another run"), KeyboardInterrupt()])

    with pytest.raises(BaseExceptionGroup):
        kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(train)
    assert [end.state for end in kit.ends()] == [State.FAILED]


def test_a_swallowed_signal_keeps_no_model(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def train(run: ZeusRun) -> int:
        try:
            return loop(run)
        except AttemptOver:
            return -1

    with caplog.at_level(logging.ERROR):
        assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(train) == 256
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 2)


def test_a_script_that_swallows_its_signal_keeps_no_model_either(kit: Kit) -> None:
    """It has no ``train()`` around its loop, which it leaves right after a report:
    the command is started again.
    """
    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256), restarts=True)
    with contextlib.suppress(AttemptOver):
        loop(run)
    run.close()
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize(
    "signal", [KeyboardInterrupt(), AirflowTaskTimeout("too long")], ids=lambda e: type(e).__name__
)
def test_a_signal_wins_where_its_handling_raises(
    kit: Kit, signal: BaseException, over: bool
) -> None:
    def train(run: ZeusRun) -> int:
        try:
            if over:
                loop(run)
            raise signal
        except BaseException:
            raise OSError("no room for the last checkpoint") from signal if over else None

    run = kit.run(GIVEN_UP_AFTER_ONE, incumbent(256))
    with pytest.raises(OSError, match="no room"):
        run.train(train)
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP if over else State.FAILED]


def test_a_group_that_steers_the_task_is_not_due_to_the_batch_size(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        raise ExceptionGroup("both", [ValueError("one"), AirflowSkipException("not today")])

    with pytest.raises(ExceptionGroup):
        kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(train)
    assert [end.state for end in kit.ends()] == [State.FAILED]


def test_a_signal_that_was_handled_before_the_training_ends_no_attempt(kit: Kit) -> None:
    try:
        raise AirflowTaskTimeout("of what came before")
    except AirflowTaskTimeout:
        assert kit.run(GIVEN_UP_AFTER_ONE, incumbent(256)).train(in_two_groups_once) == 256
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


def in_two_groups_once(run: ZeusRun) -> int:
    return in_two_groups(run) if run.attempt == 1 else loop(run)
