"""Limits the pages' share of the api-server: a few threads of their own, and a limit on waiting
requests.

Airflow serves all its pages with one pool of threads and one pool of database connections. The
pages of Zeus use none of its threads and at most a quarter of its connections: each of their own
threads holds at most one.
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

from fastapi import HTTPException  # noqa: TID253 - loaded by the api-server alone

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.patience import T

THREADS = 2  # with more, Airflow's threads would get a smaller share of Python's global lock
SHARE = 0.5  # a thread computes so much of its time and leaves the rest to Airflow's pages


class RequestLimit:
    """Limits the requests under way: ``most`` in all, ``most_each`` for each user.

    No user may hold more than half of the places that the others leave free, so a few users cannot
    take all of them.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each, self._lock = most, most_each, threading.Lock()
        self._under_way: Counter[str] = Counter()

    def enter(self, user: BaseUser) -> Callable[[], None]:
        """Take a place; call the result to free it.

        Raises HTTPException 429 if none is free for this user.
        """
        name = user.get_id()
        with self._lock:
            # Both counts under one lock: two requests at once must not take one place.
            own = self._under_way[name]
            free = self._most - self._under_way.total()
            if own >= self._most_each or 2 * own >= free:
                busy = "Airflow is busy with other Zeus pages. Try again in a minute."
                raise HTTPException(429, busy, headers={"Retry-After": "2"})
            self._under_way[name] += 1

        def leave() -> None:
            with self._lock:
                self._under_way[name] -= 1
                self._under_way += Counter()  # drops users without a request, who would pile up

        return leave


ANSWERS = RequestLimit(8, 4)  # one reader must not take all threads from the others
EXPORTS = RequestLimit(4, 2)  # a file is sent for minutes, and needs no thread


def threads_for(pool_size: int, max_overflow: int) -> int:
    """Number of threads that use at most a quarter of Airflow's database connections; at least one.

    :param pool_size: ``[database] sql_alchemy_pool_size``; 0: unlimited.
    :param max_overflow: ``[database] sql_alchemy_max_overflow``; -1: unlimited.
    """
    # Airflow limits nothing here, so the threads alone do.
    if pool_size == 0 or max_overflow < 0:
        return THREADS
    return max(1, min(THREADS, (pool_size + max_overflow) // 4))


def _executor() -> ThreadPoolExecutor:
    """The pages' threads.

    They start with the first task, not at import: a server may fork its workers after it.
    """
    from airflow.sdk import conf

    size = conf.getint("database", "sql_alchemy_pool_size", fallback=5)
    overflow = conf.getint("database", "sql_alchemy_max_overflow", fallback=10)
    return ThreadPoolExecutor(threads_for(size, overflow), thread_name_prefix="zeus-page")


_threads = _executor()


async def work(user: BaseUser, job: Callable[[], T]) -> T:
    """Run ``job`` in a thread of the pages and return its result.

    Raises its errors, and HTTPException 429.

    Its place is freed when it has ended, even if the browser has closed the connection before.
    """
    leave = ANSWERS.enter(user)
    try:
        # Submitting may fail while the server shuts down: the place must not stay taken.
        future = _submit(job)
    except BaseException:
        leave()
        raise
    future.add_done_callback(lambda _: leave())
    return await asyncio.wrap_future(future)


async def each(chunks: Iterator[T]) -> AsyncIterator[T]:
    """The chunks, each made in a thread of the pages when it is needed.

    The caller holds a place in :data:`EXPORTS`.
    """
    # None ends it: a Future cannot hold a StopIteration.
    while (chunk := await asyncio.wrap_future(_submit(lambda: next(chunks, None)))) is not None:
        yield chunk


@cache
def warm() -> None:
    """Import, once per process, numpy, which the first charts would wait for."""
    _threads.submit(import_module, "numpy")  # errors are ignored: the charts report them


_busy = threading.local()


def _submit(job: Callable[[], T]) -> Future[T]:
    """Run ``job`` in a thread of the pages, after that thread has slept for its earlier computing
    (:data:`SHARE`).
    """

    def run() -> T:
        until_s: float = getattr(_busy, "until_s", 0.0)
        time.sleep(max(0.0, until_s - time.monotonic()))
        start_s = time.thread_time()
        # A burst of 2 s: a single page is never slowed down.
        until_s = max(until_s, time.monotonic() - 2.0)
        try:
            return job()
        finally:
            _busy.until_s = until_s + (time.thread_time() - start_s) / SHARE

    # A thread does not inherit the context variables of the request by itself.
    return _threads.submit(copy_context().run, run)
