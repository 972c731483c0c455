"""Independent work on all cores, with a bar while it lasts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def on_all_cores(work: Callable[[T], R], parts: Sequence[T], jobs: int | None = None) -> Iterator[R]:
    """What ``work`` makes of each part, in the order of the parts, on ``jobs`` processes (default: every core).

    One process is this one. Others begin anew: a fork would take over the locks, threads and signal handlers of
    whatever ran here before, and may hang on them.
    """
    processes = min(jobs or os.cpu_count() or 1, len(parts))
    if processes <= 1:
        yield from progress(map(work, parts), len(parts))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from progress(pool.map(work, parts), len(parts))
        except BaseException:  # interrupted: what has not begun is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def progress(items: Iterable[T], total: int) -> Iterator[T]:
    """The items; meanwhile a bar on a terminal's standard error."""
    show = sys.stderr.isatty()
    start = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if show:
            passed = time.monotonic() - start
            bar = ("#" * (30 * done // total)).ljust(30)
            end = "\n" if done == total else ""
            left = passed / done * (total - done)
            sys.stderr.write(f"\r[{bar}] {done}/{total}  {passed:.0f} s, {left:.0f} s left  {end}")
            sys.stderr.flush()
