"""Shared by all commands: Airflow's server context, error messages, the store, tables and their
cells.
"""

# Some of Airflow's functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import difflib
import functools
import getpass
import json
import logging
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from airflow_provider_zeus.errors import (
    ConnectionLookupError,
    DamagedLogError,
    JobSpecError,
    ZeusError,
)
from airflow_provider_zeus.patience import T
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.units import counted

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


MIGRATE = "run 'airflow db migrate' (or 'airflow standalone', which does so)"


def command(function: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Make a command of a function that returns the exit status.

    A ZeusError becomes a message and status 1.

    The command runs in Airflow's server context: only there does Airflow read Connections from its
    metadata database. Airflow writes the call to its audit log, as it does for its own commands.
    Log lines go to stderr.
    """

    @functools.wraps(function)
    def run(args: Namespace) -> None:
        from airflow_provider_zeus.airflow_compat import action_cli, providers_configuration_loaded

        # only there does Airflow look Connections up in its database
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        # A log line among JSON would spoil it. Airflow 3.3 does this too, for --output alone.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
                handler.setStream(sys.stderr)
        try:
            # Airflow 3.2 prints those of libraries to standard output, where JSON may stand.
            with warnings.catch_warnings(action="ignore"):
                status = action_cli(check_db=False)(providers_configuration_loaded(function))(args)
        except ZeusError as error:
            say(message_of(error), file=sys.stderr)
            status = 1
        except BrokenPipeError:  # the reader has seen enough, as "| head"
            # or Python prints an error as it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        if status:
            raise SystemExit(status)

    return run


@contextmanager
def no_log() -> Iterator[None]:
    """Nothing is logged meanwhile."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def message_of(error: ZeusError) -> str:
    """The text of an error.

    If Airflow has no database yet in which a Connection is looked up, that is the cause.
    """
    # Airflow's own message names a table, which tells a user nothing.
    if isinstance(error, ConnectionLookupError):
        problem = not_migrated()
        if problem is not None:
            return f"{problem}: {MIGRATE}."
    return str(error)


def not_migrated() -> str | None:
    """Why Airflow's metadata database cannot be used yet; None if it can."""
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_zeus.airflow_compat import check_migrations

    # It logs that it waits for migrations, which nobody does here.
    logging.getLogger(check_migrations.__module__).setLevel(logging.WARNING)
    try:
        # It asks once a second: one look is enough.
        check_migrations(timeout=1)
    except TimeoutError:
        return "Airflow's metadata database lacks the tables of this version of Airflow"
    except (SQLAlchemyError, OSError) as error:
        return f"Airflow's metadata database cannot be reached ({type(error).__name__})"
    return None


def opened(args: Namespace) -> AbstractContextManager[Store]:
    """The store that ``--conn-id`` names, closed at the end. Creates no file. Raises StoreError."""
    from airflow_provider_zeus.store.open import open_store

    return closing(open_store(args.conn_id, create=False))


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Send standard output of this process to stderr: that of users' code, and of Airflow's own
    logger.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    # the descriptor, too: libraries in C write past sys.stdout
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def drop_output() -> None:
    """Drop the output of a forked process, since no one reads it and it may be endless."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def of_all_jobs(
    store: Store, of: Callable[[str], T], jobs: Sequence[str] | None = None
) -> tuple[dict[str, T], int]:
    """(Result of ``of`` by job, exit status): a job whose log is damaged is named and left out,
    with status 1.

    :param jobs: default: all that the log has.
    """
    if jobs is None:
        jobs = store.jobs()
    results: dict[str, T] = {}
    status = 0
    for job_id in jobs:
        try:
            results[job_id] = of(job_id)
        except DamagedLogError as error:
            say(f"{job_id} is left out: {error}", file=sys.stderr)
            status = 1
    return results, status


def known(store: Store, name: str) -> str:
    """The name of a job, checked against the log. The id of a DAG stands for its job if it has one.

    Raises JobSpecError, which names the jobs of the DAG, or suggests names that are in the log.
    """
    jobs = store.jobs()
    if name in jobs:
        return name
    of_dag = store.jobs(name)
    if len(of_dag) == 1:
        return of_dag[0]
    if of_dag:
        problem = f"this DAG has {counted(len(of_dag), 'job')}"
        raise JobSpecError.of("JOB", name, problem, f"Name one of them: {', '.join(of_dag)}")
    # a name with a slip is more likely than a job that is missing
    near = difflib.get_close_matches(name, jobs, n=5, cutoff=0.5)
    if near:
        remedy = f"Did you mean {', '.join(near)}"
    elif jobs:
        remedy = f"The log has {', '.join(jobs[:10])}"
        if len(jobs) > 10:
            remedy += f" and {len(jobs) - 10} more (airflow zeus jobs list)"
    else:
        remedy = "The log has none yet: the first run of a job adds it"
    raise JobSpecError.of("JOB", name, f"no such job in {store.identity}", remedy)


def os_user() -> str:
    """Name of the operating system's user who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"user {os.getuid()}"


def say(line: str, file: TextIO | None = None) -> None:
    """Print one line, by default to standard output. :func:`visible` escapes names that come
    from a training.
    """
    print(visible(line), file=file, flush=file is not None)


def note(line: str, *, plain: bool) -> None:
    """Print a line beside a table; to standard error if other programs read the table."""
    say(line, file=sys.stderr if plain else None)


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether the user agrees, by ``--yes`` or on the terminal; says so if not."""
    if yes:
        return True
    try:
        # A name in the question may hold control characters.
        agrees = input(visible(question)).strip().lower() in ("y", "yes")
    # Without a terminal nobody can agree.
    except EOFError:
        print()
        agrees = False
    if not agrees:
        say("Nothing was changed.")
    return agrees


def show(rows: Sequence[Mapping[str, Any]], *, empty: str, plain: bool = False) -> None:
    """Print a table with a column for each key of its rows, or the line ``empty`` if there are no
    rows.

    :param plain: without lines, for other programs to read; then ``empty`` goes to standard error.
    """
    if not rows:
        note(empty, plain=plain)
        return
    # without Rich, whose lines break at the width of the terminal
    if plain:
        from tabulate import tabulate

        cells = [[visible(str(value)) for value in row.values()] for row in rows]
        print(tabulate(cells, headers=list(rows[0]), tablefmt="plain", disable_numparse=True))
        return
    from rich.text import Text

    from airflow_provider_zeus.airflow_compat import AirflowConsole, SimpleTable

    table = SimpleTable(show_header=True)
    # Airflow's table would end with an empty line.
    table.caption = None
    # Figures stand right-aligned, so that digits of one size are above each other.
    figures = ("attempt", "runs", "batch size", "epochs", "energy", "time", "limit")
    for name in rows[0]:
        if name in figures:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        # As Text, or Rich would take brackets in a name for markup, and drop them.
        table.add_row(*(Text(visible(str(value))) for value in row.values()))
    AirflowConsole().print(table)


def or_dash(value: float | None, text: Callable[[float], str]) -> str:
    """A figure in a cell of a table; "-" if it is not known. ``text`` writes it."""
    return "-" if value is None else text(value)


def number_text(value: float | None, unit: str = "") -> str:
    """A number in such a cell, with at most one decimal."""
    return or_dash(value, lambda number: f"{number:.1f}".removesuffix(".0") + unit)


def print_data(data: Any, output: str) -> bool:
    """Print data if ``output`` is ``json`` or ``yaml``; whether it is.

    Text is ASCII, as in :func:`print_json`.
    """
    if output == "json":
        print_json(data)
    elif output == "yaml":
        import yaml

        # as JSON has them: YAML would write the classes of tuples and enums
        plain = json.loads(json.dumps(data, allow_nan=False))
        print(yaml.safe_dump(plain, sort_keys=False, width=10**6), end="")
    return output in ("json", "yaml")


def print_json(data: Any) -> None:
    """Print JSON in ASCII: other characters may be control sequences for a terminal."""
    print(json.dumps(data, indent=2, allow_nan=False))
