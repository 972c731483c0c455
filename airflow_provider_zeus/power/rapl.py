"""Energy of a host's processors and their memory, by the counters that Linux shows under ``/sys/class/powercap``."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.optimizer.trial import DeviceInfo
from airflow_provider_zeus.power.none import cpu_model
from airflow_provider_zeus.power.polling import Polling

FOLDER = "/sys/class/powercap"  # ZEUS_POWERCAP names another one: Docker hides this from containers
EVERY_S = 10.0  # a counter of 65 kJ, the smallest there is, goes round in no less than a minute
MOST_W = 1000.0  # no processor draws more: a counter that would have had to was set back

_NO_LIMIT = "limits of processors are not set"
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")  # AMD's too; intel-rapl-mmio shows the same packages once more


class Domain(NamedTuple):
    """A counter: a processor package, or the memory behind one."""

    path: Path
    name: str
    range_j: float  # at which it begins anew


class RaplDevice:
    """The host's processors as :class:`~airflow_provider_zeus.power.device.Device`: everything that runs on them.

    :param max_power_w: MAXPOWER of Eq. 2 [W] where the processors do not tell theirs.
    :param folder: where the counters are; default ``ZEUS_POWERCAP``, else Linux's own.
    :param clock: monotonic [s].

    Raises DeviceError: there are no counters, or they may not be read; and what to do about it.
    """

    uuid = None

    def __init__(
        self,
        max_power_w: float | None = None,
        *,
        folder: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        domains = _domains(folder or Path(os.environ.get("ZEUS_POWERCAP") or FOLDER))
        packages = [domain for domain in domains if domain.name.startswith("package")]
        self.missing = {"limit_w": _NO_LIMIT}
        told_w = [_most_w(package.path) for package in packages]
        if None in told_w and max_power_w is None:
            self.missing["max_power_w"] = "the processors do not tell their highest power; set max_power_w"
        self.info = DeviceInfo(
            model=cpu_model(),
            count=len(packages),
            max_power_w=max_power_w if None in told_w else sum(filter(None, told_w)),
            energy_source="rapl",
        )
        self._clock = clock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._broken = ""  # why the sum is of no use any more
        self._energy_j = 0.0
        self._read_s = clock()
        self._seen_j = {domain: _counter_j(domain) for domain in domains}
        self._polling = Polling(self.energy_j, EVERY_S)

    def now_s(self) -> float:
        """Monotonic clock of this host [s]."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy [J] of all packages and their memory since this device was opened."""
        if os.getpid() != self._pid:
            self.missing["energy_j"] = "the counters are followed by the process that this one was forked from"
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

    def limit_range(self) -> None:
        """There are no limits."""

    def limit_w(self) -> None:
        """There is no limit."""

    def set_limit_w(self, limit_w: float) -> None:
        """Raises DeviceError: nothing is set on processors."""
        raise DeviceError(f"power limit = {limit_w:g} W: {_NO_LIMIT}. Use mode='measure'.")

    def restore_record(self) -> None:
        """Nothing to restore."""

    def on_step(self, samples: int) -> None:
        """Ignored: the clock is the host's."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Stop following the counters."""
        self._polling.stop()

    def _advance(self) -> None:
        """Add what was drawn since the last reading. Raises DeviceError where a counter does not tell."""
        now_s = self._clock()
        waited_s, self._read_s = now_s - self._read_s, now_s
        for domain, before_j in self._seen_j.items():
            self._seen_j[domain] = counter_j = _counter_j(domain)
            drawn_j = counter_j - before_j
            if drawn_j < 0:
                drawn_j += domain.range_j
            most_j = MOST_W * (waited_s + 1.0)
            if most_j > domain.range_j:
                raise DeviceError(f"{domain.path} was not read for {waited_s:.0f} s and may have begun anew unseen")
            if not 0 <= drawn_j <= most_j:
                raise DeviceError(f"{domain.path} went back: the processor slept, or its driver was loaded anew")
            self._energy_j += drawn_j


def _domains(folder: Path) -> list[Domain]:
    """Packages and memory, whether zones lie side by side, as in ``/sys/class``, or in one another."""
    try:
        seen = [zone for pattern in ("intel-rapl:*", "intel-rapl:*/intel-rapl:*") for zone in folder.glob(pattern)]
    except OSError as error:
        raise DeviceError(f"{folder} cannot be read: {error}") from error
    zones = sorted({zone.name: zone for zone in seen if _ZONE.fullmatch(zone.name)}.values(), key=lambda z: z.name)
    found = [Domain(zone, name, _joules(zone / "max_energy_range_uj")) for zone in zones if (name := _name(zone))]
    if not any(domain.name.startswith("package") for domain in found):
        raise DeviceError(
            f"{folder} shows no processor's energy: not an Intel or AMD processor, or a virtual machine or container "
            "that hides it"
        )
    return found


def _name(zone: Path) -> str | None:
    """Name of a package or of memory; None for what is part of a package, and for the whole platform."""
    try:
        name = (zone / "name").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return name if name.startswith("package") or name == "dram" else None


def _counter_j(domain: Domain) -> float:
    return _joules(domain.path / "energy_uj")


def _joules(path: Path) -> float:
    try:
        return int(path.read_text(encoding="ascii")) / 1e6
    except PermissionError as error:
        raise DeviceError(
            f"{path} is readable by root alone, as it is by default since Linux 5.10: let the workers read it "
            "(chmod a+r at boot), or run them as root"
        ) from error
    except (OSError, ValueError) as error:
        raise DeviceError(f"{path} cannot be read: {error}") from error


def _most_w(package: Path) -> float | None:
    """Highest power [W] that a package is built for, else the one that it is limited to in the long term."""
    for constraint in sorted(package.glob("constraint_*_name")):
        number = constraint.name.split("_")[1]
        for name in ("max_power_uw", "power_limit_uw"):
            try:
                if constraint.read_text(encoding="ascii").strip() == "long_term":
                    most_w = int((package / f"constraint_{number}_{name}").read_text(encoding="ascii")) / 1e6
                    if most_w > 0:
                        return most_w
            except (OSError, ValueError):
                continue
    return None
