"""One demo at a time, and a clean end on every signal."""

from __future__ import annotations

import fcntl
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from demo.settings import STATE, DemoError


class Stopped(BaseException):
    """A signal asked the demo to end."""


def run_alone(what: str, demo: Callable[[], int]) -> int:
    """Run a demo as the only one of this checkout, ended by signals; returns the exit status."""
    from airflow_provider_zeus.errors import ZeusError

    try:
        with alone(), stopped_by_signals():
            return demo()
    except (DemoError, ZeusError) as error:
        print(f"\n{what} failed: {error}", file=sys.stderr, flush=True)
        return 1
    except Stopped:
        print("\nStopped.", flush=True)
        return 130


@contextmanager
def alone() -> Iterator[None]:
    """Allow one demo per checkout. Raises DemoError while another one runs."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "lock").open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoError(
                "another 'make demo' runs in this checkout: end it first (Ctrl-C there)."
            ) from None
        yield


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turn the first signal that ends a demo into :class:`Stopped`;
    later ones are ignored while the servers stop.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in ended_by:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    ended_by = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in ended_by}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
