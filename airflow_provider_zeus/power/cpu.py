"""Energy of a host's processors and their memory, by the RAPL counters under
``/sys/class/powercap``.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.power.device import Device, cpu_model
from airflow_provider_zeus.power.meter import difference
from airflow_provider_zeus.power.polling import Polling, moves

EVERY_S = 10.0  # the smallest counter, 65 kJ, overflows in no less than a minute


class Domain(NamedTuple):
    """A counter: of a processor package, or of its memory."""

    path: Path
    name: str
    range_j: float  # without it an overflow would look like a counter that was reset


class RaplDevice(Device):
    """The host's processors as :class:`~airflow_provider_zeus.power.device.Device`: everything that
    runs on them.

    :param max_power_w: MAXPOWER of Eq. 2 [W] if the processors do not report theirs.
    :param folder: folder of the counters; default ``ZEUS_POWERCAP``, else Linux's own, which Docker
        hides from containers.
    :param clock: monotonic [s].

    Raises DeviceError with the remedy: there are no counters, or they may not be read.
    """

    def __init__(
        self,
        max_power_w: float | None = None,
        *,
        folder: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        domains = _domains(folder or Path(os.environ.get("ZEUS_POWERCAP") or "/sys/class/powercap"))
        # Memory is no processor: its counter must not raise their number.
        packages = [domain for domain in domains if domain.name.startswith("package")]
        reported_w = [_most_w(package.path) for package in packages]
        # A sum that lacks one package would be no maximum.
        if None not in reported_w:
            max_power_w = sum(filter(None, reported_w))
        info = DeviceInfo(
            model=cpu_model(), count=len(packages), max_power_w=max_power_w, energy_source="rapl"
        )
        super().__init__(info, "limits of processors are not set")
        if max_power_w is None:
            self.missing["max_power_w"] = (
                "the processors do not report their highest power; set max_power_w"
            )
        self._clock = clock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._broken = ""  # a sum with a hole would look like a measurement
        self._energy_j = 0.0
        self._read_s = clock()
        self._counters_j = {domain: _joules(domain.path / "energy_uj") for domain in domains}
        self._polling = Polling(self.energy_j, EVERY_S)

    def energy_j(self) -> float | None:
        """Energy [J] of all packages and their memory since this device was opened."""
        if os.getpid() != self._pid:
            self.missing["energy_j"] = (
                "the counters are read by the process that this one was forked from"
            )
            return None
        self._polling.start()
        with self._lock:
            try:
                self._advance()
            except DeviceError as error:
                self._broken = str(error)
            if self._broken:
                self.missing["energy_j"] = self._broken
                return None
            return self._energy_j

    def close(self) -> None:
        """Stop reading the counters."""
        self._polling.stop()

    def _advance(self) -> None:
        """Add the energy since the last reading. Raises DeviceError if a counter cannot be used."""
        now_s = self._clock()
        # A counter may rise by more in a longer wait: a fixed bound would take that for a reset.
        waited_s = now_s - self._read_s
        self._read_s = now_s
        # No processor draws more: a larger difference means that the counter was reset.
        most_w = 1000.0
        for domain, before_j in self._counters_j.items():
            counter_j = _joules(domain.path / "energy_uj")
            self._counters_j[domain] = counter_j
            drawn_j = counter_j - before_j
            if drawn_j < 0:  # an overflow, which comes some times an hour and loses nothing
                drawn_j += domain.range_j
            most_j = most_w * (waited_s + 1.0)
            if most_j > domain.range_j:  # so long a wait may hide a second overflow
                raise DeviceError(
                    f"{domain.path} was not read for {waited_s:.0f} s and may have overflowed"
                )
            if not 0 <= drawn_j <= most_j:
                raise DeviceError(
                    f"{domain.path} went back: the processor slept, or its driver was loaded again"
                )
            self._energy_j += drawn_j


def _domains(folder: Path) -> list[Domain]:
    """Counters of packages and memory; zones may be siblings, as in ``/sys/class``, or nested."""
    try:
        paths = [*folder.glob("intel-rapl:*"), *folder.glob("intel-rapl:*/intel-rapl:*")]
    except OSError as error:
        raise DeviceError(f"{folder} cannot be read: {error}") from error
    # AMD's have these names, too; intel-rapl-mmio has the same packages, which would count twice.
    own = r"intel-rapl:\d+(:\d+)?"
    zones = {path.name: path for path in paths if patterns.fullmatch(own, path.name)}
    domains = []
    for _, zone in sorted(zones.items()):
        with suppress(OSError, ValueError):
            name = (zone / "name").read_text(encoding="ascii").strip()
            # Cores are a part of their package, and psys contains it: both would count twice.
            if name.startswith("package") or name == "dram":
                domains.append(Domain(zone, name, _joules(zone / "max_energy_range_uj")))
    # Memory alone is a small part of a host's energy.
    if not any(domain.name.startswith("package") for domain in domains):
        raise DeviceError(
            f"{folder} shows no processor's energy: not an Intel or AMD processor, or a virtual "
            "machine or container that hides it"
        )
    return domains


def _joules(path: Path) -> float:
    try:
        return int(path.read_text(encoding="ascii")) / 1e6
    except PermissionError as error:
        raise DeviceError(
            f"{path} is readable by root alone, as it is by default since Linux 5.10: let the "
            "workers read it (chmod a+r at boot), or run them as root"
        ) from error
    except (OSError, ValueError) as error:
        raise DeviceError(f"{path} cannot be read: {error}") from error


def _most_w(package: Path) -> float | None:
    """Highest power [W] of a package, else its long-term limit; None if neither can be read."""
    for constraint in sorted(package.glob("constraint_*_name")):
        for name in ("max_power_uw", "power_limit_uw"):
            try:
                if constraint.read_text(encoding="ascii").strip() == "long_term":
                    power = constraint.with_name(constraint.name.replace("name", name))
                    most_w = int(power.read_text(encoding="ascii")) / 1e6
                    if most_w > 0:
                        return most_w
            except (OSError, ValueError):
                continue
    return None


def host_beside(gpu: Device) -> RaplDevice | None:
    """The counters of the host beside a real GPU; None if there are none that may be read, or no
    GPU.
    """
    if not (gpu.info.energy_source or "").startswith("nvml"):
        return None
    try:
        return RaplDevice()
    except DeviceError:
        return None


def open_rapl(max_power_w: float | None = None) -> RaplDevice:
    """The processors' counters.

    Raises DeviceError if they cannot be read, or stand still as on some hosts.
    """
    device = RaplDevice(max_power_w)
    if moves(device.energy_j):
        return device
    device.close()
    raise DeviceError("the processors' energy counters stand still")


def cpu_seconds() -> float:
    """CPU time [s] of this process, of its children that have ended, and, on Linux, of its living
    descendants.

    A child that ends during the reading may be missing from it; the next reading includes it.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The kernel adds up children only once they have ended.
    living_s = sum(map(_of_process, _children(os.getpid())))
    return time.process_time() + ended.ru_utime + ended.ru_stime + living_s


def host_seconds() -> float | None:
    """Processor time [s] of all processes of this host since it booted; None if the kernel does not
    tell it.
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _iowait, irq, softirq, *_ = (
                int(field) for field in file.readline().split()[1:]
            )
    except (OSError, ValueError):  # only Linux has this file: elsewhere no share can be told
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> set[int]:
    """A process and all processes that it started, as far as they live."""
    return {pid}.union(*map(descendants, _children(pid)))


def _of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # With cutime and cstime: of its children that have ended nothing else tells any more.
        ticks = sum(int(field) for field in fields[11:15])
    except (OSError, ValueError, IndexError):  # it has just ended: its parent counts it from now on
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(_of_process, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = " ".join((task / "children").read_text() for task in tasks)
        return [int(child) for child in children.split()]
    except (OSError, ValueError):
        # Not Linux, a kernel without this file, or a process that has ended: the rest still counts.
        return []


class RaplShareDevice(Device):
    """The share of the processors' energy that falls to this process and its descendants: an
    estimate.

    It is their share of the processor time that all processes of the host took between two
    readings.

    :param counters: of the whole host.
    :param task_s: processor time of this process and its descendants [s].
    :param host_s: of all processes [s].
    """

    def __init__(
        self,
        counters: Device,
        task_s: Callable[[], float] = cpu_seconds,
        host_s: Callable[[], float | None] = host_seconds,
    ) -> None:
        super().__init__(
            replace(counters.info, energy_source="rapl_share"), "limits of processors are not set"
        )
        self._counters = counters
        self._task_s = task_s
        self._host_s = host_s
        self._energy_j = 0.0
        self._since_j = counters.energy_j()
        self._since_task_s = self._task_s()
        self._since_host_s = self._host_s()

    def energy_j(self) -> float | None:
        """Estimate [J] since this device was opened."""
        now_j = self._counters.energy_j()
        # A child that has just ended may be missing from it once, and energy must not sink.
        task_s = max(self._since_task_s, self._task_s())
        host_s = self._host_s()
        drawn_j = difference(now_j, self._since_j)
        worked_s = difference(host_s, self._since_host_s)
        if drawn_j is None or worked_s is None:
            unread = "the processor time of the host cannot be read"
            self.missing["energy_j"] = self._counters.missing.get("energy_j", unread)
            return None
        if worked_s > 0:  # the kernel counts in 0.01 s: within that there is nothing to share by
            share = min((task_s - self._since_task_s) / worked_s, 1.0)
            self._energy_j += share * drawn_j
            # Together, so that no energy is shared out by the time of another stretch.
            self._since_j = now_j
            self._since_task_s = task_s
            self._since_host_s = host_s
        return self._energy_j

    def close(self) -> None:
        """Stop reading the counters."""
        self._counters.close()


class EstimateDevice(Device):
    """Energy as CPU time of this process and its descendants x ``cpu_watts``; an idle core counts
    nothing.

    :param cpu_watts: power of one busy core [W]: the processor's power divided by its cores.
    :param max_power_w: MAXPOWER of Eq. 2 [W]; default: every core that this process may use, busy.
    :param with_siblings: several processes train together: count all descendants of their parent.

    Raises JobSpecError: ``cpu_watts`` is not above 0.
    """

    def __init__(
        self, cpu_watts: float, max_power_w: float | None = None, *, with_siblings: bool = False
    ) -> None:
        if not 0 < cpu_watts < float("inf"):
            raise JobSpecError.of(
                "[zeus] cpu_watts", cpu_watts, "not above 0", "give the watts of one busy core"
            )
        cores = os.cpu_count() or 1
        # A batch system or a container may give it a part of the cores: all would be no maximum.
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        info = DeviceInfo(
            model=cpu_model(),
            max_power_w=max_power_w or cpu_watts * cores,
            energy_source="estimate",
        )
        super().__init__(info, "an estimate has no power limit")
        self._cpu_watts = cpu_watts
        self._root = os.getppid() if with_siblings else None
        self._seconds = 0.0

    def energy_j(self) -> float:
        """Estimate [J] since this process began.

        CPU time of a child may be counted late, never twice.
        """
        seconds = cpu_seconds() if self._root is None else _of_process(self._root)
        self._seconds = max(self._seconds, seconds)
        return self._seconds * self._cpu_watts
