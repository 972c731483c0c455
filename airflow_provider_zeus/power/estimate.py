"""Energy of a training on CPUs, estimated: seconds of busy cores times the watts that the user states for one."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.optimizer.trial import DeviceInfo
from airflow_provider_zeus.power.none import cpu_model

_NO_LIMIT = "an estimate has no power limit"


class EstimateDevice:
    """CPU time of this process and all below it x ``cpu_watts``: energy for what a training computes, nothing idle.

    :param cpu_watts: what one busy core draws [W]: the processor's power divided by its cores.
    :param max_power_w: MAXPOWER of Eq. 2 [W]; default: every core that this process may use, busy.
    :param with_siblings: several processes train together: count all below the one that started them, too.

    Raises JobSpecError: ``cpu_watts`` is not above 0.
    """

    uuid = None

    def __init__(self, cpu_watts: float, max_power_w: float | None = None, *, with_siblings: bool = False) -> None:
        if not 0 < cpu_watts < float("inf"):
            raise JobSpecError.of("[zeus] cpu_watts", cpu_watts, "not above 0", "give the watts of one busy core")
        self._cpu_watts = cpu_watts
        self._root = os.getppid() if with_siblings else None
        self._seconds = 0.0
        self.info = DeviceInfo(
            model=cpu_model(), max_power_w=max_power_w or cpu_watts * _cores(), energy_source="estimate"
        )
        self.missing = {"limit_w": _NO_LIMIT}

    def now_s(self) -> float:
        """Monotonic clock of this host [s]."""
        return time.perf_counter()

    def energy_j(self) -> float:
        """Estimate [J] since this process began. What a child used comes in late, never twice."""
        self._seconds = max(self._seconds, cpu_seconds() if self._root is None else _of_process(self._root))
        return self._seconds * self._cpu_watts

    def limit_range(self) -> None:
        """There are no limits."""

    def limit_w(self) -> None:
        """There is no limit."""

    def set_limit_w(self, limit_w: float) -> None:
        """Raises DeviceError: there is nothing to set."""
        raise DeviceError(f"power limit = {limit_w:g} W: {_NO_LIMIT}. Use mode='measure'.")

    def restore_record(self) -> None:
        """Nothing to restore."""

    def on_step(self, samples: int) -> None:
        """Ignored: the clock is the host's."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Nothing is held."""


def cpu_seconds() -> float:
    """CPU time [s] of this process, of its children that have ended, and, on Linux, of those that live.

    A child that ends while this is read may be left out once: the next reading has it.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_of_process, _children(os.getpid())))


def _of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(int(field) for field in fields[11:15])  # utime, stime, and both of its ended children
    except (OSError, ValueError, IndexError):  # it has just ended
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(_of_process, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for task in tasks for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except (OSError, ValueError):  # not Linux, a kernel without this file, or the process has just ended
        return []


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
