"""What every command shares: Airflow's server context, errors as one message, the store, tables."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import difflib
import functools
import json
import logging
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from airflow_provider_zeus.errors import JobSpecError, ZeusError
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.visible import visible


def command(function: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Make a command of a function: its result is the exit status, a ZeusError is a message and status 1.

    Airflow looks into its metadata database for Connections only in server context, and writes the call to its audit
    log, as for commands of its own. Log lines go to stderr.
    """

    @functools.wraps(function)
    def run(args: Namespace) -> None:
        from airflow_provider_zeus.airflow_compat import action_cli, providers_configuration_loaded

        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        _log_to_stderr()
        try:
            with warnings.catch_warnings(action="ignore"):  # of libraries; Airflow 3.2 prints them to stdout
                status = action_cli(check_db=False)(providers_configuration_loaded(function))(args)
        except ZeusError as error:
            say(str(error), file=sys.stderr)
            status = 1
        except BrokenPipeError:  # of "| head"
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        if status:
            raise SystemExit(status)

    return run


def _log_to_stderr() -> None:
    """As Airflow does itself from 3.3 on, for commands with ``--output``."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


@contextmanager
def opened(args: Namespace) -> Iterator[Store]:
    """The store that the command's ``--conn-id`` names; no file is made. Raises StoreError."""
    from airflow_provider_zeus.store.open import open_store

    store = open_store(args.conn_id, create=False)
    try:
        yield store
    finally:
        store.close()


def known(store: Store, job_id: str) -> str:
    """The name of a job that is in the log. Raises JobSpecError naming those that are."""
    jobs = store.jobs()
    if job_id in jobs:
        return job_id
    near = difflib.get_close_matches(job_id, jobs, n=5, cutoff=0.5)
    if near:
        remedy = f"Did you mean {', '.join(near)}"
    elif jobs:
        more = f" and {len(jobs) - 10} more (airflow zeus jobs list)" if len(jobs) > 10 else ""
        remedy = f"The log has {', '.join(jobs[:10])}{more}"
    else:
        remedy = "The log has none yet: the first run of a job enters it"
    raise JobSpecError.of("JOB", job_id, f"no such job in {store.identity}", remedy)


def say(line: str, file: TextIO | None = None) -> None:
    """Print one line, to standard output by default. Names in it may come from a training: see :func:`visible`."""
    print(visible(line), file=file, flush=file is not None)


def confirmed(question: str) -> bool:
    """Whether a person says yes; no where there is none to ask."""
    try:
        return input(visible(question)).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def show(rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Print a table, a column for each key of its rows; ``empty`` where there are none."""
    from rich.text import Text

    from airflow_provider_zeus.airflow_compat import AirflowConsole, SimpleTable

    if not rows:
        say(empty)
        return
    table = SimpleTable(show_header=True)
    table.caption = None
    for name in rows[0]:
        figure = name in _FIGURES
        table.add_column(name, justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(str(value))) for value in row.values()))  # Text: "[red]" in a name is a name
    AirflowConsole().print(table)


def print_json(data: Any) -> None:
    """Print plain JSON; numbers stay numbers. In ASCII: a terminal obeys some of the other characters."""
    print(json.dumps(data, indent=2, allow_nan=False))


_FIGURES = (
    *("trial", "trials", "recurrences", "batch size", "epochs", "energy", "time", "cost", "limit", "seed"),
    *("regret [C*]", "energy, last 5", "time, last 5", "pays from run", "below target"),
)
