"""Assigns each training of a worker one of its simulated GPUs,
as a device plugin does with real ones.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

GPUS = 2
_held: list[IO[str]] = []  # until this process ends


def take(worker: Path, wait_s: float = 30.0) -> Path:
    """Lock a GPU that no other process of this worker has; return its state folder.

    Raises TimeoutError: none free.
    """
    deadline = time.monotonic() + wait_s
    while True:
        for number in range(1, GPUS + 1):
            folder = worker / f"gpu-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "taken").open("a", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            _held.append(file)
            return folder
        if time.monotonic() > deadline:
            raise TimeoutError(f"none of the {GPUS} GPUs of {worker} came free in {wait_s:g} s")
        time.sleep(0.2)


def take_in_a_task() -> None:
    """Give the task of this process its own GPU; does nothing outside of a worker."""
    worker = os.environ.get("CLUSTER_STATE_DIR")
    if worker:
        os.environ["AIRFLOW__ZEUS__STATE_DIR"] = str(take(Path(worker)))
