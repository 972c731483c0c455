"""A training as torch shows it in this process: its optimizer steps, and the samples that its
loaders gave for each.

Torch is looked at if its author has imported it, and never imported here. If it shows nothing,
steps are told by ``run.step()``.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from airflow_provider_zeus.training.attempt_checks import remedy
from airflow_provider_zeus.training.torch_listener import MODULE, on_skips, on_steps
from airflow_provider_zeus.training.torch_loaders import (
    Draw,
    DrawListener,
    LoaderPass,
    ignore,
    listen,
)


class Waits(NamedTuple):
    """How long a training waited for its batches [s], of the time of the steps with them [s]."""

    waited_s: float = 0.0
    looped_s: float = 0.0


class TorchSteps(DrawListener):
    """Counts torch's optimizer steps, and the samples drawn for each, from :meth:`listen` until
    :meth:`close`.

    One counts at a time, the newest: what a run left unfinished in this process must not hear of
    another run's steps. A step trains on what one loader gave since the step before: a second one
    beside it (``zip``), a second optimizer and a validation in between add nothing.

    :param stepped: gets the samples of each step; may raise.
    :param ended: is called when the loader of the last step has no more batches.
    """

    _newest: ClassVar[Callable[[], TorchSteps | None]] = lambda: None

    def __init__(self, stepped: Callable[[int], None], ended: Callable[[], None]) -> None:
        # By optimizer: several may share a step, and their sum would count it twice.
        self.by_optimizer: Counter[int] = Counter()
        self.sizes: Counter[int] = Counter()  # by samples: a mean would hide steps of two sizes
        self._in_epochs_before: Counter[int] = Counter()
        # Steps after the passes of an epoch may be a probe's; None while a pass trains.
        self._at_pause: Counter[int] | None = None
        self._beside: Counter[int] = Counter()  # a probe's steps between two passes must not count
        self._only_compares = False  # if it reports steps itself, these would count twice
        self._rates: dict[int, float] = {}  # a schedule changes the rate later
        self._whole = 0
        self._listens = False
        self._on_step = stepped
        self._on_end = ended
        # The newest pass last: if none is known to train, the next step is most likely its own.
        self._drawn: dict[LoaderPass, int] = {}
        self._recent = 0  # kept when a pass ends: a loop may step on its last batch after that
        # The step after a pass without one may be of a validation's batch: too many such steps
        # would teach a wrong size.
        self.unsure = 0
        self._ended = False  # a pass without a step may be a validation, which is not to count
        self._trained: LoaderPass | None = None
        self.remedy = ""  # one setting at a time: two would not tell which one helped
        self._waits = Waits()  # taken at each pause: a validation's are none of the training's
        self._since_s = 0.0
        # Persistent workers go on in the same pass, so a new epoch does not show by a new pass.
        self._paused = False
        # Looked up at the first step alone: a walk up the stack in each step would slow it.
        self.in_trainer: bool | None = None
        self._hooks = ExitStack()

    def listen(self, whole: int) -> None:
        """Begin, if the author has loaded torch.

        :param whole: samples of a whole batch, for a loader that does not know.
        """
        if self._listens or MODULE not in sys.modules:
            return
        self._listens = True
        self._whole = whole
        older = TorchSteps._newest()
        if older is not None:
            older.close()
        TorchSteps._newest = ref(self)
        self._hooks.callback(on_steps(self._stepped))
        self._hooks.callback(on_skips(self._steps_of, self._stepped))
        listen(self)

    def begin_epoch(self) -> None:
        """Count the steps of an epoch from here on."""
        self._in_epochs_before = self.by_optimizer.copy()
        self._at_pause = None
        self._beside.clear()
        self.sizes.clear()

    def pause(self) -> None:
        """A pass of the run's loader is over: a validation, or the training of a probe, may
        follow.
        """
        self._at_pause = self.by_optimizer.copy()

    def go_on(self, *, with_a_pass: bool) -> None:
        """Training steps follow.

        Without a pass of a loader, those since the pause were of the training too.
        """
        if self._at_pause is not None and with_a_pass:
            self._beside += self.by_optimizer - self._at_pause
        self._at_pause = None

    @property
    def steps_in_epoch(self) -> Counter[int]:
        """Training steps of each optimizer in this epoch."""
        made = self.by_optimizer - self._in_epochs_before
        beside = self._beside.copy()
        if self._at_pause is not None:
            beside += self.by_optimizer - self._at_pause
        return (made - beside) or made

    @property
    def learning_rate(self) -> float | None:
        """The rate that the optimizer with most steps began with; None if it has none."""
        if not self.by_optimizer:
            return None
        ((most, _),) = self.by_optimizer.most_common(1)
        return self._rates.get(most)

    def take_waits(self) -> Waits:
        """The waits for batches that were trained on, since the last call.

        The training pauses here: validation follows.
        """
        self._paused = True
        waits = self._waits
        self._waits = Waits()
        return waits

    def only_compare(self) -> None:
        """Hand on no steps from now on: the training reports them itself, and is compared."""
        self._only_compares = True
        self._forget_draws()

    def close(self) -> None:
        """End, and remove the hooks."""
        ignore(self)
        self._forget_draws()
        self._hooks.close()

    def drawn(self, draw: Draw) -> None:
        """Add a batch to those of its pass."""
        loader_pass = draw.of
        samples = self._share(loader_pass, draw.samples(self._whole))
        # Taken out first, or a known pass would keep its place: the newest is the last one.
        self._recent = self._drawn.pop(loader_pass, 0) + samples
        self._drawn[loader_pass] = self._recent
        self._ended = False
        if loader_pass.waited_s is None:
            loader_pass.waited_s = 0.0
            is_new = self._trained is not loader_pass
            if self._paused or is_new:
                self._since_s = perf_counter() - draw.waited_s
        loader_pass.waited_s += draw.waited_s

    def exhausted(self, loader_pass: LoaderPass) -> None:
        """Forget a pass. One that loads in advance has a step still to come."""
        loader_pass.waited_s = None
        samples = self._drawn.pop(loader_pass, 0)
        trained = self._trained is loader_pass
        self._ended = samples > 0 and not trained
        if trained and not samples:
            self._on_end()

    def _share(self, loader_pass: LoaderPass, samples: int) -> int:
        """Of a batch that was drawn, the samples of this process."""
        dispatch = loader_pass.dispatch
        if dispatch.processes == 1:
            return samples
        before = dispatch.share(loader_pass.samples)
        loader_pass.samples += samples
        return dispatch.share(loader_pass.samples) - before

    def _forget_draws(self) -> None:
        self._drawn.clear()
        self._recent = 0

    def _steps_of(self, optimizer: Any) -> int:
        return self.by_optimizer[id(optimizer)]

    def _stepped(self, optimizer: Any) -> None:
        self._note(optimizer)
        # Taken as a whole: a thread may load in advance meanwhile.
        drawn = self._drawn
        self._drawn = {}
        samples = self._recent
        self._recent = 0
        living = [loader_pass for loader_pass in drawn if loader_pass.iterator() is not None]
        if living:
            trained = self._trained_of(living, drawn)
            samples = drawn[trained]
            self._add_wait(trained)
        elif self._ended:
            self.unsure += samples
        if not samples:
            return
        self.sizes[samples] += 1
        if not self._only_compares:
            self._on_step(samples)

    def _note(self, optimizer: Any) -> None:
        """Count a step of an optimizer; note its rate at its first one."""
        self.by_optimizer[id(optimizer)] += 1
        if self.by_optimizer[id(optimizer)] == 1:
            rate = first_rate(optimizer)
            if rate is not None:
                self._rates[id(optimizer)] = rate
        if self.in_trainer is None:
            self.in_trainer = _is_in_trainer()

    def _trained_of(self, passes: list[LoaderPass], drawn: dict[LoaderPass, int]) -> LoaderPass:
        """The pass that a step trained on: that of the step before, else the newest one that gave a
        whole batch.
        """
        if self._trained in passes:
            return self._trained
        whole = [loader_pass for loader_pass in passes if drawn[loader_pass] == self._whole]
        if whole:
            return whole[-1]
        return passes[-1]

    def _add_wait(self, trained: LoaderPass) -> None:
        """Add the time since the step before to the waits: it was spent on this pass."""
        now_s = perf_counter()
        waited_s = 0.0 if trained.waited_s is None else trained.waited_s
        looped_s = self._waits.looped_s + now_s - self._since_s
        self._waits = Waits(self._waits.waited_s + waited_s, looped_s)
        self._trained = trained
        trained.waited_s = None
        self._since_s = now_s
        self._paused = False
        if not self.remedy:
            self.remedy = remedy(trained.iterator())


def first_rate(optimizer: Any) -> float | None:
    """The learning rate that an optimizer begins with, before its schedule; None if it has none."""
    try:
        group = optimizer.param_groups[0]
        rate = float(group.get("initial_lr", group["lr"]))
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return None
    if math.isfinite(rate):
        return rate
    return None


def _is_in_trainer() -> bool:
    """Whether a trainer that makes its own loader has called this code."""
    trainers = (
        "transformers.trainer",
        "lightning.pytorch.trainer.trainer",
        "pytorch_lightning.trainer.trainer",
    )
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in trainers:
            return True
        frame = frame.f_back
    return False
