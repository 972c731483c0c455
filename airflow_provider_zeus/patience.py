"""Calls with a time limit, calls that are retried, and calls whose failure a training outlives."""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log

T = TypeVar("T")

log = guarded_log(__name__)


def bounded(call: Callable[[], T], most_s: float | None) -> T:
    """Return the result of ``call``; wait at most ``most_s`` seconds (None: without a limit).

    The call runs in a daemon thread, so signals are handled while it hangs, and it does not keep
    the process alive. A timeout does not stop it; its result is then dropped. If no thread can be
    started, it runs in this one.

    Raises the errors of ``call``, and TimeoutError.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(run,), name="zeus-call", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:
        return call()
    thread.join(most_s)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else the error refers to itself and keeps its frames alive
    if not result:
        raise TimeoutError(f"no answer for {most_s:g} s")
    return result[0]


@contextmanager
def outlived(what: str, *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """A model outlives an error in here: it is logged, once, with its reason. Also a decorator.

    Signals pass, since they are no ``Exception``.

    :param what: could not be done, such as "close the device".
    :param but: errors that are not of ours: they pass.
    """
    try:
        yield
    except but:
        raise
    except Exception as error:
        log.exception(
            "Zeus could not %s (%s). The training still counts.", what, type(error).__name__
        )


def retried(
    call: Callable[[], T],
    most_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> T:
    """Return the result of ``call``; retry after a temporary StoreError, for at most ``most_s``
    seconds.

    Raises StoreError: the last one, or the first one that is not temporary.

    :param clock: seconds, monotonic.
    :param chance: returns a random number from 0 to 1, for the length of a pause.
    """
    until_s = clock() + most_s
    for pause_s in pauses(chance):
        try:
            return call()
        except StoreError as error:
            if not error.passing or clock() + pause_s >= until_s:
                raise
        sleep(pause_s)
    raise AssertionError("pauses have no end")


def pauses(chance: Callable[[], float]) -> Iterator[float]:
    """Seconds between two tries: twice as long each time, up to 2 s, with random jitter
    between processes.
    """
    longest_s = 0.1
    while True:
        # Half of it by chance: processes that met at a lock would meet there again.
        yield longest_s * (1 + chance()) / 2
        longest_s = min(2 * longest_s, 2.0)
