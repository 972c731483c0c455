"""From the name of a device, as a job says it, to the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.gpu_lock import GpuLock
from airflow_provider_zeus.power.group import DeviceGroup
from airflow_provider_zeus.power.none import NoneDevice
from airflow_provider_zeus.power.simulated import PREFIX, open_simulated

GPU_LOCK_WAIT_S = 3600.0


def device_of(
    job: ZeusJob,
    state_dir: str | os.PathLike[str],
    *,
    cpu_watts: float | None = None,
    read_only: bool = False,
    power_socket: str = "",
    gpu_lock_wait_s: float = GPU_LOCK_WAIT_S,
    gpus_held: Collection[str] = (),
    processes: int = 1,
    hosts: int = 1,
) -> Device:
    """The device that a job measures on; see :func:`open_device`. Raises JobSpecError for an unknown one.

    Waits for GPUs on which another training of this host is, for at most ``gpu_lock_wait_s`` seconds, where the job
    says ``gpu_lock="wait"``; the process that started this one may hold ``gpus_held`` for it.
    """
    if job.mode == "off":
        return NoneDevice(job.max_power_w, why="the job's mode is 'off': nothing is measured")
    return open_device(
        job.device,
        state_dir=state_dir,
        max_power_w=job.max_power_w,
        cpu_watts=cpu_watts,
        read_only=read_only,
        power_socket=power_socket,
        gpus=job.gpus,
        lock=partial(GpuLock, state_dir, how=job.gpu_lock, wait_s=gpu_lock_wait_s, above=gpus_held),
        processes=processes,
        hosts=hosts,
    )


def open_device(
    name: str,
    *,
    state_dir: str | os.PathLike[str],
    max_power_w: float | None = None,
    cpu_watts: float | None = None,
    read_only: bool = False,
    power_socket: str = "",
    gpus: int | None = None,
    processes: int = 1,
    hosts: int = 1,
    lock: Callable[[Sequence[str]], GpuLock] | None = None,
) -> Device:
    """Open ``auto``, ``nvml``, ``rapl``, ``none`` or ``simulated:<gpu>/<load>``. Raises JobSpecError: it is not here.

    ``auto`` is the best real source there is: an NVIDIA GPU, else the processors' counters where they can be read, else
    the estimate where ``cpu_watts`` is set, else none.

    :param state_dir: where simulated devices keep their state; a path of the host, shared by its processes.
    :param max_power_w: MAXPOWER of Eq. 2 [W], used where the device does not tell it.
    :param cpu_watts: what one busy CPU core draws [W].
    :param read_only: never set a limit on a real GPU.
    :param power_socket: of the helper that sets limits of real GPUs; empty: this process does so itself.
    :param gpus: of this host that train together; default: one for each process, for a single process what it is shown.
    :param processes: that train together on this host; this one measures for all of them.
    :param hosts: that train together.
    :param lock: keeps other trainings off the GPUs with these UUIDs; None: they are only looked for.
    """
    gpus = gpus or (processes if processes > 1 else None)
    if name.startswith(PREFIX):
        return _simulated(name, state_dir, gpus or 1, hosts)
    if name == "none":
        return NoneDevice(max_power_w)
    if name not in ("auto", "nvml", "rapl"):
        known = f"use 'auto', 'nvml', 'rapl', 'none' or '{PREFIX}<gpu>/<load>'"
        raise JobSpecError.of("ZeusJob.device", name, "unknown device", known)
    from airflow_provider_zeus.power.nvml_group import open_nvml
    from airflow_provider_zeus.power.rapl import RaplDevice

    on_nvml = partial(open_nvml, read_only=read_only, max_power_w=max_power_w, power_socket=power_socket)
    why = []
    for kind, opened in (
        ("nvml", partial(on_nvml, gpus=gpus, processes=processes, lock=lock)),
        ("rapl", partial(RaplDevice, max_power_w)),
    ):
        try:
            if name in (kind, "auto"):
                return opened()
        except DeviceError as error:
            if name == kind:
                raise JobSpecError.of("ZeusJob.device", name, str(error), "Or use 'auto' to do without") from error
            why.append(str(error))
    if cpu_watts is not None:
        from airflow_provider_zeus.power.estimate import EstimateDevice

        return EstimateDevice(cpu_watts, max_power_w, with_siblings=processes > 1)
    return NoneDevice(
        max_power_w, why=f"no source of energy. {'; '.join(why)}; or set [zeus] cpu_watts for an estimate"
    )


def _simulated(name: str, state_dir: str | os.PathLike[str], gpus: int, hosts: int) -> Device:
    if gpus == hosts == 1:
        return open_simulated(name, state_dir)
    return DeviceGroup([open_simulated(name, state_dir, number) for number in range(1, gpus + 1)], gpus * hosts)
