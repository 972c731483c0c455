"""What torch shows of a training in this process: its optimizer steps, and the samples that its loaders gave for each.

Torch is looked at where its author has imported it, and never imported here. Where it shows nothing, steps are told by
``run.step()``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

from airflow_provider_zeus.training.attempt_checks import remedy
from airflow_provider_zeus.training.samples import DrawListener, ignore, listen, size_of
from airflow_provider_zeus.training.torch_listener import on_steps


class TorchSteps(DrawListener):
    """Counts torch's optimizer steps, and the samples drawn for each, until :meth:`close`.

    One counts at a time, the newest: what a run left unfinished in this process must not hear of another run's steps.
    A step trains on what one loader gave since the step before: a second one beside it (``zip``), a second optimizer
    and a validation in between add nothing.

    :param whole: samples of a whole batch, for a loader that does not know.
    :param stepped: gets the samples of each step; may raise.
    :param ended: is called when the loader of the last step has no more batches.
    """

    _newest: ClassVar[Callable[[], TorchSteps | None]] = lambda: None

    def __init__(self, whole: int, stepped: Callable[[int], None], ended: Callable[[], None]) -> None:
        self.by_optimizer: Counter[int] = Counter()  # steps of each: a training may have several
        self._whole, self._on_step, self._on_end = whole, stepped, ended
        self._drawn: dict[int, tuple[ref[Any], int]] = {}  # of each pass: samples since the last step; the newest last
        self._recent = 0  # of them those of the pass that drew last, also when it is over
        self.unsure = 0  # samples of steps after a pass that had ended without one: of a validation, or in advance
        self._ended = False  # the pass that drew last had no step, and is over
        self._trained: Callable[[], Any] = lambda: None  # the pass of the last step
        self.remedy = ""  # the setting of its loader to try next, once there is one
        self._waits: WeakKeyDictionary[Any, float] = (
            WeakKeyDictionary()
        )  # of each pass: for batches since the last step
        self.waited_s = self.looped_s = 0.0  # of those that were trained on, and of their steps with it
        self._since_s = 0.0  # time of the step before, or of the first draw of a pass
        self._paused = False  # the training has paused since the last step: persistent workers go on in the same pass
        self.in_trainer: bool | None = None  # the first step was one of a framework's trainer; None before it
        self._hooks = ExitStack()
        if (older := TorchSteps._newest()) is not None:
            older.close()
        TorchSteps._newest = ref(self)
        self._hooks.callback(on_steps(self._stepped))
        listen(self)

    def take_waits(self) -> tuple[float, float]:
        """Seconds spent waiting for what was trained on, and those of the steps with it, since the last call.

        The training pauses here: what follows is validation.
        """
        self._paused = True
        waited, self.waited_s, self.looped_s = (self.waited_s, self.looped_s), 0.0, 0.0
        return waited

    def ignore_draws(self) -> None:
        """Go on with the count of steps alone: the training reports the samples itself."""
        ignore(self)
        self._drawn.clear()
        self._recent = 0

    def close(self) -> None:
        """End, and remove the hook."""
        self.ignore_draws()
        self._hooks.close()

    def drawn(self, iterator: Any, batch: Any, size: int | None, *, exact: bool, waited_s: float = 0.0) -> None:
        """Add a batch to those of its pass."""
        self._recent = self._pop(iterator) + ((size or 0) if exact else size_of(batch, size, self._whole))
        self._drawn[id(iterator)], self._ended = (ref(iterator), self._recent), False
        if iterator not in self._waits and (self._paused or self._trained() is not iterator):  # a pass begins
            self._since_s = perf_counter() - waited_s
        self._waits[iterator] = self._waits.get(iterator, 0.0) + waited_s

    def exhausted(self, iterator: Any) -> None:
        """Forget a pass. One that loads in advance has a step still to come."""
        self._waits.pop(iterator, None)
        left, trained = self._pop(iterator), self._trained() is iterator
        self._ended = bool(left) and not trained
        if trained and not left:
            self._on_end()

    def _pop(self, iterator: Any) -> int:
        one, samples = self._drawn.pop(id(iterator), (None, 0))
        return samples if one is not None and one() is iterator else 0

    def _stepped(self, optimizer: Any) -> None:
        self.by_optimizer[id(optimizer)] += 1
        if self.in_trainer is None:
            self.in_trainer = _is_in_trainer()
        drawn, self._drawn = self._drawn, {}  # whole: a thread may load in advance meanwhile
        samples, self._recent = self._recent, 0
        fresh = [each for each in drawn.values() if each[0]() is not None]
        if self._ended and not fresh:
            self.unsure += samples
        if fresh:
            last = [each for each in fresh if each[0]() is self._trained()]
            whole = [each for each in fresh if each[1] == self._whole]
            self._trained, samples = (last or whole or fresh)[-1]
            trained = self._trained()
            now_s = perf_counter()
            self.waited_s, self._paused = self.waited_s + self._waits.pop(trained, 0.0), False
            self.looped_s, self._since_s = self.looped_s + now_s - self._since_s, now_s
            self.remedy = self.remedy or remedy(trained)
        if samples:
            self._on_step(samples)


def _is_in_trainer() -> bool:
    """Whether a trainer that makes its own loader has called this code."""
    trainers = ("transformers.trainer", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in trainers:
            return True
        frame = frame.f_back
    return False
