"""The attempt of a rehearsal: two steps, a report and the function's value, for ``airflow zeus check``."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.protocol.seen import Rehearsal, Seen
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.torch_watch import STEPS, TorchWatch

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
        self._told: list[int] = []
        self._enough_s = float("inf")  # time at which the loop is left
        self._left = False
        self._watch = TorchWatch(fresh=may_begin_again, stepped=self._stepped)

    def next_epoch(self, target: Target) -> int | None:
        """Begin the first epoch; None after its report."""
        return None if self.epochs_done else super().next_epoch(target)

    def step(self, samples: int) -> None:
        """Count a step that was told."""
        super().step(samples)
        if len(self._told) < _MOST_TOLD:
            self._told.append(samples)
        self._watch.told()
        self._stepped()

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
        if self._enough_s == float("inf") and max(len(self._told), self._watch.optimizer_steps) >= STEPS:
            self._enough_s = time.monotonic() + EPOCH_S
            self._write()  # a loop that is killed at the time limit has left this much
        elif time.monotonic() > self._enough_s:
            self._left = True
            raise RehearsalOver(f"its first epoch has not ended {EPOCH_S:g} s after its first steps")

    def _write(self) -> None:
        watch = self._watch
        seen = Seen(
            told=tuple(self._told),
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


def check_alone(ranks: Ranks) -> None:
    """Raise RehearsalOver where several processes train together: one that ended would leave the others waiting."""
    if ranks.several:
        raise RehearsalOver(f"{ranks.size} processes train together")
