"""Items in groups, and sums of figures of which some are not known. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from airflow_provider_zeus.patience import T

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, in order; unlike ``groupby``, equal keys need not be neighbours."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def known_values(values: Iterable[T | None]) -> list[T]:
    """Those that are known."""
    return [value for value in values if value is not None]


def newest_known(values: Iterable[T | None]) -> T | None:
    """The last of those that are known; None if none is."""
    return next(reversed(known_values(values)), None)


def sum_of_known(values: Iterable[float | None]) -> float:
    """The sum of those that are known; 0 if none is."""
    return math.fsum(known_values(values))


def whole(values: Sequence[T | None]) -> list[T] | None:
    """The values; None if one is not known: a part would look like the whole."""
    present = known_values(values)
    # An empty list is whole: nothing of it is missing.
    if len(present) == len(values):
        return present
    return None


def of_all(merge: Callable[[list[T]], R], values: Sequence[T | None]) -> R | None:
    """The result of ``merge`` on the values; None if one is not known."""
    present = whole(values)
    if present is None:
        return None
    return merge(present)


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    figures = known_values(values)
    if not figures:
        return None
    return math.fsum(figures)
