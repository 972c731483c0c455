"""The one place that hears torch's optimizer steps, for all who ask. Torch is never imported here.

Where the training loads torch later, it is heard from that moment on: the hook is set in the thread that imports it, so
that no other thread changes torch's hooks while an optimizer steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from threading import RLock, get_ident
from typing import Any, NamedTuple

MODULE = "torch.optim.optimizer"

Heard = Callable[[Any], object]  # gets the optimizer; may raise


class _Hearing(NamedTuple):
    after: Heard
    before: Heard | None


_hearings: tuple[_Hearing, ...] = ()
_hooks = ExitStack()  # takes the hooks out of torch, or ends the wait for it
_lock = RLock()


def on_steps(after: Heard, before: Heard | None = None) -> Callable[[], None]:
    """Call ``after`` after each optimizer step of torch in this process, ``before`` before it. Returns what ends it."""
    global _hearings
    hearing = _Hearing(after, before)
    with _lock:
        is_first, _hearings = not _hearings, (*_hearings, hearing)
        if is_first and MODULE in sys.modules:
            _hear(sys.modules[MODULE])
        elif is_first:
            waiting = _Waiting()
            sys.meta_path.insert(0, waiting)
            _hooks.callback(sys.meta_path.remove, waiting)
    return partial(_end, hearing)


def _end(hearing: _Hearing) -> None:
    global _hearings
    with _lock:
        _hearings = tuple(each for each in _hearings if each is not hearing)
        if not _hearings:
            with suppress(Exception):  # they were taken out already
                _hooks.close()


def _hear(module: Any) -> None:
    """Set the hooks. A torch that refuses them, or that is none, is not heard."""
    with _lock, suppress(Exception):
        if _hearings:
            _hooks.callback(module.register_optimizer_step_pre_hook(_before).remove)
            _hooks.callback(module.register_optimizer_step_post_hook(_after).remove)


def _before(optimizer: Any, args: object, kwargs: object) -> None:
    for hearing in _hearings:
        if hearing.before is not None:
            hearing.before(optimizer)


def _after(optimizer: Any, args: object, kwargs: object) -> None:
    for after, _ in _hearings:
        after(optimizer)


class _Waiting(MetaPathFinder):
    """Finds nothing itself: the module that others find is heard once it has been executed."""

    def __init__(self) -> None:
        self._asking: set[int] = set()  # threads in which the other finders are asked: one of them may ask all again

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the other finders have for torch's optimizers; None for any other module."""
        if name != MODULE or (ident := get_ident()) in self._asking:
            return None
        others = [each.find_spec for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        self._asking.add(ident)
        try:
            spec = next(filter(None, (find(name, path, target) for find in others)), None)
        finally:
            self._asking.discard(ident)
        loader: Any = spec and spec.loader
        with suppress(Exception):  # a loader that lets nothing be added to it
            execute = loader.exec_module

            def executed(module: Any) -> None:
                with suppress(AttributeError):
                    del loader.exec_module
                execute(module)
                _hear(module)

            loader.exec_module = executed
        return spec
