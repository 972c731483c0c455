"""What has been trained is kept, whatever of ours fails once it is trained: each call in turn, found by itself."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

import airflow_provider_zeus
from airflow_provider_zeus.log_guard import GuardedLogger
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.operators import supervise
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.training.process.child import Child
from tests.unit.operators.test_recurrence import JOB, context, loop
from tests.unit.training.conftest import Kit
from tests.unit.training.conftest import loop as trained

NAME = airflow_provider_zeus.__name__
FOLDER = str(Path(airflow_provider_zeus.__file__).parent)
# An error in what drops errors would come out of the line that tells it
GUARDS = (
    outlived.__wrapped__.__code__,  # type: ignore[attr-defined]
    GuardedLogger.callHandlers.__code__,
)
# trains once, and calls what it gets when the training is over
Train = Callable[[Callable[[], None]], Any]


def functions_in(values: Iterable[Any]) -> Iterator[FunctionType]:
    """The functions among the values of a module or class, and in its classes: methods and properties too."""
    for value in values:
        if isinstance(value, type) and value.__module__.startswith(NAME):
            yield from functions_in(list(vars(value).values()))
        for held in (
            value,
            *(getattr(value, name, None) for name in ("fget", "func", "__func__", "__wrapped__")),
        ):
            if isinstance(held, FunctionType) and held.__code__.co_filename.startswith(FOLDER):
                yield held


def calls_of(train: Train, *, threads: bool = False) -> list[FunctionType]:
    """The functions of the package that are called once a training is over, in order."""
    codes: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, arg: Any) -> None:
        codes.setdefault(frame.f_code)

    def begin() -> None:
        if threads:
            threading.settrace(note)
        sys.settrace(note)

    before = sys.gettrace()
    try:
        train(begin)
    finally:
        sys.settrace(before)
        threading.settrace(before)
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(NAME)]
    known = {f.__code__: f for module in modules for f in functions_in(list(vars(module).values()))}
    return [known[code] for code in codes if code in known and code not in GUARDS]


class Planted(RuntimeError):
    """The error of a call that fails."""

    count = 0

    def __init__(self) -> None:
        Planted.count += 1
        super().__init__("Planted")


@contextmanager
def fails_from_then_on(function: FunctionType) -> Iterator[Callable[[], None]]:
    """Gives what makes each further call of a function raise, in every thread."""
    code = function.__code__
    cells = function.__code__.co_freevars
    lines = [
        "def outer():",
        *(f"    {name} = None" for name in cells),
        "    def planted(*args, **kwargs):",
    ]
    lines += [
        *(f"        {name}" for name in cells),
        f"        from {__name__} import Planted",
        "        raise Planted",
    ]
    space: dict[str, Any] = {}
    exec("\n".join([*lines, "    return planted"]), space)

    def begin() -> None:
        Planted.count, function.__code__ = 0, space["outer"]().__code__

    try:
        yield begin
    finally:
        function.__code__ = code


def what_is_lost(
    train: Train, kept: Any, found: Iterable[FunctionType], caplog: pytest.LogCaptureFixture
) -> dict[str, str]:
    """By function what a training lost since that function raised: its value, or the one line that says so."""
    lost: dict[str, str] = {}
    caplog.set_level(logging.INFO)
    for function in found:
        name = f"{function.__module__}.{function.__qualname__}"
        caplog.clear()
        with fails_from_then_on(function) as begin:
            try:
                value = train(begin)
            except Exception as error:
                lost[name] = f"raised {type(error).__name__}: {error}"
                continue
        said = [
            r.getMessage() for r in caplog.records if r.levelno >= logging.INFO and _names_it(r)
        ]
        if value != kept:
            lost[name] = f"returned {value!r}"
        elif Planted.count and (len(said) != len(set(said)) or not said):
            lost[name] = f"said {said}"
    return lost


def _names_it(record: logging.LogRecord) -> bool:
    return "Planted" in record.getMessage() or bool(
        record.exc_info and "Planted" in repr(record.exc_info[1])
    )


def test_a_function_that_has_returned_keeps_its_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kits: list[Kit] = []

    def train(over: Callable[[], None]) -> Any:
        kits.append(Kit(tmp_path / str(len(kits))))
        kits[-1].tmp.mkdir()

        def fn(run: Any) -> int:
            size = trained(run, epochs=1, samples=5_120)
            over()
            return size

        return kits[-1].run().train(fn)

    train(lambda: None)  # what is worked out once is known
    found = calls_of(train)
    assert {f.__name__ for f in found} > {"end", "outcome", "finish", "close"}
    assert what_is_lost(train, 256, found, caplog) == {}
    told = [kit.ends()[-1].state for kit in kits if kit.ends()]
    assert set(told) == {State.CONVERGED}, "what is told of it is true"
    assert len(told) > len(kits) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "threads"),
    [
        ("function", False),
        ("result", False),
        pytest.param("output", False, marks=pytest.mark.nightly),
        pytest.param("function", True, marks=pytest.mark.nightly, id="function and its threads"),
    ],
)
def test_a_task_keeps_its_value(
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    by: str,
    threads: bool,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    runs = iter(range(10_000))

    def new_context() -> Any:
        found = context(dag=None)
        number = next(runs)
        found["ti"].id = f"ti-{number}"
        found["ti"].run_id = f"r-{number}"
        found["ti"].xcom_push = lambda **_: None
        return found

    def by_function(over: Callable[[], None]) -> Any:
        def fn(run: Any) -> str:
            value = loop(run)
            over()
            return value

        return ZeusTrainOperator(task_id="train", job=JOB, python_callable=fn).execute(
            new_context()
        )

    def by_command(over: Callable[[], None]) -> Any:
        class Ends(Child):
            def follow(self, for_s: float) -> int | None:
                status = super().follow(for_s)
                if status is not None:
                    over()
                return status

        monkeypatch.setattr(supervise, "Child", Ends)
        command = [
            "bash",
            "-c",
            'test -f kept && cp kept "$ZEUS_RESULT"; echo \'{"accuracy": 0.95}\'',
        ]
        return ZeusCommandOperator(
            task_id="train", job=JOB, command=command, cwd=str(tmp_path)
        ).execute(new_context())

    if by == "result":
        kit = Kit(tmp_path)
        trained(kit.run())
        (tmp_path / "kept").write_text("".join(line.to_json() + "\n" for line in kit.lines))
    train = by_function if by == "function" else by_command
    train(lambda: None)  # the store's tables are made
    found = calls_of(train, threads=threads)
    assert "report_cost" in {f.__name__ for f in found}
    lost = what_is_lost(train, "kept" if by == "function" else '{"accuracy": 0.95}', found, caplog)
    # what a thread cannot tell the log is said of the figure that is missing
    assert {name: what for name, what in lost.items() if not (threads and what == "said []")} == {}
    assert {t.state for t in open_store().recurrence("d", "r-0")} == {State.CONVERGED}
