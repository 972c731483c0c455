"""The attempt of a rehearsal, for ``airflow zeus check``: two steps, a report and the function's value."""

from __future__ import annotations

import ast
import inspect
import logging
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.protocol.plan import Rehearsal, RehearsalResult
from airflow_provider_zeus.training.starts import SHARDED, UNSEEN
from airflow_provider_zeus.training.torch_watch import STEPS, TorchWatch
from airflow_provider_zeus.training.trackers import Trackers

EPOCH_S = 10.0  # how long the rest of an epoch may take that nothing can shorten
_MOST_TOLD = 100  # sizes of steps that are kept

log = logging.getLogger(__name__)


def _may_leave(code: CodeType) -> bool:
    """Whether a loop over ``run.epochs()`` in this code may be left before its end; True also where none is seen."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return True
    loops = [each for each in ast.walk(tree) if isinstance(each, ast.For) and ".epochs()" in ast.unparse(each.iter)]
    leaving = (ast.Break, ast.Return, ast.Raise)
    return not loops or any(isinstance(each, leaving) for loop in loops for each in ast.walk(loop))


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
        self._own_loop = False  # see :class:`.RehearsalResult`
        self._after = ""  # see :class:`.RehearsalResult`
        self._begun = 0  # passes that had begun when the epoch was reported
        self._unlearned, self._told_in_pass, self._learned = 0, 0, False  # see there; of a pass of run.data_loader()
        self._fixed: int | None = None  # see there
        self._may_begin_again = may_begin_again
        self._watch = TorchWatch(fresh=may_begin_again, cuts=not rehearsal.whole, stepped=self._optimizer_stepped)

    @property
    def leaves_doubt(self) -> bool:
        """Whether another quick call would show more: its weights are still there, or its size may be fixed."""
        if not self._may_begin_again or self._first is not None or time.monotonic() - self._began_s > EPOCH_S:
            return False
        watch, size = self._watch, self.planned.batch_size
        fixed = watch.given not in (None, size) and not any(map(any, watch.sizes))
        return (fixed and set(self._told_sizes) == {size}) or watch.outlived

    def next_epoch(self, target: Target) -> int | None:
        """Begin the first epoch; None after its report. Another loop is an error then, if nothing leaves this one."""
        self._asked, self._asked_after = True, self.epochs_done > 0
        if not self.epochs_done:
            return super().next_epoch(target)
        self.over = not _may_leave(sys._getframe(2).f_code)  # of the author's loop, which asks by run.epochs()
        return None

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass of ``run.data_loader()``, or of a framework's loop."""
        left = super().start_pass(expected_samples)
        self._end_told_pass()

        def leave(samples: int) -> None:
            self._end_told_pass()
            left(samples)

        return leave

    def end_pass(self, waited_s: float = 0.0, looped_s: float = 0.0, loader: Any = None) -> None:
        """End it."""
        super().end_pass(waited_s, looped_s, loader)
        self._end_told_pass()

    def step(self, samples: int) -> None:
        """Count a step that was reported."""
        super().step(samples)
        if len(self._told_sizes) < _MOST_TOLD:
            self._told_sizes.append(samples)
        self._told_in_pass += 1
        for each in self._watch.passes:
            each.told += 1
        if not self._watch.optimizer_steps:
            self._goes_on()
        self._stepped()

    def torch_stepped(self, samples: int) -> None:
        """Count a step of torch that was not reported."""
        super().torch_stepped(samples)
        if len(self._shown_sizes) < _MOST_TOLD:
            self._shown_sizes.append(samples)

    def report(self, target: Target, metrics: Mapping[str, Any]) -> None:
        """End the epoch."""
        self._own_loop = not self._asked
        if not self.names.isdisjoint(metrics):
            self._goes_on("report")
        if not self.epochs_done:
            self._begun = self._watch.begun
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

    def _goes_on(self, how: str = "") -> None:
        """Note how an epoch goes on after its report, where it does; by default with a step, of another pass or not."""
        if self.epochs_done and not self._asked_after:
            self._after = self._after or how or ("step" if self._begun == self._watch.begun else "pass")

    def _end_told_pass(self) -> None:
        self._unlearned += 0 if self._learned else self._told_in_pass
        self._told_in_pass, self._learned = 0, False

    def _optimizer_stepped(self) -> None:
        self._learned = True
        self._goes_on()
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
            metric=self.metric,
            names=tuple(sorted(self.names)[:10]),
            older=watch.older,
            own_loop=self._own_loop,
            after=self._after,
            left=not self._asked_after and not self.reached and 0 < self.epochs_done < self._max_epochs,
            unlearned=self._unlearned if watch.optimizer_steps else 0,
            dropping=watch.dropping,
            fixed=self._fixed,
            started=bool(self.taken.starts) and self.taken.why_cold != UNSEEN,
            sharded=(self.taken.why_cold or "").startswith(SHARDED),
            open_runs=self._trackers.open_runs,
        )
        try:
            seen.write(Path(self._rehearsal.path))
        except OSError:
            log.warning("Zeus: what this rehearsal saw cannot be written.", exc_info=True)
