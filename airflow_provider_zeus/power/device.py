"""A device: identity, clock, energy counter, power limit.

One that has a clock alone; several GPUs used as one.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from operator import or_
from statistics import fmean
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.groups import of_all, whole
from airflow_provider_zeus.model.trial import DeviceInfo


def default_state_dir() -> str:
    """Default folder of limit records, GPU locks and simulated devices.

    ``ZEUS_STATE_DIR``, else ``~/.local/state/zeus``, else, for a user without a writable home,
    ``zeus-<uid>`` in the folder for temporary files.
    """
    chosen = os.environ.get("ZEUS_STATE_DIR")
    if chosen:
        return chosen
    folder = os.path.join(os.path.expanduser("~"), ".local", "state", "zeus")
    # The folder may not exist yet: the nearest parent that does decides whether it can be made.
    existing = folder
    while not os.path.exists(existing) and os.path.dirname(existing):
        existing = os.path.dirname(existing)
    if os.path.isabs(folder) and os.access(existing, os.W_OK | os.X_OK):
        return folder
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  the folder's owner is checked
    return os.path.join(temporary, f"zeus-{os.geteuid()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """Power limits that a device accepts [W]; ``step_w`` is the distance of the limits that are
    profiled.
    """

    min_w: float
    max_w: float
    step_w: float = 25.0

    def grid_w(self) -> tuple[float, ...]:
        """Limits of the grid [W], from the highest to the lowest."""
        # Rounding must not lose the lowest limit.
        count = int((self.max_w - self.min_w) / self.step_w + 1e-9) + 1
        return tuple(self.max_w - i * self.step_w for i in range(count))

    def check(self, limits_w: Iterable[float], model: str) -> None:
        """Raise JobSpecError if one of the user's limits [W] is out of this device's range."""
        for limit_w in limits_w:
            if not self.min_w <= limit_w <= self.max_w:
                raise JobSpecError.of(
                    "ZeusJob.power_limits_w",
                    limit_w,
                    f"out of range on {model}",
                    f"use limits from {self.min_w:g} to {self.max_w:g} W",
                )


# NVML's own bits, so that a reason that is not named here still counts as holding the clock back.
IDLE = 0x1
POWER_CAP = 0x4


class Clocks(NamedTuple):
    """The clock of the multiprocessors, and the reasons that hold it back, at one moment; None: the
    driver does not tell.
    """

    sm_mhz: float | None = None
    max_mhz: float | None = None
    reasons: int | None = None  # several may hold the clock back at once, so they are bits
    # Since an arbitrary start: only the difference of two readings says how long it was capped.
    capped_s: float | None = None

    @property
    def is_free(self) -> bool:
        """Whether the driver says that nothing but idleness holds the clock back."""
        return self.reasons is not None and not self.reasons & ~IDLE


class Device:
    """One GPU, several GPUs used as one, or a substitute for them. By itself: a host's clock, no
    energy and no limit.

    A reading that is not available is ``None``, and ``missing`` has the reason. Calls never block
    for long. Setters raise :class:`~airflow_provider_zeus.errors.DeviceError` with the remedy when
    the device refuses.

    ``info``: model, count, MAXPOWER [W], energy source. ``uuid``: identifier of the device, those
    of several GPUs joined by commas; None if it has none. ``missing``: name of a reading
    (``energy_j``, ``limit_w``, ...) -> why it is None.

    :param no_limit: why there is no limit, for ``missing`` and errors.
    """

    uuid: str | None = None
    waited_s = 0.0  # a training waits for its driver, so readings are rationed by this [s]

    def __init__(self, info: DeviceInfo, no_limit: str = "") -> None:
        self.info = info
        self.missing: dict[str, str] = {}
        if no_limit:
            self.missing["limit_w"] = no_limit

    def now_s(self) -> float:
        """Clock for durations [s]: monotonic; virtual on a simulated device."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy counter [J] since an arbitrary start."""
        return None

    def limit_range(self) -> LimitRange | None:
        """Limits that may be set; None if none may."""
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
        """The clock and the reasons that hold it back; None if it is not known."""
        return None

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]. Raises DeviceError: no permission, out of range."""
        raise DeviceError(
            f"power limit = {limit_w:g} W: {self.missing['limit_w']}. Use mode='measure'."
        )

    def restore_record(self) -> list[dict[str, Any]] | None:
        """Plain JSON, of each GPU, from which the guardian restores the limit without this process;
        None: it cannot.
        """
        return None

    def on_step(self, samples: int) -> None:
        """Advance the clock of a simulated device by one optimizer step; real devices ignore it."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done.

        Called only when a measurement begins or ends.
        """

    def close(self) -> None:
        """Release the device at the end of the training."""


class NoneDevice(Device):
    """No source of energy: no energy and no limit; the batch size can still be tuned, on time
    alone.

    :param max_power_w: MAXPOWER of Eq. 2 [W], as given by the user.
    :param why: why energy is not measured, for the logs and the page.
    """

    def __init__(self, max_power_w: float | None = None, *, why: str = "") -> None:
        super().__init__(
            DeviceInfo(model=cpu_model(), max_power_w=max_power_w), "this device has no power limit"
        )
        self.missing["energy_j"] = why or (
            "no source of energy on this host: train on an NVIDIA GPU, or use "
            "device='simulated:<gpu>/<load>' to try things out"
        )


class DeviceGroup(Device):
    """GPUs that train together on one host: energy and MAXPOWER are summed, time is the longest,
    the limit is the same.

    A reading that one GPU lacks is missing for the group: a partial sum would look like a complete
    one. Limits are set only if all GPUs have the same limit.

    :param parts: the devices, at least one.
    :param gpus: number of GPUs of the whole training, on all hosts: each trains its share of a
        step's samples.
    """

    def __init__(self, parts: Sequence[Device], gpus: int | None = None) -> None:
        self._parts = tuple(parts)
        self._gpus = gpus or len(parts)
        self._reasons: dict[str, str] = {}  # a group may lack what each of its GPUs has
        sources = {part.info.energy_source for part in parts}
        # Joules of a counter and of an estimate are never added.
        if len(sources) > 1 and None not in sources:
            listed = ", ".join(sorted(map(str, sources)))
            self._reasons["energy_j"] = f"the GPUs measure in different ways ({listed})"
        self._virtual = sources == {"simulated"}
        self._start_s = [part.now_s() for part in parts]
        self.limit_w()  # it fills ``missing``, which pages read before any limit is set

    @property
    def info(self) -> DeviceInfo:  # type: ignore[override]  # computed from the parts
        """Model, count and MAXPOWER [W] of all GPUs; the model changes if another training came to
        share one.
        """
        return joined([part.info for part in self._parts])

    @property
    def uuid(self) -> str | None:  # type: ignore[override]  # computed from the parts
        """UUIDs of all GPUs in their order, joined by commas; None if one has none."""
        return of_all(",".join, [part.uuid for part in self._parts])

    @property
    def missing(self) -> dict[str, str]:  # type: ignore[override]  # computed from the parts
        """Name of a reading -> why it is None, from the first GPU that lacks it."""
        missing: dict[str, str] = {}
        for part in reversed(self._parts):
            # Of two reasons |= keeps the later one: reversed, that is the first GPU's.
            missing |= part.missing
        return missing | self._reasons

    def now_s(self) -> float:
        """Clock of this host [s]; of simulated GPUs the longest time since the group exists."""
        # Each simulated GPU goes on from its earlier trainings: only differences can be compared.
        if self._virtual:
            return max(
                part.now_s() - start_s
                for part, start_s in zip(self._parts, self._start_s, strict=True)
            )
        return self._parts[0].now_s()

    def energy_j(self) -> float | None:
        """Sum of the counters [J]."""
        counters_j = self.each_j()
        if counters_j is None:
            return None
        return sum(counters_j)

    def each_j(self) -> tuple[float, ...] | None:
        """Counters [J] of the GPUs, in the order of ``uuid``; None if one cannot be read."""
        if self.info.energy_source is None:
            return None
        return of_all(tuple, [part.energy_j() for part in self._parts])

    def limit_range(self) -> LimitRange | None:
        """Limits that every GPU accepts [W]."""
        ranges = whole([part.limit_range() for part in self._parts])
        if ranges is None:
            return None
        # One limit for all GPUs: the others would wait for a slower one.
        min_w = max(limits.min_w for limits in ranges)
        max_w = min(limits.max_w for limits in ranges)
        # GPUs of different models may have no limit in common.
        if min_w >= max_w:
            return None
        return LimitRange(min_w=min_w, max_w=max_w, step_w=ranges[0].step_w)

    def limit_w(self) -> float | None:
        """The limit of every GPU [W]; None if they differ."""
        return self._common_w([part.limit_w() for part in self._parts])

    @property
    def seen_limit_w(self) -> float | None:
        """The limit of every GPU [W] when it was last read or set; None if they differ."""
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
        whole_w = whole(limits)
        if whole_w is None:
            return None
        # A difference within a driver's rounding counts too: one limit is given back to all.
        if len(set(whole_w)) > 1:
            listed = ", ".join(f"{limit:g}" for limit in whole_w)
            self._reasons["limit_w"] = (
                f"the GPUs that train together have limits of {listed} W; give them the same limit "
                "to have it tuned"
            )
            return None
        return whole_w[0]

    def busy(self) -> float | None:
        """Mean share of the GPUs in which they worked, 0 to 1."""
        return of_all(fmean, [part.busy() for part in self._parts])

    def clocks(self) -> Clocks | None:
        """The lowest clock of the GPUs, the reasons of any of them, and the time for which they
        were capped in all.
        """
        clocks = whole([part.clocks() for part in self._parts])
        if clocks is None:
            return None
        return Clocks(
            sm_mhz=of_all(min, [part.sm_mhz for part in clocks]),
            max_mhz=of_all(min, [part.max_mhz for part in clocks]),
            reasons=of_all(partial(reduce, or_), [part.reasons for part in clocks]),
            capped_s=of_all(sum, [part.capped_s for part in clocks]),
        )

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of every GPU [W].

        If one refuses, the others are reset, and DeviceError is raised.
        """
        # A group must not be left with two limits: its GPUs would wait for the slowest.
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
        # A GPU without a record would never get its limit back: then none may be changed.
        records = whole([part.restore_record() for part in self._parts])
        if records is None:
            return None
        return list(chain.from_iterable(records))

    def on_step(self, samples: int) -> None:
        """Advance each simulated GPU by its share of these samples."""
        if self._virtual:
            share = -(-samples // self._gpus)  # the largest share: the others wait for it
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


def joined(infos: Sequence[DeviceInfo]) -> DeviceInfo:
    """Several devices as one. They have a source of energy if it is the same one."""
    sources = {info.energy_source for info in infos}
    return DeviceInfo(
        model=" + ".join(dict.fromkeys(info.model for info in infos)),
        count=len(infos),
        max_power_w=of_all(sum, [info.max_power_w for info in infos]),
        energy_source=sources.pop() if len(sources) == 1 else None,
    )


def cpu_model() -> str:
    """Model name of this host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
            return next(filter(None, names), platform.machine())
    except OSError:  # only Linux has this file; elsewhere platform knows the model
        return platform.processor() or platform.machine()
