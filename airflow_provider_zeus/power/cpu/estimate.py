"""Estimated energy of a training on CPUs: seconds of busy cores times the watts of one core, given by the user."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.power.device import LimitlessDevice
from airflow_provider_zeus.power.none import cpu_model


class EstimateDevice(LimitlessDevice):
    """Energy as CPU time of this process and its descendants x ``cpu_watts``; an idle core counts nothing.

    :param cpu_watts: power of one busy core [W]: the processor's power divided by its cores.
    :param max_power_w: MAXPOWER of Eq. 2 [W]; default: every core that this process may use, busy.
    :param with_siblings: several processes train together: count all descendants of their parent.

    Raises JobSpecError: ``cpu_watts`` is not above 0.
    """

    def __init__(self, cpu_watts: float, max_power_w: float | None = None, *, with_siblings: bool = False) -> None:
        if not 0 < cpu_watts < float("inf"):
            raise JobSpecError.of("[zeus] cpu_watts", cpu_watts, "not above 0", "give the watts of one busy core")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        info = DeviceInfo(model=cpu_model(), max_power_w=max_power_w or cpu_watts * cores, energy_source="estimate")
        super().__init__(info, "an estimate has no power limit")
        self._cpu_watts = cpu_watts
        self._root = os.getppid() if with_siblings else None
        self._seconds = 0.0

    def energy_j(self) -> float:
        """Estimate [J] since this process began. CPU time of a child may be counted late, never twice."""
        self._seconds = max(self._seconds, cpu_seconds() if self._root is None else _of_process(self._root))
        return self._seconds * self._cpu_watts


def cpu_seconds() -> float:
    """CPU time [s] of this process, of its children that have ended, and, on Linux, of its living descendants.

    A child that ends during the reading may be missing from it; the next reading includes it.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_of_process, _children(os.getpid())))


def _of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(int(field) for field in fields[11:15])  # utime and stime, of itself and of its ended children
    except (OSError, ValueError, IndexError):  # the process has just ended
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(_of_process, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for task in tasks for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except (OSError, ValueError):  # not Linux, a kernel without this file, or the process has just ended
        return []
