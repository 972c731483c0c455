"""``airflow zeus import``: takes the JSON export of another log into the trial log."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from airflow_provider_zeus.cli.export_lines import MOST_LINE, Skipped, parts_of
from airflow_provider_zeus.cli.shell import command, opened, say
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.units import counted
from airflow_provider_zeus.untrusted_files import open_plain


@command
def import_(args: Namespace) -> None:
    """Take the trials of a file into the log. Writes nothing unless the whole file is good."""
    skipped = Skipped()
    with opened(args) as store, os.fdopen(_opened(args.file), "rb") as file:
        imported = 0
        # one transaction: a value that is refused leaves the log as it was
        for job_id, (new, old) in store.take_in(parts_of(_lines(file), skipped)).items():
            imported += new
            text = f"{job_id}: {counted(new, 'attempt')} imported"
            if old:
                text += f", {old} in the log already"
            say(text)
        if skipped.still_open:
            still_open = counted(skipped.still_open, "attempt")
            say(
                f"{still_open} of the file left out: not closed. Export and import again once "
                "closed."
            )
        if skipped.fields:
            names = ", ".join(sorted(skipped.fields))
            say(f"Fields of jobs that this version does not know, left out: {names}.")
        say(f"{counted(imported, 'attempt')} imported into {store.identity}.")


def _opened(path: str) -> int:
    """The descriptor of a file. Raises JobSpecError."""
    try:
        return open_plain(path)
    except OSError as error:
        why = error.strerror
    except ValueError as error:
        why = str(error)
    raise JobSpecError.of("FILE", path, f"cannot be read ({why})", "Name a plain file")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines, none of which takes more memory than a line may have. Raises JobSpecError."""
    try:
        # One byte more than a line may have, so that a longer one is told and not cut.
        yield from iter(partial(file.readline, MOST_LINE + 1), b"")
    except OSError as error:
        raise JobSpecError.of(
            "FILE", file.name, f"cannot be read ({error.strerror})", "Try again"
        ) from None
