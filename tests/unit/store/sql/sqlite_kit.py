"""The file of an SQLite store from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    """One statement by another client."""
    with closing(
        sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    ) as connection:
        return connection.execute(statement).fetchall()


def checkpoints(url: str) -> list[int]:
    """Numbers of the trials behind which a checkpoint lies."""
    return [
        int(str(n)) for (n,) in execute(url, "SELECT number FROM zeus_checkpoint ORDER BY number")
    ]
