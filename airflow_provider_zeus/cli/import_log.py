"""``airflow zeus import``: takes the JSON export of another log into the trial log."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
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
        taken = store.take_in(parts_of(_lines(file), skipped))
        for job_id, (new, held) in taken.items():
            say(f"{job_id}: {counted(new, 'trial')} imported" + f", {held} in the log already" * bool(held))
        if skipped.still_open:
            said = counted(skipped.still_open, "trial")
            say(f"{said} of the file left out: not closed. Export and import again once closed.")
        if skipped.fields:
            say(f"Fields of jobs that this version does not know, left out: {', '.join(sorted(skipped.fields))}.")
        imported = sum(new for new, _ in taken.values())
        say(f"{counted(imported, 'trial')} imported into {store.identity}.")


def _opened(path: str) -> int:
    """The descriptor of a file. Raises JobSpecError."""
    try:
        return open_plain(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise JobSpecError.of("FILE", path, f"cannot be read ({why})", "Name a plain file") from None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines, none of which takes more memory than a line may have. Raises JobSpecError."""
    try:
        while line := file.readline(MOST_LINE + 1):
            yield line
    except OSError as error:
        raise JobSpecError.of("FILE", file.name, f"cannot be read ({error.strerror})", "Try again") from None
