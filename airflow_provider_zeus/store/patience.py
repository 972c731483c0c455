"""How long one waits for what may not answer: a call with a bound, and a call that is tried again."""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from airflow_provider_zeus.errors import StoreError

_FIRST_S, _MOST_S = 0.1, 2.0  # pause after the first failure, and the longest one

T = TypeVar("T")


def bounded(call: Callable[[], T], most_s: float | None) -> T:
    """What ``call`` returns, waited for at most ``most_s`` seconds (None: for as long as it takes).

    It runs in a daemon thread, so that a signal is handled while it hangs, and it does not keep the process alive. It
    is not stopped: what it does when the wait is over, it does unseen. Where no thread can be started it runs here.

    Raises what ``call`` raises, and TimeoutError.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="zeus-call", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return call()
    thread.join(most_s)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else the error holds itself, and with it all that its frames hold
    if not result:
        raise TimeoutError(f"no answer for {most_s:g} s")
    return result[0]


def within(call: Callable[[str], T], most_s: float) -> Callable[[str], T]:
    """The same call of one text, with a bound; see :func:`bounded`."""
    return lambda text: bounded(lambda: call(text), most_s)


def retried(
    call: Callable[[], T],
    most_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> T:
    """What ``call`` returns, tried again after a StoreError that may pass, for ``most_s`` seconds.

    Raises StoreError: the last one, or the first one that does not pass.

    :param clock: seconds, monotonic.
    :param chance: a number from 0 to 1, by which pauses differ.
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
    """Seconds between two tries: twice as long each time, and different in each process that waits for the same."""
    longest_s = _FIRST_S
    while True:
        yield longest_s * (1 + chance()) / 2
        longest_s = min(2 * longest_s, _MOST_S)
