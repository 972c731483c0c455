"""A forked child of a training, however it ends, writes nothing of its parent's trial."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training.protocol.events import ResultWriter
from airflow_provider_zeus.training.run import ZeusRun
from tests.result_files import read_result
from tests.unit.training.conftest import Kit, explore, incumbent, loop

LEAVES = {
    "exit": SystemExit(3),
    "error": ValueError("in the child"),
    "memory": MemoryError(),
    "interrupt": KeyboardInterrupt(),
}


@pytest.mark.parametrize("how", [*LEAVES, "return"])
def test_a_child_that_leaves_the_function_writes_nothing(
    kit: Kit, tmp_path: Path, how: str
) -> None:
    writer = ResultWriter(tmp_path / "result.jsonl")
    run = kit.run(explore(1024, bound_epochs=2.0), incumbent(256), sink=writer)

    def train(run: ZeusRun) -> int:
        for epoch in run.epochs():
            run.step()
            if epoch == 0 and run.batch_size == 1024 and (child := os.fork()) == 0:
                if how == "return":
                    return -1
                raise LEAVES[how]
            if epoch == 0 and run.batch_size == 1024:
                os.waitpid(child, 0)
            run.report(acc=0.5 if run.batch_size == 1024 else 1.0)
        return run.batch_size

    parent = os.getpid()
    try:
        value = run.train(train)
    except BaseException:
        if os.getpid() == parent:
            raise
    if os.getpid() != parent:
        os._exit(0)
    assert value == 256
    ends = [line for line in read_result(tmp_path / "result.jsonl") if line.kind == "end"]
    assert [(end.batch_size, end.state) for end in ends] == [
        (1024, State.GIVEN_UP),
        (256, State.CONVERGED),
    ]


def test_a_child_that_returns_hands_nothing_over_and_leaves_the_folder(
    kit: Kit, tmp_path: Path
) -> None:
    handed: list[object] = []
    run = kit.run(
        sink=ResultWriter(tmp_path / "result.jsonl"), attempt_root=str(tmp_path / "models")
    )
    run._hand_over = lambda value: (tmp_path / f"handed-{value}").touch() or handed.append(value)  # type: ignore[func-returns-value]
    parent = os.getpid()

    def train(run: ZeusRun) -> str:
        (run.attempt_dir / "model").write_text("half")
        if (child := os.fork()) == 0:
            return "child"
        os.waitpid(child, 0)
        loop(run)
        assert (run.attempt_dir / "model").read_text() == "half"
        return "parent"

    value = run.train(train)
    if os.getpid() != parent:
        os._exit(0)
    assert (value, handed) == ("parent", ["parent"])
    assert not (tmp_path / "handed-child").exists()
    assert [line.kind for line in read_result(tmp_path / "result.jsonl")] == [
        "start",
        "attempt",
        "end",
        "final",
    ]


def test_a_childs_own_attempt_at_the_handle_writes_nothing(kit: Kit, tmp_path: Path) -> None:
    run = kit.run(sink=ResultWriter(tmp_path / "result.jsonl"))

    def train(run: ZeusRun) -> int:
        if (child := os.fork()) == 0:
            try:
                loop(run)
                run.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return loop(run)

    assert run.train(train) == 256
    assert [line.kind for line in read_result(tmp_path / "result.jsonl")] == [
        "start",
        "attempt",
        "end",
        "final",
    ]


def by_epochs(run: ZeusRun) -> None:
    loop(run)


def by_loader(run: ZeusRun) -> None:
    for _ in run.data_loader([[0.0] * 256] for _ in range(3)):
        pass


@pytest.mark.parametrize("child_trains", [by_epochs, by_loader])
def test_a_training_in_a_forked_process_is_told_so(
    kit: Kit, child_trains: Callable[[Any], None]
) -> None:
    def train(run: ZeusRun) -> None:
        child = multiprocessing.get_context("fork").Process(target=child_trains, args=(run,))
        child.start()
        child.join()

    with pytest.raises(
        ReportError, match=r"forked .* with its run handle, and nothing of it counts.*torchrun"
    ):
        kit.run().train(train)
    assert kit.ends()[0].state is State.FAILED
    assert "nothing of it counts" in str(kit.ends()[0].reason)


def test_a_child_that_makes_the_steps_is_told_so(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            child = multiprocessing.get_context("fork").Process(target=run.step)
            child.start()
            child.join()
            run.report(acc=1.0)

    kit.run().train(train)
    assert caplog.text.count("nothing of it counts") == 1, (
        "the child's own log is another process's"
    )
    assert kit.last().bypassed is not None


def test_a_script_whose_child_trains_says_so_in_its_log(kit: Kit) -> None:
    run = kit.run()
    child = multiprocessing.get_context("fork").Process(target=by_epochs, args=(run,))
    child.start()
    child.join()
    run.close()
    assert "nothing of it counts" in str(kit.ends()[0].reason)


def test_a_child_that_only_saves_is_told_nothing(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: ZeusRun) -> int:
        folder = run.attempt_dir
        child = multiprocessing.get_context("fork").Process(target=(folder / "model").touch)
        child.start()
        child.join()
        assert (folder / "model").exists()
        return loop(run)

    run = kit.run()
    assert run.train(train) == 256
    assert not run.progress.child_trained


def test_a_run_that_is_handed_to_a_spawned_process_is_refused_with_the_remedy(kit: Kit) -> None:
    run = kit.run()
    child = multiprocessing.get_context("spawn").Process(target=by_epochs, args=(run,))
    with pytest.raises(TypeError, match=r"cannot be handed to another process.*torchrun"):
        child.start()
