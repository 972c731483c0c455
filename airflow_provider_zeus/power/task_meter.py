"""Energy and time of a task that does not know that it is measured: of the GPUs that it uses, else
of its processors.

A GPU counts only if this task, with the processes that it started, was the only one that computed
on it. A GPU that it did not touch counts nothing. The processors count if it touched none: figures
of both are never added. If a container hides whether it did, the processors' figure has a remark.
If the processors were nearly idle, too, the task waited for work elsewhere, and no figure tells
that energy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from threading import Lock

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.groups import of_all
from airflow_provider_zeus.model.trial import GPU_HIDDEN, Observation, PowerPoint
from airflow_provider_zeus.power.cpu import (
    EstimateDevice,
    RaplShareDevice,
    cpu_seconds,
    descendants,
    open_rapl,
)
from airflow_provider_zeus.power.device import Device, NoneDevice, joined
from airflow_provider_zeus.power.limits.gpu_lock import tell_holder
from airflow_provider_zeus.power.meter import DeviceMeter
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.library import why_silent
from airflow_provider_zeus.power.nvml.visible import find_gpus, uuids_by_torch

# Who uses less of one hardware thread mostly waits for work elsewhere, which is not measured here.
IDLE_SHARE = 0.05


class GpuMeter(DeviceMeter):
    """A GPU that the task may use: whether it does, and whether alone."""

    device: NvmlDevice

    def __init__(self, gpu: NvmlDevice) -> None:
        super().__init__(gpu)
        self.used = False
        self.unknown = False  # a container hides whose processes these are
        self.shared = ""  # stays once it is set: the sum has another task's energy in it
        self.busy: list[float] = []

    def see_processes(
        self,
        ours: set[int],
        by_torch: Callable[[], set[str | None]],
        first_use: Callable[[str], None],
    ) -> None:
        """See who computes on it now.

        :param ours: ids of the task's processes. A container hides them; then torch in this process
            names its GPUs.
        :param by_torch: gives the UUIDs of those.
        :param first_use: gets the GPU's UUID when the task is seen on it for the first time.
        """
        gpu = self.device
        listed = gpu.computing() or []
        mine = self._count_ours(listed, ours, by_torch)
        # Asked twice: a process that has just ended is hidden too, but listed no more.
        if not mine and any(map(_is_hidden, listed)):
            self.unknown = self.unknown or any(map(_is_hidden, gpu.computing() or []))
        # One other process makes the counter no measurement of this task.
        others = len(listed) - mine
        if others > 0 and not self.shared:
            processes = "process" if others == 1 else "processes"
            self.shared = f"{others} other {processes} computed on {self._name} too"
        if mine and not self.used:
            self.used = True
            if gpu.uuid:
                first_use(gpu.uuid)
        if not self.used:
            return
        gpu.limit_w()
        # At each look: one share alone would tell of a single moment of the task.
        share = gpu.busy()
        if share is not None:
            self.busy.append(share)

    def _count_ours(
        self, listed: list[int], ours: set[int], by_torch: Callable[[], set[str | None]]
    ) -> int:
        """How many of the listed processes are the task's."""
        mine = len(ours.intersection(listed))
        if mine or self.device.uuid is None:
            return mine
        # A container hides whose process is there; torch tells that of this one.
        return int(self.device.uuid in by_torch())

    @property
    def why_not(self) -> str:
        """Why its energy is not known, or not this task's alone; empty if it is."""
        return self.shared or super().why_not

    @property
    def hidden(self) -> str:
        """Why it is not known whether the task used it; empty if it is."""
        if self.used or not self.unknown:
            return ""
        return (
            f"whether this task computed on {self._name} is not known: its container hides whose "
            "processes are there, and the figures are those of its processors alone"
        )

    @property
    def _name(self) -> str:
        return self.device.uuid or "the GPU"


class TaskMeter:
    """The :class:`.Meter` of a task: of the GPUs that it uses, else of its processors. Safe for
    several threads.

    :param gpus: that the task may use.
    :param host: measures the processors' energy; its clock is used.
    :param first_use: gets the UUID of each GPU when the task is seen on it for the first time.
    :param busy_s: processor time of this process and those that it started [s].
    """

    def __init__(
        self,
        gpus: Sequence[NvmlDevice],
        host: Device,
        first_use: Callable[[str], None],
        busy_s: Callable[[], float] = cpu_seconds,
    ) -> None:
        self._gpus = [GpuMeter(gpu) for gpu in gpus]
        self._host = DeviceMeter(host)
        self._first_use = first_use
        self._lock = Lock()
        self._busy_s = busy_s
        self._busy_before_s = busy_s()
        self._worked_s = 0.0  # a task whose processors were idle waited for work elsewhere

    @classmethod
    def open(
        cls,
        device: str,
        state_dir: str | os.PathLike[str],
        *,
        cpu_watts: float | None,
        simulated: Device | None = None,
    ) -> TaskMeter:
        """Open the devices that there are. Raises nothing: if nothing measures energy, time is
        measured alone.

        :param device: of the job: "auto", "nvml", "rapl", "none" or simulated.
        :param cpu_watts: power of one busy CPU core [W], for an estimate if no counter can be read.
        :param simulated: the simulated GPU that ``device`` names, whose clock the steps of the
            training advance.
        """
        gpus: list[NvmlDevice] = []
        reasons = []
        if device in ("auto", "nvml"):
            try:
                gpus = _every_gpu()
            except DeviceError as error:
                reasons.append(str(error))
            # It may compute on a GPU all the same: its processors' energy is not all of it.
            why = why_silent()
            if why:
                return cls((), NoneDevice(why=why), lambda _: None)
        host: Device | None = simulated
        if device in ("auto", "rapl"):
            try:
                host = RaplShareDevice(open_rapl())
            except DeviceError as error:
                reasons.append(str(error))
            # An estimate is the last resort: it errs by a factor of two.
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
            # Once for all GPUs, since a walk through /proc and calls of CUDA take time.
            ours = descendants(os.getpid()) if self._gpus else set()
            by_torch = cache(uuids_by_torch)
            for gpu in self._gpus:
                gpu.see_processes(ours, by_torch, self._first_use)
            for meter in (self._host, *self._gpus):
                meter.look()
            # A child that ends during the reading is missing from it once: the higher sum counts.
            self._worked_s = max(self._worked_s, self._busy_s() - self._busy_before_s)

    def point(self) -> PowerPoint:
        """A power point: mean power [W] from the last one until the last look."""
        with self._lock:
            used = self._used
            powers = [meter.take_power_w() for meter in used]
            if any(meter.why_not for meter in used):
                powers = [None]  # a power without one device would look like the whole
            return PowerPoint(
                t_s=self._host.total.time_s,
                power_w=of_all(sum, powers),
                limit_w=self._limit_w,
                phase="train",
            )

    def observation(self) -> Observation:
        """The sums up to the last look; each figure that is not known is None with its reason."""
        with self._lock:
            gpus = self._used_gpus
            busy = [share for gpu in gpus for share in gpu.busy]
            used = self._used
            info = joined([meter.device.info for meter in used])
            energies = [meter.total.energy_j or 0.0 for meter in used]
            why_not = self._why_not
            why_no_energy = why_not or self._why_short
            host = self._host
            figures = Observation(
                energy_j=sum(energies),
                time_s=host.total.time_s or None,
                power_limit_w=self._limit_w,
                device_model=info.model,
                device_count=info.count,
                max_power_w=info.max_power_w,
                energy_source=used[0].device.info.energy_source,
                gpu_uuid=of_all(",".join, [gpu.device.uuid for gpu in gpus]) or None,
                gpu_energy_j=tuple(energies) if len(gpus) > 1 else None,
                gpu_busy=fmean(busy) if busy else None,
                reasons=self._reasons(why_not, why_no_energy),
            )
            if why_not:
                figures = replace(figures, energy_source=None)
            if why_no_energy:
                figures = replace(figures, energy_j=None, gpu_energy_j=None)
            # Kept apart from the GPUs': figures of two sources are never added.
            host_j = host.total.energy_j
            if gpus and host_j and not host.why_not:
                source = host.device.info.energy_source
                figures = replace(figures, host_j=host_j, host_source=source)
            return figures

    def _reasons(self, why_not: str, why_no_energy: str) -> dict[str, str]:
        """Why figures are missing, or may be those of another task."""
        reasons: dict[str, str] = {}
        if why_no_energy:
            reasons["energy_j"] = why_no_energy
        if why_not and not self._host.total.time_s:
            reasons["time_s"] = why_not
        hidden = "; ".join(filter(None, (gpu.hidden for gpu in self._gpus)))
        if hidden and not self._used_gpus:
            reasons[GPU_HIDDEN] = hidden
        return reasons

    def close(self) -> None:
        """Release the devices."""
        for meter in (self._host, *self._gpus):
            meter.close()

    @property
    def _used(self) -> Sequence[DeviceMeter]:
        """The devices that count: the GPUs that the task was seen on, else the processors."""
        return self._used_gpus or [self._host]

    @property
    def _used_gpus(self) -> list[GpuMeter]:
        return [gpu for gpu in self._gpus if gpu.used]

    @property
    def _why_not(self) -> str:
        """Why the energy of the devices that count is not known or says nothing; else empty."""
        reasons = "; ".join(filter(None, (meter.why_not for meter in self._used)))
        return reasons or self._why_idle

    @property
    def _why_short(self) -> str:
        """Why 0 J are no measurement.

        If one of the counters moved, the energy of the others is most of it.
        """
        reasons = [meter.total.short for meter in self._used]
        return reasons[0] if all(reasons) else ""

    @property
    def _why_idle(self) -> str:
        """Why the processors' figure would say nothing of the task: it used no GPU and they were
        nearly idle.
        """
        time_s = self._host.total.time_s
        # A counter of the whole host measures something even if the task idles.
        is_share = self._host.device.info.energy_source in ("estimate", "rapl_share")
        if self._used_gpus or not is_share:
            return ""
        if not time_s or self._worked_s >= IDLE_SHARE * time_s:
            return ""
        return (
            f"its worker was nearly idle ({self._worked_s:.2g} s of processor time in "
            f"{time_s:,.3g} s): if the task waited for work elsewhere, such as a pod's or a "
            "warehouse's, that is not measured"
        )

    @property
    def _limit_w(self) -> float | None:
        """The power limit of the GPUs that it uses [W]; None if they differ."""
        # One figure for GPUs with two limits would be wrong for both.
        limits = {gpu.device.seen_limit_w for gpu in self._used_gpus}
        return limits.pop() if len(limits) == 1 else None


def _is_hidden(pid: int) -> bool:
    """Whether a process cannot be seen here: it is of the host, and this is a container.

    One that has ended is too.
    """
    try:
        os.kill(pid, 0)
    except OSError as error:  # one of another user is there, and may not be asked
        return isinstance(error, ProcessLookupError)
    except OverflowError:
        return False
    return False


def _every_gpu() -> list[NvmlDevice]:
    """The GPUs that the task may use, open. Raises DeviceError: there is none."""
    from multiprocessing.pool import ThreadPool  # here: tasks on hosts without a GPU do not need it

    gpus = find_gpus(10**6)
    # Each waits until its counter moves; daemons, so that none holds the exit.
    with ThreadPool(len(gpus)) as pool:
        return pool.map(lambda gpu: NvmlDevice(gpu=gpu, read_only=True), gpus)
