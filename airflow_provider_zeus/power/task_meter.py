"""Energy and time of a task that does not know that it is measured: of the GPUs that it uses, else of its processors.

A GPU counts only where this task, with the processes that it started, was the only one that computed on it. A GPU that
it did not touch counts nothing; where a container hides that, no energy is known. The processors count where it touched
none: figures of both are never added.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.pool import ThreadPool
from statistics import fmean
from threading import Lock

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.trial import Observation, PowerPoint
from airflow_provider_zeus.power.cpu import EstimateDevice, RaplShareDevice, descendants, open_rapl
from airflow_provider_zeus.power.device import Device, NoneDevice
from airflow_provider_zeus.power.limits.gpu_lock import tell_holder
from airflow_provider_zeus.power.meter import Span, read
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.library import why_silent
from airflow_provider_zeus.power.nvml.visible import find_gpus, uuids_by_torch


class Counted:
    """What a device drew: since the task began, and since the last power point."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._read = read(device)
        self.total, self._since_point = Span(self._read), Span(self._read)

    def advance(self) -> None:
        """Add what was drawn since the last reading."""
        self._read = read(self.device)
        self.total.advance(self._read)
        self._since_point.advance(self._read)

    def take_power_w(self) -> float | None:
        """Mean power from the reading at the last call until the newest one [W]."""
        power_w, self._since_point = self._since_point.power_w, Span(self._read)
        return power_w

    @property
    def why_not(self) -> str:
        """Why its energy is not known; empty where it is."""
        total, missing = self.total, self.device.missing.get("energy_j")
        if total.time_s and total.energy_j is not None and not total.still and self.device.info.energy_source:
            return ""
        still = "the clock of this device stands still: that of a simulated one goes with the training's steps"
        return missing or total.reason or total.still or ("no source of energy" if total.time_s else still)


class CountedGpu(Counted):
    """A GPU that the task may use: whether it does, and whether alone."""

    device: NvmlDevice

    def __init__(self, gpu: NvmlDevice) -> None:
        super().__init__(gpu)
        self.used = False
        self.unknown = False  # processes computed on it of which nobody knows whose they are
        self.shared = ""  # why what it drew is not this task's alone
        self.busy: list[float] = []

    def look(self, ours: set[int], by_torch: Callable[[], set[str | None]], first_use: Callable[[str], None]) -> None:
        """See who computes on it now.

        :param ours: ids of the task's processes. A container hides them; then torch in this process names its GPUs.
        :param by_torch: gives the UUIDs of those.
        :param first_use: gets the GPU's UUID when the task is seen on it for the first time.
        """
        gpu, listed = self.device, self.device.computing() or []
        mine = len(ours.intersection(listed))
        if not mine and gpu.uuid is not None and gpu.uuid in by_torch():
            mine = 1
        if not mine and any(map(_is_hidden, listed)):  # listed still: one that has just ended is not
            self.unknown = self.unknown or any(map(_is_hidden, gpu.computing() or []))
        others = len(listed) - mine
        if others > 0 and not self.shared:
            self.shared = f"{others} other process{'es' if others > 1 else ''} computed on {gpu.uuid or 'the GPU'} too"
        if mine and not self.used:
            self.used = True
            if gpu.uuid:
                first_use(gpu.uuid)
        if not self.used:
            return
        gpu.limit_w()
        if (share := gpu.busy()) is not None:
            self.busy.append(share)

    @property
    def why_not(self) -> str:
        """Why its energy is not known, or not this task's alone; empty where it is."""
        if self.unknown and not self.used:
            of = self.device.uuid or "the GPU"
            return f"whether this task computed on {of} is not known: its container hides whose processes are there"
        return self.shared or super().why_not


class TaskMeter:
    """Measures from its construction on. Safe for several threads.

    :param gpus: that the task may use. :param host: what measures the processors' energy; its clock is used.
    :param first_use: gets the UUID of each GPU when the task is seen on it for the first time.
    """

    def __init__(self, gpus: Sequence[NvmlDevice], host: Device, first_use: Callable[[str], None]) -> None:
        self._gpus, self._host = [CountedGpu(gpu) for gpu in gpus], Counted(host)
        self._first_use, self._lock = first_use, Lock()

    @classmethod
    def open(
        cls,
        device: str,
        state_dir: str | os.PathLike[str],
        *,
        cpu_watts: float | None,
        simulated: Device | None = None,
    ) -> TaskMeter:
        """Open what there is. Raises nothing: where nothing measures energy, time is measured alone.

        :param device: of the job: "auto", "nvml", "rapl", "none" or simulated.
        :param cpu_watts: power of one busy CPU core [W], for an estimate where no counter can be read.
        :param simulated: the simulated GPU that ``device`` names, whose clock the steps of the training advance.
        """
        gpus: list[NvmlDevice] = []
        reasons = []
        if device in ("auto", "nvml"):
            try:
                gpus = _every_gpu()
            except DeviceError as error:
                reasons.append(str(error))
            if why := why_silent():  # it may compute on a GPU all the same: its processors are not all
                return cls((), NoneDevice(why=why), lambda _: None)
        host: Device | None = simulated
        if device in ("auto", "rapl"):
            try:
                host = RaplShareDevice(open_rapl())
            except DeviceError as error:
                reasons.append(str(error))
            if host is None and cpu_watts is not None:
                host = EstimateDevice(cpu_watts)
        why = "; ".join(reasons) or "its job has device='none'"
        return cls(
            gpus,
            host or NoneDevice(why=f"no source of energy: {why}"),
            lambda uuid: tell_holder(state_dir, uuid, descendants(os.getpid())),
        )

    def look(self) -> None:
        """See which GPUs the task uses now; read all counters."""
        with self._lock:
            ours, by_torch = descendants(os.getpid()) if self._gpus else set(), cache(uuids_by_torch)  # once for all
            for gpu in self._gpus:
                gpu.look(ours, by_torch, self._first_use)
            for counted in (self._host, *self._gpus):
                counted.advance()

    def point(self) -> PowerPoint:
        """A power point: mean power [W] since the last one."""
        with self._lock:
            used = self._used
            powers = [counted.take_power_w() for counted in used]
            known = [power_w for power_w in powers if power_w is not None]
            whole = len(known) == len(powers) and not any(counted.why_not for counted in used)
            power_w = sum(known) if whole else None
            return PowerPoint(t_s=self._host.total.time_s, power_w=power_w, limit_w=self._limit_w, phase="train")

    def observation(self) -> Observation:
        """The sums up to the last look; each figure that is not known is None with its reason."""
        with self._lock:
            used, gpus = self._used, [counted for counted in self._used if isinstance(counted, CountedGpu)]
            infos = [counted.device.info for counted in used]
            energies = [counted.total.energy_j or 0.0 for counted in used]
            why_not = "; ".join(filter(None, (counted.why_not for counted in used)))
            busy = [share for gpu in gpus for share in gpu.busy]
            powers = [info.max_power_w for info in infos]
            uuids = [gpu.device.uuid for gpu in gpus]
            beside = bool(gpus) and not self._host.why_not and bool(self._host.total.energy_j)
            each_j = tuple(energies) if len(gpus) > 1 and not why_not else None
            return Observation(
                energy_j=None if why_not else sum(energies),
                time_s=self._host.total.time_s or None,
                power_limit_w=self._limit_w,
                device_model=" + ".join(dict.fromkeys(info.model for info in infos)),
                device_count=len(gpus) or 1,
                max_power_w=None if None in powers else sum(power or 0.0 for power in powers),
                energy_source=None if why_not else infos[0].energy_source,
                gpu_uuid=",".join(map(str, uuids)) if uuids and None not in uuids else None,
                gpu_energy_j=each_j,
                gpu_busy=fmean(busy) if busy else None,
                host_j=self._host.total.energy_j if beside else None,
                host_source=self._host.device.info.energy_source if beside else None,
                reasons=dict.fromkeys(("energy_j",) if self._host.total.time_s else ("energy_j", "time_s"), why_not)
                if why_not
                else {},
            )

    def close(self) -> None:
        """Release the devices."""
        for counted in (self._host, *self._gpus):
            counted.device.close()

    @property
    def _used(self) -> Sequence[Counted]:
        """What counts: the GPUs that the task was seen on, or may have been, else the processors."""
        return [gpu for gpu in self._gpus if gpu.used or gpu.unknown] or [self._host]

    @property
    def _limit_w(self) -> float | None:
        """The power limit of the GPUs that it uses [W]; None where they differ."""
        limits = {gpu.device.seen_limit_w for gpu in self._gpus if gpu.used}
        return limits.pop() if len(limits) == 1 else None


def _is_hidden(pid: int) -> bool:
    """Whether a process cannot be seen here: it is of the host, and this is a container. One that has ended is too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user
        pass
    return False


def _every_gpu() -> list[NvmlDevice]:
    """The GPUs that the task may use, open. Raises DeviceError: there is none."""
    found = find_gpus(10**6)
    with ThreadPool(len(found)) as pool:  # each waits until its counter moves; daemons, so that none holds the exit
        return pool.map(lambda gpu: NvmlDevice(gpu=gpu, read_only=True), found)
