"""The attempt of a rehearsal, for ``airflow zeus check``: two steps, a report and the function's value.

Torch is watched meanwhile: its optimizer steps, the batches drawn for them, and whether the model is fresh.

A pass over a ``DataLoader`` ends after two optimizer steps, so that the training's first epoch is short. A pass without
optimizer steps, such as a validation, is not touched.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.protocol.plan import Rehearsal, RehearsalResult
from airflow_provider_zeus.training.samples import BatchCount, samples_per_pass

STEPS = 2  # of a rehearsal


class TorchWatch:
    """Watches torch in this process until :meth:`close`; does nothing where torch is not installed.

    :param fresh: whether weights that are there before the first step would be of an earlier call.
    :param stepped: is called after each optimizer step; may raise.
    """

    def __init__(self, *, fresh: bool, stepped: Callable[[], None]) -> None:
        self.optimizer_steps, self.older, self.cut, self.short = 0, 0, False, False
        self.sizes: list[list[int]] = []  # see :class:`.RehearsalResult`
        self._stepped = stepped
        self.passes: WeakSet[_Pass] = WeakSet()
        self._seen: set[int] = set()  # optimizers that made a step
        self._undo = ExitStack()
        self._before = _weights() if fresh else {}  # before torch is imported for the first time there are none
        with suppress(Exception):  # a torch that refuses it is not watched
            if importlib.util.find_spec("torch") is None:
                return
            from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
            from torch.utils.data import DataLoader

            loader: Any = DataLoader
            original = loader.__iter__

            def passes(loader: Any) -> Iterator[Any]:
                frame, by_lightning = sys._getframe(1), False
                while frame is not None and not by_lightning:
                    name = str(frame.f_globals.get("__name__"))
                    by_lightning = name.partition(".")[0] in ("lightning", "pytorch_lightning")
                    frame = frame.f_back  # type: ignore[assignment]
                # Lightning validates after as many batches as the loader has, so none may miss
                begun = _Pass(self, loader, original(loader), cuts=not by_lightning)
                self.passes.add(begun)
                return begun

            loader.__iter__ = passes
            self._undo.callback(setattr, loader, "__iter__", original)
            self._undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    def _before_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        if id(optimizer) in self._seen or not self._before:
            self._seen.add(id(optimizer))
            return
        self._seen.add(id(optimizer))
        for group in optimizer.param_groups:
            for weight in group["params"]:
                known = self._before.get(id(weight))
                self.older += known is not None and known[1] == _sum_of(weight)  # else they were set anew

    def _after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        self.optimizer_steps += 1
        for each in list(self.passes):
            each.stepped(id(optimizer))
        self._stepped()


class _Pass:
    """One pass over a ``DataLoader``, which ends after two steps of one optimizer."""

    def __init__(self, watch: TorchWatch, loader: Any, batches: Iterator[Any], *, cuts: bool) -> None:
        self.told = 0
        self._watch, self._batches, self._cuts = watch, batches, cuts
        self._samples_of = BatchCount(loader)
        self._most = samples_per_pass(loader) or float("inf")
        self._drawn, self._before = 0, dict[int, int]()  # samples; by optimizer, those drawn at its last step
        self._sizes: dict[int, list[int]] = {}  # by optimizer

    def __iter__(self) -> Iterator[Any]:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        most = max(map(len, self._sizes.values()), default=0)
        most_told = 16  # steps told in a pass of a training whose optimizer is not torch's
        enough = most >= STEPS or (not self._watch.optimizer_steps and self.told >= most_told)
        if enough and self._cuts:
            self._watch.cut = True
            raise StopIteration
        batch = next(self._batches)
        self._drawn += self._samples_of(batch)
        return batch

    def stepped(self, optimizer: int) -> None:
        """An optimizer made a step while this pass was under way."""
        if optimizer not in self._sizes:
            self._sizes[optimizer] = []
            self._watch.sizes.append(self._sizes[optimizer])
        if len(self._sizes[optimizer]) < STEPS:
            self._sizes[optimizer].append(self._drawn - self._before.get(optimizer, 0))
            self._watch.short = self._watch.short or self._drawn >= self._most
        self._before[optimizer] = self._drawn


def _weights() -> dict[int, tuple[Any, float]]:
    """The parameters that are in memory, by id, with the sum of each; the parameter is held, so that its id stays."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    kind = torch.nn.Parameter
    found = [each for each in gc.get_objects() if type(each) is kind or issubclass(type(each), kind)]
    return {id(each): (each, _sum_of(each)) for each in found}


def _sum_of(weight: Any) -> float:
    with suppress(Exception):  # of a lazy parameter, or one on a device that is gone
        return float(weight.detach().double().sum())
    return float("nan")  # equals nothing


EPOCH_S = 10.0  # how long the rest of an epoch may take that nothing can shorten
_MOST_TOLD = 100  # sizes of steps that are kept

log = logging.getLogger(__name__)


class RehearsalOver(BaseException):
    """The rehearsal has seen enough; the training function must end."""


class RehearsedAttempt(LiveAttempt):
    """An attempt that ends after its first report. A loop that does not come to one in time is left by an exception.

    :param rehearsal: where to write what was seen, and whether to end at the report.
    :param may_begin_again: whether another attempt would follow in this process, so that its model must be fresh.
    """

    def __init__(self, *args: Any, rehearsal: Rehearsal, may_begin_again: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rehearsal = rehearsal
        self._told_sizes: list[int] = []
        self._shown_sizes: list[int] = []
        self._enough_s = float("inf")  # time at which the loop is left
        self._left = False
        self._watch = TorchWatch(fresh=may_begin_again, stepped=self._stepped)

    def next_epoch(self, target: Target) -> int | None:
        """Begin the first epoch; None after its report."""
        return None if self.epochs_done else super().next_epoch(target)

    def step(self, samples: int) -> None:
        """Count a step that was told."""
        super().step(samples)
        if len(self._told_sizes) < _MOST_TOLD:
            self._told_sizes.append(samples)
        for each in self._watch.passes:
            each.told += 1
        self._stepped()

    def torch_stepped(self, samples: int) -> None:
        """Count a step of torch that was not told."""
        super().torch_stepped(samples)
        if len(self._shown_sizes) < _MOST_TOLD:
            self._shown_sizes.append(samples)

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """End the epoch."""
        super().report(target, metrics)
        self._write()
        if self._rehearsal.to_report and self.epochs_done:
            self._left = True
            raise RehearsalOver("the report has come")

    def stop(self) -> None:
        """End the attempt, and leave torch as it was."""
        super().stop()
        self._watch.close()
        self._write()

    def _stepped(self) -> None:
        if self._enough_s == float("inf") and max(len(self._told_sizes), self._watch.optimizer_steps) >= STEPS:
            self._enough_s = time.monotonic() + EPOCH_S
            self._write()  # a loop that is killed at the time limit has left this much
        elif time.monotonic() > self._enough_s:
            self._left = True
            raise RehearsalOver(f"its first epoch has not ended {EPOCH_S:g} s after its first steps")

    def _write(self) -> None:
        watch = self._watch
        seen = RehearsalResult(
            told=tuple(self._told_sizes),
            shown=tuple(self._shown_sizes),
            optimizer_steps=watch.optimizer_steps,
            sizes=tuple(map(tuple, watch.sizes[:_MOST_TOLD])),
            short=watch.short,
            cut=watch.cut or self._left,
            metric=self._metric,
            older=watch.older,
        )
        try:
            seen.write(Path(self._rehearsal.path))
        except OSError:
            log.warning("Zeus: what this rehearsal saw cannot be written.", exc_info=True)
