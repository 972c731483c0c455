"""What logs were folded to, kept in this process: a page that is opened again folds the new runs alone.

It saves time and nothing else: what is kept holds for one beginning of one log, and is made anew where that changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from functools import reduce
from threading import Lock

from airflow_provider_zeus.optimizer.evidence import Evidence
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn, prior
from airflow_provider_zeus.optimizer.trial import State, TrialKey

KEPT = 32  # jobs

_Mark = tuple[int, int | None, TrialKey]  # a trial as it was folded; the key: the log may have been replaced
_Kept = tuple[tuple[_Mark, ...], Belief]


class Folds:
    """The newest folds, of any number of logs; usable by several threads."""

    def __init__(self, most: int = KEPT) -> None:
        self._most, self._lock = most, Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def of(self, name: Hashable, log: Evidence) -> Evidence:
        """The log with its fold. ``name``: which log it is; two logs of one name may not share trial numbers."""
        over = [t for t in log.trials if t.state is not State.RUNNING]  # those that run have taught nothing
        marks = tuple((t.number, t.told_seq, t.key) for t in over)
        key = (name, belief_tag(log.job))
        with self._lock:
            seen, belief = self._kept.get(key, ((), prior(log.job)))
        if marks[: len(seen)] != seen:
            seen, belief = (), prior(log.job)
        belief = reduce(learn, over[len(seen) :], replace(belief, job=log.job))
        with self._lock:
            self._kept[key] = (marks, belief)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return replace(log, folded=belief)
