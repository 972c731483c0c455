"""Places of requests are counted under one lock."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from airflow_provider_zeus.plugin.api.load import RequestLimit


def test_a_place_is_taken_and_freed_while_no_other_thread_counts() -> None:
    class Counted(Counter[str]):
        def __setitem__(self, name: str, count: int) -> None:
            free.append(limit._lock.acquire(blocking=False))
            super().__setitem__(name, count)

    free: list[bool] = []
    limit = RequestLimit(2, 1)
    limit._under_way = Counted()
    user: Any = SimpleNamespace(get_id=lambda: "ann")
    limit.enter(user)()
    assert free == [False, False]
    assert not limit._under_way
