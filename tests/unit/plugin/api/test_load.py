"""Places of requests are counted under one lock, and freed whatever becomes of the request."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.plugin.api import load
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


def test_the_place_of_a_request_that_no_thread_takes_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the server shuts down no thread takes a job."""

    def refused(_: object) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    places = RequestLimit(1, 1)
    monkeypatch.setattr(load, "ANSWERS", places)
    monkeypatch.setattr(load, "_submit", refused)
    user: Any = SimpleNamespace(get_id=lambda: "ann")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            asyncio.run(load.work(user, lambda: None))
