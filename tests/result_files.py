"""The result file of a training, as a test reads it."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_zeus.training.protocol.events import ResultLine, read_lines


def read_result(path: Path) -> list[ResultLine]:
    """Its lines, without an incomplete last one."""
    with path.open("rb") as file:
        return list(read_lines(file))
