"""A device: identity, clock, energy counter, power limit. One that has a clock alone; several GPUs used as one."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.trial import DeviceInfo


def default_state_dir() -> str:
    """Default folder of limit records, GPU locks and simulated devices.

    ``ZEUS_STATE_DIR``, else ``~/.local/state/zeus``, else, for a user without a writable home, ``zeus-<uid>`` in the
    folder for temporary files.
    """
    if chosen := os.environ.get("ZEUS_STATE_DIR"):
        return chosen
    folder = os.path.join(os.path.expanduser("~"), ".local", "state", "zeus")
    existing = folder
    while not os.path.exists(existing) and os.path.dirname(existing):
        existing = os.path.dirname(existing)
    if os.path.isabs(folder) and os.access(existing, os.W_OK | os.X_OK):
        return folder
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"zeus-{os.geteuid()}")  # noqa: S108  its owner is checked


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """Power limits that a device accepts [W]; ``step_w`` is the distance of the limits that are profiled."""

    min_w: float
    max_w: float
    step_w: float = 25.0

    def grid_w(self) -> tuple[float, ...]:
        """Limits of the grid [W], from the highest to the lowest."""
        count = int((self.max_w - self.min_w) / self.step_w + 1e-9) + 1
        return tuple(self.max_w - i * self.step_w for i in range(count))

    def check(self, limits_w: Iterable[float], model: str) -> None:
        """Raise JobSpecError where one of the user's limits [W] is out of range on this device model."""
        for limit_w in limits_w:
            if not self.min_w <= limit_w <= self.max_w:
                raise JobSpecError.of(
                    "ZeusJob.power_limits_w",
                    limit_w,
                    f"out of range on {model}",
                    f"use limits from {self.min_w:g} to {self.max_w:g} W",
                )


IDLE, POWER_CAP = 0x1, 0x4  # bits of ``Clocks.reasons``, as NVML has them


class Clocks(NamedTuple):
    """The clock of the multiprocessors, and what holds it back, at one moment; None: the driver does not tell."""

    sm_mhz: float | None
    max_mhz: float | None
    reasons: int | None  # why the clock is not higher: bits
    capped_s: float | None  # time for which the power limit held it back, since an arbitrary start


class Device:
    """One GPU, several GPUs used as one, or a substitute for them. By itself: a host's clock, no energy and no limit.

    A reading that is not available is ``None``, and ``missing`` has the reason. Calls never block for long. Setters
    raise :class:`~airflow_provider_zeus.errors.DeviceError` with the remedy when the device refuses.

    ``info``: model, count, MAXPOWER [W], energy source. ``uuid``: identifier of the device, those of several GPUs
    joined by commas; None where it has none. ``missing``: name of a reading (``energy_j``, ``limit_w``, ...) -> why it
    is None.

    :param no_limit: why there is no limit, for ``missing`` and errors.
    """

    uuid: str | None = None
    waited_s = 0.0  # for its driver, in all readings and settings so far [s of its clock]

    def __init__(self, info: DeviceInfo, no_limit: str = "") -> None:
        self.info = info
        self.missing: dict[str, str] = {"limit_w": no_limit} if no_limit else {}

    def now_s(self) -> float:
        """Clock for durations [s]: monotonic; virtual on a simulated device."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy counter [J] since an arbitrary start."""
        return None

    def limit_range(self) -> LimitRange | None:
        """Limits that may be set; None where none may."""
        return None

    def limit_w(self) -> float | None:
        """The power limit in force [W]."""
        return None

    @property
    def seen_limit_w(self) -> float | None:
        """The power limit [W] when it was last read or set."""
        return self.limit_w()

    def takes_s(self, method: str) -> float:
        """How long its driver takes for a method of this class [s]; 0: it has none."""
        return 0.0

    def busy(self) -> float | None:
        """Share of the last moments in which the GPU worked, 0 to 1."""
        return None

    def clocks(self) -> Clocks | None:
        """The clock and what holds it back; None where it is not known."""
        return None

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]. Raises DeviceError: no permission, out of range."""
        raise DeviceError(f"power limit = {limit_w:g} W: {self.missing['limit_w']}. Use mode='measure'.")

    def restore_record(self) -> list[dict[str, Any]] | None:
        """Plain JSON, of each GPU, from which the guardian restores the limit without this process; None: it cannot."""
        return None

    def on_step(self, samples: int) -> None:
        """Advance the clock of a simulated device by one optimizer step; real devices ignore it."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done. Called only where a measurement begins or ends."""

    def close(self) -> None:
        """Release what the device holds, at the end of the training."""


class NoneDevice(Device):
    """No source of energy: no energy and no limit; the batch size can still be tuned, on time alone.

    :param max_power_w: MAXPOWER of Eq. 2 [W], as given by the user.
    :param why: why energy is not measured, for the logs and the page.
    """

    def __init__(self, max_power_w: float | None = None, *, why: str = "") -> None:
        super().__init__(DeviceInfo(model=cpu_model(), max_power_w=max_power_w), "this device has no power limit")
        self.missing["energy_j"] = why or (
            "no source of energy on this host: train on an NVIDIA GPU, or use device='simulated:<gpu>/<load>' to try "
            "things out"
        )


class DeviceGroup(Device):
    """GPUs that train together on one host: energy and MAXPOWER are summed, time is the longest, the limit is the same.

    A reading that one GPU lacks is missing for the group: a partial sum would look like a complete one. Limits are set
    only where all GPUs have the same limit.

    :param parts: the devices, at least one.
    :param gpus: number of GPUs of the whole training, on all hosts: each trains its share of a step's samples.
    """

    def __init__(self, parts: Sequence[Device], gpus: int | None = None) -> None:
        self._parts, self._gpus = tuple(parts), gpus or len(parts)
        self._reasons: dict[str, str] = {}  # readings that only the group lacks -> why
        self._infos = [part.info for part in parts]
        self._info = self._summed_info()
        self._virtual = self._info.energy_source == "simulated"
        self._start_s = [part.now_s() for part in parts]
        self.limit_w()  # fills ``missing``

    @property
    def info(self) -> DeviceInfo:  # type: ignore[override]  # computed from the parts
        """Model, count and MAXPOWER [W] of all GPUs; the model changes where another training came to share one."""
        if self._infos != (infos := [part.info for part in self._parts]):
            self._infos = infos
            self._info = self._summed_info()
        return self._info

    @property
    def uuid(self) -> str | None:  # type: ignore[override]  # computed from the parts
        """UUIDs of all GPUs in their order, joined by commas; None where one has none."""
        uuids = [part.uuid for part in self._parts]
        return None if None in uuids else ",".join(map(str, uuids))

    @property
    def missing(self) -> dict[str, str]:  # type: ignore[override]  # computed from the parts
        """Name of a reading -> why it is None, from the first GPU that lacks it."""
        return {name: why for part in reversed(self._parts) for name, why in part.missing.items()} | self._reasons

    # ------------------------------------------------------------------ readings
    def now_s(self) -> float:
        """Clock of this host [s]; for simulated GPUs the longest time since the group was created."""
        if self._virtual:
            return max(part.now_s() - start_s for part, start_s in zip(self._parts, self._start_s, strict=True))
        return self._parts[0].now_s()

    def energy_j(self) -> float | None:
        """Sum of the counters [J]."""
        each = self.each_j()
        return None if each is None else sum(each)

    def each_j(self) -> tuple[float, ...] | None:
        """Counters [J] of the GPUs, in the order of ``uuid``; None where one cannot be read."""
        if self.info.energy_source is None:
            return None
        readings = [part.energy_j() for part in self._parts]
        known = tuple(reading for reading in readings if reading is not None)
        return known if len(known) == len(readings) else None

    def limit_range(self) -> LimitRange | None:
        """Limits that every GPU accepts [W]."""
        ranges = [each for each in (part.limit_range() for part in self._parts) if each is not None]
        if len(ranges) < len(self._parts):
            return None
        lowest, highest = max(each.min_w for each in ranges), min(each.max_w for each in ranges)
        return LimitRange(min_w=lowest, max_w=highest, step_w=ranges[0].step_w) if lowest < highest else None

    def limit_w(self) -> float | None:
        """The limit of every GPU [W]; None where they differ."""
        return self._common_w([part.limit_w() for part in self._parts])

    @property
    def seen_limit_w(self) -> float | None:
        """The limit of every GPU [W] when it was last read or set; None where they differ."""
        return self._common_w([part.seen_limit_w for part in self._parts])

    def takes_s(self, method: str) -> float:
        """How long all drivers take [s]: the GPUs are asked one after the other."""
        return sum(part.takes_s(method) for part in self._parts)

    @property
    def waited_s(self) -> float:  # type: ignore[override]  # computed from the parts
        """For all drivers so far [s]."""
        return sum(part.waited_s for part in self._parts)

    def _common_w(self, limits: Sequence[float | None]) -> float | None:
        self._reasons.pop("limit_w", None)
        known = [limit for limit in limits if limit is not None]
        if len(known) < len(limits):
            return None
        if len(set(known)) > 1:  # a difference within a driver's rounding counts too: one limit is given back to all
            listed = ", ".join(f"{limit:g}" for limit in known)
            self._reasons["limit_w"] = (
                f"the GPUs that train together have limits of {listed} W; give them the same limit to have it tuned"
            )
            return None
        return known[0]

    def busy(self) -> float | None:
        """Mean share of the GPUs in which they worked, 0 to 1."""
        known = [share for share in (part.busy() for part in self._parts) if share is not None]
        return sum(known) / len(known) if len(known) == len(self._parts) else None

    def clocks(self) -> Clocks | None:
        """The lowest clock of the GPUs, what holds back any of them, and for how long in all."""
        known = [clocks for clocks in (part.clocks() for part in self._parts) if clocks is not None]
        if len(known) < len(self._parts):
            return None
        columns: list[Any] = [None if None in column else column for column in zip(*known, strict=True)]
        sm_mhz, max_mhz, reasons, capped_s = columns
        return Clocks(
            sm_mhz=sm_mhz and min(sm_mhz),
            max_mhz=max_mhz and min(max_mhz),
            reasons=reasons and reduce(or_, reasons),
            capped_s=capped_s and sum(capped_s),
        )

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of every GPU [W]. Where one refuses, the others are reset, and DeviceError is raised."""
        before = [part.limit_w() for part in self._parts]
        for done, part in enumerate(self._parts):
            try:
                part.set_limit_w(limit_w)
            except DeviceError:
                for changed, found_w in zip(self._parts[:done], before, strict=False):
                    with contextlib.suppress(DeviceError):  # the guardian tries again
                        if found_w is not None:
                            changed.set_limit_w(found_w)
                raise

    def restore_record(self) -> list[dict[str, Any]] | None:
        """The records of all GPUs: each gets its own limit back."""
        records = [part.restore_record() for part in self._parts]
        return None if None in records else [one for each in records for one in each or ()]

    # ------------------------------------------------------------------ around a training
    def on_step(self, samples: int) -> None:
        """Advance each simulated GPU by its share of these samples."""
        if self._virtual:
            share = -(-samples // self._gpus)
            for part in self._parts:
                part.on_step(share)

    def synchronize(self) -> None:
        """Wait for the work on every GPU."""
        for part in self._parts:
            part.synchronize()

    def close(self) -> None:
        """Close every GPU."""
        for part in self._parts:
            part.close()

    def _summed_info(self) -> DeviceInfo:
        infos = self._infos
        powers, sources = [info.max_power_w for info in infos], {info.energy_source for info in infos}
        if len(sources) > 1 and None not in sources:
            self._reasons["energy_j"] = f"the GPUs measure in different ways ({', '.join(sorted(map(str, sources)))})"
        return DeviceInfo(
            model=" + ".join(dict.fromkeys(info.model for info in infos)),
            count=len(infos),
            max_power_w=None if None in powers else sum(power or 0.0 for power in powers),
            energy_source=sources.pop() if len(sources) == 1 else None,
        )


def cpu_model() -> str:
    """Model name of this host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(filter(None, names), platform.machine())
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
