"""How much of the api-server our pages may take: a few threads of their own, and a bound on the requests that wait.

Airflow serves all its pages with the same threads and the same pool of database connections. Our work takes neither
its threads nor more than a quarter of its connections: one of our threads uses one connection of Airflow's at most.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from importlib import import_module
from typing import TypeVar

from fastapi import HTTPException  # noqa: TID253 - loaded by the api-server alone

from airflow_provider_zeus.airflow_compat import BaseUser

T = TypeVar("T")

THREADS = 2  # Python computes in one thread at a time: more would only take turns with Airflow's more often
SHARE = 0.5  # of its time a thread of ours computes, so that Airflow's threads get their turn ...
BURST_S = 2.0  # ... once it was busy for about so long: who opens one page waits for no rest
RETRY_S = 2  # what a refused browser waits
BUSY = "Airflow is busy with other Zeus pages. Try again in a minute."


class Bound:
    """Counts what is under way, of all users and of each.

    Nobody may have more than half of what the others leave free: a few who ask for all they can get never fill it.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each, self._lock = most, most_each, threading.Lock()
        self._under_way: Counter[str] = Counter()

    def enter(self, user: BaseUser) -> Callable[[], None]:
        """Count one more; the callable counts it out. Raises HTTPException 429 where that is too many."""
        name = user.get_id()
        with self._lock:
            own, free = self._under_way[name], self._most - self._under_way.total()
            if own >= self._most_each or 2 * own >= free:
                raise HTTPException(429, BUSY, headers={"Retry-After": str(RETRY_S)})
            self._under_way[name] += 1
        return lambda: self._leave(name)

    def _leave(self, name: str) -> None:
        with self._lock:
            self._under_way[name] -= 1
            self._under_way += Counter()  # forgets those who have nothing under way


ANSWERS = Bound(8, 4)  # in a thread or waiting for one
EXPORTS = Bound(4, 2)  # files that are being sent


def threads_for(pool_size: int, max_overflow: int) -> int:
    """How many threads of ours take a quarter of Airflow's database connections at most; one at least.

    :param pool_size: ``[database] sql_alchemy_pool_size``; 0: without a bound.
    :param max_overflow: ``[database] sql_alchemy_max_overflow``; -1: without a bound.
    """
    if pool_size == 0 or max_overflow < 0:
        return THREADS
    return max(1, min(THREADS, (pool_size + max_overflow) // 4))


def _configured() -> int:
    from airflow.sdk import conf

    size = conf.getint("database", "sql_alchemy_pool_size", fallback=5)
    return threads_for(size, conf.getint("database", "sql_alchemy_max_overflow", fallback=10))


_threads = ThreadPoolExecutor(_configured(), thread_name_prefix="zeus-page")  # it starts them when there is work


async def work(user: BaseUser, job: Callable[[], T]) -> T:
    """What ``job`` returns, from a thread of ours. Raises what it raises, and HTTPException 429.

    It counts until it has ended, also where the browser left before.
    """
    leave = ANSWERS.enter(user)
    try:
        future = _submitted(job)
    except BaseException:
        leave()
        raise
    future.add_done_callback(lambda _: leave())
    return await asyncio.wrap_future(future)


async def each(pieces: Iterator[T]) -> AsyncIterator[T]:
    """The pieces, each made in a thread of ours when it is asked for. Count the whole of them in :data:`EXPORTS`."""
    while (piece := await asyncio.wrap_future(_submitted(lambda: next(pieces, None)))) is not None:
        yield piece


@cache
def warm() -> None:
    """Load, once in each process, what the first charts would wait for."""
    _threads.submit(import_module, "numpy")  # where it cannot be loaded, the charts say so


def _submitted(job: Callable[[], T]) -> Future[T]:
    return _threads.submit(copy_context().run, _rested, job)


_used = threading.local()


def _rested(job: Callable[[], T]) -> T:
    """What ``job`` returns, begun when this thread has rested from what it computed before."""
    until_s: float = getattr(_used, "until_s", 0.0)
    time.sleep(max(0.0, until_s - time.monotonic()))
    began_s = time.thread_time()
    until_s = max(until_s, time.monotonic() - BURST_S)
    try:
        return job()
    finally:
        _used.until_s = until_s + (time.thread_time() - began_s) / SHARE
