"""What the commands share: their options, how they end,
and what they refuse before anything is computed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_zeus.errors import JobSpecError, ZeusError
from benchmarks.simulation.traces import Traces


def positive(text: str) -> int:
    """A number of the command line above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def named(text: str) -> tuple[str, int]:
    """``bike=60`` of the command line."""
    name, _, number = text.partition("=")
    try:
        return name, positive(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=N") from None


_MANY: dict[str, Any] = {"nargs": "+", "default": []}
_DATABASES = ["sqlite", "postgresql"]
_OF_SERIES = "of a series' trainings, as bike=60; default: the most that any of them needed"
OPTIONS: dict[str, dict[str, Any]] = {
    "--traces": {"type": Path, "help": "default: ZEUS_TRACES"},
    "--gpus": {**_MANY, "help": "default: every GPU in the folder"},
    "--workloads": {**_MANY, "help": "default: every workload in the folder"},
    "--every": {
        "type": positive,
        "default": 1,
        "metavar": "N",
        "help": "every N-th pair of the folder, or day, alone",
    },
    "--series": {
        "type": Path,
        "help": "folder of retraining series; default: the weather example's alone",
    },
    "--max-epochs": {**_MANY, "type": named, "metavar": "NAME=N", "help": _OF_SERIES},
    "--seeds": {"type": positive},
    "--report": {"type": Path, "help": "write the figures there, as JSON"},
    "--jobs": {"type": int, "help": "processes; default: one per core"},
    "--out": {"type": Path},
    "--signals": {"type": Path, "required": True, "help": "folder of hourly series"},
    "--bike": {"type": Path, "help": "ISLP's file Bikeshare.csv (pip download --no-deps ISLP)"},
    "--backends": {"nargs": "+", "default": _DATABASES, "choices": _DATABASES},
}
# of a benchmark that replays the pairs of a folder
SELECTION = "--traces --gpus --workloads --seeds --jobs --out"


Option = tuple[str, dict[str, Any]]


def option(name: str, **how: Any) -> Option:
    """An option of one command alone."""
    return name, how


def command(
    options: str = "", *more: Option, **defaults: Any
) -> Callable[[Callable[[argparse.Namespace], int | None]], Callable[..., int]]:
    """A command: takes the words of its command line;
    ends with 2 and one line where what it was given is wrong.

    The last thing in its module, whose text is its help: where the module is run (``python -m
    benchmarks.name``), so is the command. ``args.began_s`` is for :func:`took`.

    :param options: those of ``OPTIONS`` that it has; ``more``: its own.
    :param defaults: of the options, where they have no other.
    """

    def decorated(work: Callable[[argparse.Namespace], int | None]) -> Callable[..., int]:
        @wraps(work)
        def main(arguments: Sequence[str] | None = None) -> int:
            doc = work.__globals__["__doc__"]
            parser = argparse.ArgumentParser(
                description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
            )
            for name, how in (*((name, OPTIONS[name]) for name in options.split()), *more):
                parser.add_argument(name, **how)
            parser.set_defaults(**defaults)
            if "--traces" in options and (folder := os.environ.get("ZEUS_TRACES")):
                parser.set_defaults(traces=Path(folder))
            try:
                return (
                    work(parser.parse_args(arguments, argparse.Namespace(began_s=time.monotonic())))
                    or 0
                )
            except ZeusError as error:
                print(error, file=sys.stderr)
                return 2

        if work.__module__ == "__main__":  # run as ``python -m``
            raise SystemExit(main())
        return main

    return decorated


def took(args: argparse.Namespace) -> str:
    """How long a command has run."""
    return f"{time.monotonic() - args.began_s:.0f} s"


def needs(module: str) -> None:
    """Raises JobSpecError where a development dependency is not installed,
    before anything is computed.
    """
    if importlib.util.find_spec(module) is None:
        raise JobSpecError.of("installed", module, "is not there", "pip install -e '.[dev]'")


def chosen_traces(args: argparse.Namespace) -> Traces:
    """The folder of ``--traces``. Raises JobSpecError where none is named."""
    if args.traces is None:
        remedy = "Give --traces DIR or set ZEUS_TRACES to the folder of summary_train.csv"
        raise JobSpecError.of("traces", None, "no folder is named", remedy)
    return Traces(args.traces)


T = TypeVar("T")
R = TypeVar("R")


def on_all_cores(
    work: Callable[[T], R], parts: Sequence[T], jobs: int | None = None
) -> Iterator[R]:
    """What ``work`` makes of each part, in the order of the parts,
    on ``jobs`` processes (default: every core).

    One process is this one. Others begin anew: a fork would take over the locks, threads and signal
    handlers of whatever ran here before, and may hang on them.
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
