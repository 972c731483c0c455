"""The one place that hears torch's optimizer steps, for all who ask. Torch is never imported here.

Also tells which optimizer of a training leads, and of which kind its steps are.

Where the training loads torch later, it is heard from that moment on: the hook is set in the thread that imports it, so
that no other thread changes torch's hooks while an optimizer steps.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from threading import RLock, get_ident
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

MODULE = "torch.optim.optimizer"
LEAD_STEPS = 8  # of one optimizer, after which it leads

Heard = Callable[[Any], object]  # gets the optimizer; may raise


_hearings: tuple[Heard, ...] = ()
_hooks = ExitStack()  # takes the hook out of torch, or ends the wait for it
_lock = RLock()


def on_steps(after: Heard) -> Callable[[], None]:
    """Call ``after`` after each optimizer step of torch in this process. Returns what ends it."""
    global _hearings
    hearing = partial(after)  # one of its own, if two give the same function
    with _lock:
        is_first, _hearings = not _hearings, (*_hearings, hearing)
        if is_first and MODULE in sys.modules:
            _hear(sys.modules[MODULE])
        elif is_first:
            waiting = _Waiting()
            sys.meta_path.insert(0, waiting)
            _hooks.callback(sys.meta_path.remove, waiting)
    return partial(_end, hearing)


def _end(hearing: Heard) -> None:
    global _hearings
    with _lock:
        _hearings = tuple(each for each in _hearings if each is not hearing)
        if not _hearings:
            with suppress(Exception):  # they were taken out already
                _hooks.close()


def _hear(module: Any) -> None:
    """Set the hook. A torch that refuses it, or that is none, is not heard."""
    with _lock, suppress(Exception):
        if _hearings:
            _hooks.callback(module.register_optimizer_step_post_hook(_after).remove)


def _after(optimizer: Any, args: object, kwargs: object) -> None:
    for hearing in _hearings:
        hearing(optimizer)


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


class Leading:
    """The optimizer that steps most: another one takes over once it has stepped so often while that one rested."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # steps of others since the leading one's
        self._counted_at = 0  # step of the leading one before which others were counted last
        self._led: WeakSet[Any] = WeakSet()  # optimizers that lead or led
        self._needed = LEAD_STEPS  # more once two of them take turns

    def overtakes(self, optimizer: Any, steps: int, *, led: bool) -> bool:
        """Count a step of an optimizer that does not lead; whether it does so from now on.

        :param steps: of the leading one, so far.
        :param led: whether there is a leading one.
        """
        if self._counted_at != steps:  # the leading one has stepped since
            self._counts.clear()
            self._counted_at = steps
        self._counts[optimizer] = count = self._counts.get(optimizer, 0) + 1
        if count < (self._needed if led else LEAD_STEPS):
            return False
        if optimizer in self._led:
            self._needed *= 2
        self._led.add(optimizer)
        self._counts.clear()
        return True


def of_all(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several models as one observation has them: of the kind that stepped most, with all its steps."""
    steps: Counter[int | None] = Counter()
    for model in models:
        steps[model["step_kind"]] += model["samples"]
    kind, samples = steps.most_common(1)[0]
    longest = max((model for model in models if model["step_kind"] == kind), key=lambda model: model["samples"])
    found = {**longest, "samples": samples}
    for name in ("excess_j", "excess_s"):  # all of them were paid for
        values = [model[name] for model in models]
        found[name] = None if None in values else sum(values)
    return found


def step_kind(optimizer: Any) -> int:
    """A number for the kind of step: the optimizer's class and how many parameters it trains."""
    count = 0
    for group in getattr(optimizer, "param_groups", None) or ():
        count += sum(int(parameter.numel()) for parameter in group["params"])
    return zlib.crc32(f"{type(optimizer).__name__} {count}".encode()) or 1
