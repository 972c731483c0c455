"""Watches torch during a rehearsal: its optimizer steps, the batches drawn for them, and whether the model is fresh.

A pass over a ``DataLoader`` ends after two optimizer steps, so that the training's first epoch is short. A pass without
optimizer steps, such as a validation, is not touched.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from weakref import WeakSet, ref

from airflow_provider_zeus.training.samples import BatchCount, batch_size_of, samples_per_pass
from airflow_provider_zeus.training.torch_listener import on_steps

STEPS = 2  # of a rehearsal


class TorchWatch:
    """Watches torch in this process until :meth:`close`; does nothing where torch is not installed.

    :param fresh: whether weights that are there before the first step would be of an earlier call.
    :param cuts: whether passes over a ``DataLoader`` end after two optimizer steps.
    :param stepped: is called after each optimizer step; may raise.
    """

    def __init__(self, *, fresh: bool, cuts: bool, stepped: Callable[[], None]) -> None:
        self.optimizer_steps, self.older, self.cut, self.short = 0, 0, False, False
        self.begun = 0  # passes over a ``DataLoader``
        self.sizes: list[list[int]] = []  # see :class:`.RehearsalResult`
        self.dropping: tuple[int, int] | None = None  # see there
        self.given: int | None = None  # first dimension of what a module was given last, before the first step
        self._given: int | None = None
        self._trained = dict[int, ref[Any]]()  # weights that an optimizer has, by id
        self._stepped = stepped
        self.passes: WeakSet[_Pass] = WeakSet()
        self._seen: WeakSet[Any] = WeakSet()  # optimizers that made a step
        self._undo = ExitStack()
        self._before = _weights() if fresh else {}  # before torch is imported for the first time there are none
        with suppress(Exception):  # a torch that refuses it is not watched
            if importlib.util.find_spec("torch") is None:
                return
            from torch.nn.modules.module import register_module_forward_pre_hook
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
                self.begun += 1
                begun = _Pass(self, loader, original(loader), cuts=cuts and not by_lightning)
                self.passes.add(begun)
                return begun

            loader.__iter__ = passes
            self._undo.callback(setattr, loader, "__iter__", original)
            self._undo.callback(register_module_forward_pre_hook(self._before_module).remove)
            self._undo.callback(on_steps(self._after_step, self._before_step))

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    @property
    def outlived(self) -> bool:
        """Whether a weight that was trained is still in memory: something else than the function's call holds it."""
        for collected in (False, True):  # a cycle of references may hold it
            if collected:
                gc.collect()
            if not any(weight() is not None for weight in self._trained.values()):
                return False
        return True

    def _before_module(self, module: Any, given: tuple[Any, ...]) -> None:
        shape = getattr(given[0], "shape", None) if given and module.training else None
        if isinstance(shape, tuple) and shape and self.given is None:
            self._given = int(shape[0])

    def _before_step(self, optimizer: Any) -> None:
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        for weight in (each for group in optimizer.param_groups for each in group["params"] if each.requires_grad):
            self._trained[id(weight)] = ref(weight)
            known = self._before.get(id(weight))
            self.older += known is not None and known[1] == _sum_of(weight)  # else they were set again

    def _after_step(self, optimizer: Any) -> None:
        self.optimizer_steps += 1
        self.given = self.given or self._given
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
        self._dropping = _dropping(loader)
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
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._drawn:  # all of it is dropped
                self._watch.dropping = self._watch.dropping or self._dropping
            raise
        self._drawn += self._samples_of(batch)
        return batch

    def stepped(self, optimizer: int) -> None:
        """An optimizer made a step while this pass was under way."""
        if optimizer not in self._sizes:
            self._watch.dropping = min(filter(None, (self._watch.dropping, self._dropping)), default=None)
            self._sizes[optimizer] = []
            self._watch.sizes.append(self._sizes[optimizer])
        if len(self._sizes[optimizer]) < STEPS:
            self._sizes[optimizer].append(self._drawn - self._before.get(optimizer, 0))
            self._watch.short = self._watch.short or self._drawn >= self._most
        self._before[optimizer] = self._drawn


def _dropping(loader: Any) -> tuple[int, int] | None:
    """(Samples, batch size) of a loader that drops its last batch where that is not whole; None: another one."""
    batches, size = loader.sampler if loader.batch_sampler is None else loader.batch_sampler, batch_size_of(loader)
    with suppress(TypeError, NotImplementedError):  # of a stream
        samples = len(getattr(batches, "sampler", loader.dataset))
        return (samples, size) if getattr(batches, "drop_last", False) and size and samples else None
    return None


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
