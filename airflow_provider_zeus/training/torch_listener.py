"""The one place that hears torch's optimizer steps, for all who ask. Torch is never imported here.

Also tells which optimizer of a training leads, and of which kind its steps are.

If the training loads torch later, it is heard from that moment on: the hook is set in the thread
that imports it, so that no other thread changes torch's hooks while an optimizer steps.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from threading import Event, RLock, get_ident
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

MODULE = "torch.optim.optimizer"
LEAD_STEPS = 8  # a scheduler's or a warm-up's optimizer makes few steps

Heard = Callable[[Any], object]


_hearings: tuple[Heard, ...] = ()
_hooks = ExitStack()  # closed with the last hearing: a hook costs time in each step
_lock = RLock()


def on_steps(after: Heard) -> Callable[[], None]:
    """Call ``after`` after each optimizer step of torch in this process.

    Returns a function that ends it.
    """
    global _hearings
    hearing = partial(after)  # a new object: if two give one function, each ends its own hearing
    with _lock:
        is_first = not _hearings
        _hearings = (*_hearings, hearing)
        if is_first and MODULE in sys.modules:
            _hear(sys.modules[MODULE])
        elif is_first:
            waiting = _Waiting()
            sys.meta_path.insert(0, waiting)
            _hooks.callback(sys.meta_path.remove, waiting)
    return partial(_end, hearing)


def on_skips(steps_of: Callable[[Any], int], after: Heard) -> Callable[[], None]:
    """Call ``after`` when a GradScaler leaves out a step, since its gradients overflowed.

    Returns a function that ends it. Torch's own hooks hear of no such step.

    :param steps_of: the steps of an optimizer so far.
    """
    kind = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
    if kind is None:
        return lambda: None
    own_step = kind.step
    ended = Event()

    @wraps(own_step)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps_of(optimizer)
        result = own_step(scaler, optimizer, *args, **kwargs)
        is_skip = steps_of(optimizer) == before
        if is_skip and not ended.is_set():
            after(optimizer)
        return result

    def end() -> None:
        # Another tool that has wrapped this step keeps calling it.
        ended.set()
        if kind.step is step:  # else another tool has wrapped it, and this would undo that
            kind.step = own_step

    kind.step = step
    return end


def _end(hearing: Heard) -> None:
    global _hearings
    with _lock:
        _hearings = tuple(other for other in _hearings if other is not hearing)
        if not _hearings:
            with suppress(Exception):  # the training itself may have taken them out already
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
        # By thread: a finder that is asked here may ask all again, and without an end this one too.
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec by the other finders of torch's optimizers; None of any other module."""
        ident = get_ident()
        if name != MODULE or ident in self._asking:
            return None
        self._asking.add(ident)
        try:
            spec = self._spec_of_others(name, path, target)
        finally:
            self._asking.discard(ident)
        if spec is None:
            return None
        loader = spec.loader
        with suppress(Exception):  # a loader may take no attribute: torch is not heard then
            execute = loader.exec_module

            def executed(module: Any) -> None:
                with suppress(AttributeError):  # once: a loader may serve other modules as well
                    del loader.exec_module
                execute(module)
                _hear(module)

            loader.exec_module = executed
        return spec

    def _spec_of_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


class Leading:
    """The optimizer that steps most: another one takes over once it has stepped so often while that
    one rested.
    """

    def __init__(self) -> None:
        # Weak: an optimizer holds its model, and must not outlive its training here.
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._counted_at = 0  # a step of the leading one shows that it has not rested
        self._led: WeakSet[Any] = WeakSet()
        self._needed = LEAD_STEPS  # two that take turns would change the lead for ever

    def overtakes(self, optimizer: Any, steps: int, *, led: bool) -> bool:
        """Count a step of an optimizer that does not lead; whether it does so from now on.

        :param steps: of the leading one, so far.
        :param led: whether there is a leading one.
        """
        if self._counted_at != steps:
            self._counts.clear()
            self._counted_at = steps
        count = self._counts.get(optimizer, 0) + 1
        self._counts[optimizer] = count
        if count < (self._needed if led else LEAD_STEPS):
            return False
        if optimizer in self._led:
            self._needed *= 2
        self._led.add(optimizer)
        self._counts.clear()
        return True


def of_all(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several models as one observation has them: of the kind that stepped most,
    with all its steps.
    """
    steps: Counter[int | None] = Counter()
    for model in models:
        steps[model["step_kind"]] += model["samples"]
    kind, samples = steps.most_common(1)[0]
    longest = max(
        (model for model in models if model["step_kind"] == kind),
        key=lambda model: model["samples"],
    )
    figures = {**longest, "samples": samples}
    for name in ("excess_j", "excess_s"):  # the profiling of each model was paid for
        values = [model[name] for model in models]
        figures[name] = None if None in values else sum(values)
    return figures


def step_kind(optimizer: Any) -> int:
    """A number for the kind of step: the optimizer's class and how many parameters it trains."""
    count = 0
    for group in getattr(optimizer, "param_groups", None) or ():
        count += sum(int(parameter.numel()) for parameter in group["params"])
    # Never 0, which stands for no kind; no hash(), which differs from process to process.
    return zlib.crc32(f"{type(optimizer).__name__} {count}".encode()) or 1
