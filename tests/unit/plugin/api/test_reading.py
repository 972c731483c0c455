"""Values that the pages keep for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from airflow_provider_zeus.plugin.api.reading import LruCache


def test_a_value_is_kept_and_room_is_made_while_no_other_thread_does() -> None:
    free: list[bool] = []

    class Values(OrderedDict[Hashable, int]):
        def __setitem__(self, key: Hashable, value: int) -> None:
            free.append(kept._lock.acquire(blocking=False))
            super().__setitem__(key, value)

    class Kept(LruCache[int]):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_most" and hasattr(self, "_lock"):
                free.append(self._lock.acquire(blocking=False))
            super().__setattr__(name, value)

    kept = Kept(1)
    kept._values = Values()
    kept.put("a", 1)
    kept.hold(2)
    assert free == [False, False]
    kept.put("b", 2)
    assert kept.get("a", lambda: 3) == 1
