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
from weakref import WeakSet, ref

from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.protocol.plan import Rehearsal, RehearsalResult
from airflow_provider_zeus.training.samples import BatchCount, batch_size_of, samples_per_pass
from airflow_provider_zeus.training.trackers import Trackers

STEPS = 2  # of a rehearsal


class TorchWatch:
    """Watches torch in this process until :meth:`close`; does nothing where torch is not installed.

    :param fresh: whether weights that are there before the first step would be of an earlier call.
    :param cuts: whether passes over a ``DataLoader`` end after two optimizer steps.
    :param stepped: is called after each optimizer step; may raise.
    :param passing: is called when a pass over a ``DataLoader`` begins.
    """

    def __init__(self, *, fresh: bool, cuts: bool, stepped: Callable[[], None], passing: Callable[[], None]) -> None:
        self.optimizer_steps, self.older, self.cut, self.short = 0, 0, False, False
        self.sizes: list[list[int]] = []  # see :class:`.RehearsalResult`
        self.dropping: tuple[int, int] | None = None  # see there
        self.given: int | None = None  # first dimension of what a module was given last, before the first step
        self._given: int | None = None
        self._trained = dict[int, ref[Any]]()  # weights that an optimizer has, by id
        self._stepped = stepped
        self.passes: WeakSet[_Pass] = WeakSet()
        self._seen: set[int] = set()  # optimizers that made a step
        self._undo = ExitStack()
        self._before = _weights() if fresh else {}  # before torch is imported for the first time there are none
        with suppress(Exception):  # a torch that refuses it is not watched
            if importlib.util.find_spec("torch") is None:
                return
            from torch.nn.modules.module import register_module_forward_pre_hook
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
                passing()
                begun = _Pass(self, loader, original(loader), cuts=cuts and not by_lightning)
                self.passes.add(begun)
                return begun

            loader.__iter__ = passes
            self._undo.callback(setattr, loader, "__iter__", original)
            self._undo.callback(register_module_forward_pre_hook(self._before_module).remove)
            self._undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)

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
        if shape and self.given is None:
            self._given = int(shape[0])

    def _before_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        if id(optimizer) in self._seen:
            return
        self._seen.add(id(optimizer))
        for weight in (each for group in optimizer.param_groups for each in group["params"] if each.requires_grad):
            self._trained[id(weight)] = ref(weight)
            known = self._before.get(id(weight))
            self.older += known is not None and known[1] == _sum_of(weight)  # else they were set anew

    def _after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
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


EPOCH_S = 10.0  # how long the rest of an epoch may take that nothing can shorten
_MOST_TOLD = 100  # sizes of steps that are kept

log = logging.getLogger(__name__)


class RehearsalOver(BaseException):
    """The rehearsal has seen enough; the training function must end."""


class RehearsedAttempt(LiveAttempt):
    """An attempt that ends after its first report. A loop that does not come to one in time is left by an exception.

    :param rehearsal: where to write what was seen, and whether to end at the report.
    :param may_begin_again: whether another attempt would follow in this process, so that its model must be fresh.
    :param trackers: those that look for a run that the training has open.
    :param first: the function's call before this one, with another batch size. This one shows alone whether it goes on
        with that one's weights, or with as many samples, and ends at its first optimizer step.
    """

    def __init__(
        self,
        *args: Any,
        rehearsal: Rehearsal,
        may_begin_again: bool,
        trackers: Trackers,
        first: RehearsedAttempt | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._rehearsal, self._trackers, self._first = rehearsal, trackers, first
        self._told_sizes: list[int] = []
        self._shown_sizes: list[int] = []
        self._began_s = time.monotonic()
        self._enough_s = float("inf")  # time at which the loop is left
        self._left = False
        self._asked = self._asked_after = False  # for an epoch; after the report
        self._after, self._passed_after = "", False  # see :class:`.RehearsalResult`; whether a pass began after it
        self._unlearned, self._told_in_pass, self._learned = 0, 0, False  # see there; of a pass of run.data_loader()
        self._fixed: int | None = None  # see there
        self._may_begin_again = may_begin_again
        self._watch = TorchWatch(
            fresh=may_begin_again, cuts=not rehearsal.whole, stepped=self._optimizer_stepped, passing=self._passing
        )

    @property
    def leaves_doubt(self) -> bool:
        """Whether another quick call would show more: its weights are still there, or its size may be fixed."""
        if not self._may_begin_again or self._first is not None or time.monotonic() - self._began_s > EPOCH_S:
            return False
        watch, size = self._watch, self.planned.batch_size
        is_doubtful = (
            set(self._told_sizes) == {size} and not any(map(any, watch.sizes)) and watch.given not in (None, size)
        )
        return is_doubtful or watch.outlived

    def next_epoch(self, target: Target) -> int | None:
        """Begin the first epoch; None after its report."""
        self._asked, self._asked_after = True, self.epochs_done > 0
        return None if self.epochs_done else super().next_epoch(target)

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass of ``run.data_loader()``, or of a framework's loop."""
        left = super().start_pass(expected_samples)
        self._end_told_pass()

        def leave(samples: int) -> None:
            self._end_told_pass()
            left(samples)

        return leave

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """End it."""
        super().end_pass(waited_s, looped_s)
        self._end_told_pass()

    def step(self, samples: int) -> None:
        """Count a step that was told."""
        super().step(samples)
        if len(self._told_sizes) < _MOST_TOLD:
            self._told_sizes.append(samples)
        self._told_in_pass += 1
        for each in self._watch.passes:
            each.told += 1
        if not self._watch.optimizer_steps:
            self._goes_on("pass" if self._passed_after else "step")
        self._stepped()

    def torch_stepped(self, samples: int) -> None:
        """Count a step of torch that was not told."""
        super().torch_stepped(samples)
        if len(self._shown_sizes) < _MOST_TOLD:
            self._shown_sizes.append(samples)

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """End the epoch."""
        if not self.reported_names.isdisjoint(metrics):
            self._goes_on("report")
        super().report(target, metrics)
        self._write()
        if self._rehearsal.to_report and self.epochs_done:
            self._left = True
            raise RehearsalOver("the report has come")

    def stop(self) -> None:
        """End the attempt, and leave torch as it was."""
        super().stop()
        self._end_told_pass()
        self._trackers.look()
        self._watch.close()
        self._write()

    def _passing(self) -> None:
        self._passed_after = self._passed_after or self.epochs_done > 0

    def _goes_on(self, how: str) -> None:
        """Note how an epoch goes on after its report, where it does."""
        if self.epochs_done and not self._asked_after:
            self._after = self._after or how

    def _end_told_pass(self) -> None:
        self._unlearned += 0 if self._learned else self._told_in_pass
        self._told_in_pass, self._learned = 0, False

    def _optimizer_stepped(self) -> None:
        self._learned = True
        self._goes_on("pass" if self._passed_after else "step")
        if self._first is not None:
            self._left = True
            raise RehearsalOver("the model of the second call has been seen")
        self._stepped()

    def _stepped(self) -> None:
        if self._enough_s == float("inf") and max(len(self._told_sizes), self._watch.optimizer_steps) >= STEPS:
            self._enough_s = time.monotonic() + EPOCH_S
            self._write()  # a loop that is killed at the time limit has left this much
        elif time.monotonic() > self._enough_s:
            self._left = True
            raise RehearsalOver(f"its first epoch has not ended {EPOCH_S:g} s after its first steps")

    def _write(self) -> None:
        if self._first is not None:
            first = self._first
            first._watch.older = max(first._watch.older, self._watch.older)
            first._fixed = self._watch.given if self._watch.given == first._watch.given else None
            first._write()
            return
        watch = self._watch
        seen = RehearsalResult(
            told=tuple(self._told_sizes),
            shown=tuple(self._shown_sizes),
            optimizer_steps=watch.optimizer_steps,
            sizes=tuple(map(tuple, watch.sizes[:_MOST_TOLD])),
            short=watch.short,
            cut=watch.cut or self._left,
            metric=self._metric,
            names=tuple(sorted(self.reported_names)[:10]),
            older=watch.older,
            own_loop=self.epochs_done > 0 and not self._asked,
            after=self._after,
            unlearned=self._unlearned if watch.optimizer_steps else 0,
            dropping=watch.dropping,
            fixed=self._fixed,
            open_runs=self._trackers.open_runs,
        )
        try:
            seen.write(Path(self._rehearsal.path))
        except OSError:
            log.warning("Zeus: what this rehearsal saw cannot be written.", exc_info=True)
