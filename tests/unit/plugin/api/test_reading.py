"""Values that the pages keep for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from airflow_provider_zeus.plugin.api.reading import LruCache


def test_a_value_is_kept_and_found_while_no_other_thread_does() -> None:
    free: list[bool] = []

    def look() -> None:
        free.append(kept._lock.acquire(blocking=False))
        if free[-1]:
            kept._lock.release()

    class Values(OrderedDict[Hashable, int]):
        def __setitem__(self, key: Hashable, value: int) -> None:
            look()
            super().__setitem__(key, value)

        def __contains__(self, key: object) -> bool:
            look()
            return super().__contains__(key)

    class Kept(LruCache[int]):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_most" and hasattr(self, "_lock"):
                look()
            super().__setattr__(name, value)

    kept = Kept(1)
    kept._values = Values()
    kept.put("a", 1)
    kept.hold(2)
    kept.put("b", 2)
    assert kept.get("a", lambda: 3) == 1
    assert free == [False] * 4
