"""One listener hears torch's steps for all, also of a torch that the training loads later,
in a thread of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread, get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.training import torch_listener
from airflow_provider_zeus.training.torch_listener import on_skips, on_steps
from tests.locks import free_for_others

LATE = """
from threading import get_ident
HOOKS, THREADS = [], []

class Hook:
    def __init__(self, hook):
        HOOKS.append(hook)
        THREADS.append(get_ident())
        self.remove = lambda: HOOKS.remove(hook)

register_optimizer_step_post_hook = Hook
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    (tmp_path / "late_torch.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_listener, "MODULE", "late_torch")
    yield lambda: importlib.import_module("late_torch")
    sys.modules.pop("late_torch", None)


def test_a_torch_that_is_loaded_later_is_heard_from_then_on_in_the_thread_that_loads_it(
    load: Callable[[], Any],
) -> None:
    finders = [*sys.meta_path]
    heard = []
    others = []
    end = on_steps(heard.append)
    end_other = on_steps(others.append)
    loaded: list[Any] = []
    thread = Thread(target=lambda: loaded.extend((load(), get_ident())))
    thread.start()
    thread.join()
    torch, ident = loaded
    (after,) = torch.HOOKS
    assert set(torch.THREADS) == {ident}
    assert "exec_module" not in vars(torch.__spec__.loader), "it is as without us"
    after("SGD", (), {})
    end()
    after("Adam", (), {})
    assert (heard, others) == (["SGD"], ["SGD", "Adam"])
    end_other()
    assert torch.HOOKS == []
    assert sys.meta_path == finders
    end_other()


def test_one_that_ended_before_torch_was_loaded_leaves_no_trace(load: Callable[[], Any]) -> None:
    finders = [*sys.meta_path]
    on_steps(print)()
    assert sys.meta_path == finders
    assert load().HOOKS == []


def test_while_one_begins_to_listen_no_other_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []

    class Watched(list[Any]):
        def insert(self, *at: Any) -> None:
            super().insert(*at)
            free.append(free_for_others(torch_listener._lock))

    monkeypatch.setattr(torch_listener, "MODULE", "late_torch")
    monkeypatch.setattr(sys, "meta_path", Watched(sys.meta_path))
    on_steps(print)()
    assert free == [False]


def test_while_the_hook_is_taken_out_no_other_thread_begins_to_listen(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = load()
    free: list[bool] = []
    register = torch.register_optimizer_step_post_hook

    def registered(after: Any) -> SimpleNamespace:
        hook = register(after)

        def remove() -> None:
            free.append(free_for_others(torch_listener._lock))
            hook.remove()

        return SimpleNamespace(remove=remove)

    monkeypatch.setattr(torch, "register_optimizer_step_post_hook", registered)
    on_steps(print)()
    assert free == [False]
    assert torch.HOOKS == []


def test_a_torch_that_refuses_hooks_and_one_that_cannot_be_loaded_are_as_without_us(
    load: Callable[[], Any], tmp_path: Path
) -> None:
    (tmp_path / "late_torch.py").write_text("raise ImportError('no driver')")
    end = on_steps(print)
    with pytest.raises(ImportError, match="no driver"):
        load()
    (tmp_path / "late_torch.py").write_text(
        "def register_optimizer_step_post_hook(hook): raise RuntimeError\n"
    )
    importlib.invalidate_caches()
    load()
    end()


@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_finders_of_the_old_kind_and_those_that_ask_all_finders_again_break_no_import(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old:
        def find_module(self, *_: Any) -> None:
            """As before Python 3.4."""

    class Asks:
        asked = 0

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name == "late_torch" and not self.asked:
                self.asked += 1
                return importlib.util.find_spec(name)
            return None

    monkeypatch.setattr(sys, "meta_path", [Old(), Asks(), *sys.meta_path])
    heard: list[Any] = []
    end = on_steps(heard.append)
    torch = load()
    assert len(torch.HOOKS) == 1
    assert "exec_module" not in vars(torch.__spec__.loader)
    end()


def test_a_scaler_that_another_tool_has_wrapped_is_not_heard_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class GradScaler:
        def step(self, optimizer: Any) -> None:
            """It leaves each step out."""

    module = SimpleNamespace(GradScaler=GradScaler)
    monkeypatch.setitem(sys.modules, "torch.amp.grad_scaler", module)  # type: ignore[arg-type]
    heard: list[Any] = []
    end = on_skips(lambda optimizer: 0, heard.append)
    ours = GradScaler.step
    GradScaler.step = lambda scaler, optimizer: ours(scaler, optimizer)  # type: ignore[method-assign]
    GradScaler().step("a")
    end()
    GradScaler().step("b")
    assert heard == ["a"]
