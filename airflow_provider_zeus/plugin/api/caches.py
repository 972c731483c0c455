"""What the api-server keeps in memory between requests: answers, and the beliefs learned from logs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import reduce
from threading import Lock
from typing import Generic, TypeVar

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn, prior
from airflow_provider_zeus.reports.dataset import Dataset

T = TypeVar("T")

_Version = tuple[int, int | None, TrialKey]  # number, told_seq, key: the log may have been replaced by another one
_Learned = tuple[tuple[_Version, ...], Belief]  # the trials that a belief was learned from, and the belief


class LruCache(Generic[T]):
    """At most ``most`` values; the least recently used one goes first. Safe for several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def hold(self, most: int) -> None:
        """Hold at least so many from now on."""
        with self._lock:
            self._most = max(self._most, most)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made and stored where there is none. ``make`` may run in several threads at once."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        return self.put(key, make())

    def put(self, key: Hashable, value: T) -> T:
        """Store a value and return it."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


class BeliefCache:
    """Beliefs learned from logs, so that a page that is opened again learns from the new trials only.

    A belief is valid for the trials it was learned from. Where one of them has changed, it is learned from the start.
    """

    def __init__(self, most: int = 32) -> None:
        self._beliefs: LruCache[_Learned] = LruCache(most)

    def of(self, name: Hashable, log: Dataset) -> Dataset:
        """The dataset with its belief. ``name`` identifies the log: logs with the same name must not share trials."""
        key = (name, belief_tag(log.job))
        start: _Learned = ((), prior(log.job))
        ended = [t for t in log.lessons if t.state is not State.RUNNING]  # a running trial teaches nothing yet
        versions = tuple((t.number, t.told_seq, t.key) for t in ended)
        seen, belief = self._beliefs.get(key, lambda: start)
        if versions[: len(seen)] != seen:
            seen, belief = start
        belief = reduce(learn, ended[len(seen) :], replace(belief, job=log.job))
        self._beliefs.put(key, (versions, belief))
        return replace(log, folded=belief)
