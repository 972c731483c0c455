"""Opens the device that a job names: one GPU, several as one, or a substitute."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.device import Device, DeviceGroup, NoneDevice
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.simulated.gpu import PREFIX, open_simulated, take_simulated


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Settings of the section ``[zeus]`` of a host: how to measure and to set limits there."""

    # Many hosts let no counter be read: without this estimate they would have no energy at all.
    cpu_watts: float | None = None
    power_read_only: bool = False  # the administrator may forbid it on a shared host
    # A worker without privileges needs a helper; empty: the training sets limits itself.
    power_socket: str = ""
    # A training that waits for ever would hide that nobody trains.
    gpu_lock_wait_s: float = 3600.0


def device_of(
    job: ZeusJob,
    state_dir: str | os.PathLike[str],
    host: HostSettings | None = None,
    *,
    gpus_held: Collection[str] = (),
    processes: int = 1,
    hosts: int = 1,
) -> Device:
    """Open the device of a job; see :func:`open_device`. Raises JobSpecError for an unknown one.

    :param gpus_held: UUIDs of GPUs whose lock the parent process holds for this training.
    """
    if job.mode == "off":
        return NoneDevice(job.max_power_w, why="the job's mode is 'off': nothing is measured")
    host = host or HostSettings()
    return open_device(
        job.device,
        state_dir=state_dir,
        host=host,
        max_power_w=job.max_power_w,
        gpus=job.gpus,
        lock=partial(
            GpuLock, state_dir, how=job.gpu_lock, wait_s=host.gpu_lock_wait_s, above=gpus_held
        ),
        gpus_held=gpus_held,
        processes=processes,
        hosts=hosts,
    )


def open_device(
    name: str,
    *,
    state_dir: str | os.PathLike[str],
    host: HostSettings | None = None,
    max_power_w: float | None = None,
    gpus: int | None = None,
    processes: int = 1,
    hosts: int = 1,
    lock: Callable[[Sequence[str]], GpuLock] | None = None,
    gpus_held: Collection[str] = (),
) -> Device:
    """Open ``auto``, ``nvml``, ``rapl``, ``none`` or ``simulated:<gpu>/<load>``.

    ``auto`` is the best real source of this host: an NVIDIA GPU, else the processors' counters if
    they can be read, else the estimate if ``cpu_watts`` is set, else none.

    :param state_dir: folder of the state of simulated devices; a path of the host, shared by its
        processes.
    :param max_power_w: MAXPOWER of Eq. 2 [W], used if the device does not report it.
    :param gpus: number of this host's GPUs that train together; default: one per process; for a
        single process, those that it is shown.
    :param processes: number of processes that train together on this host; this one measures for
        all of them.
    :param hosts: number of hosts that train together.
    :param lock: takes the lock of the GPUs with these UUIDs; None: no lock is taken. A simulated
        GPU is not waited for: each training gets one of its own.
    :param gpus_held: UUIDs of simulated GPUs that the parent process has taken for this training.

    Raises JobSpecError: the name is unknown, or this host has no such device.
    """
    # One process for each GPU is how torch trains.
    if gpus is None and processes > 1:
        gpus = processes
    if name.startswith(PREFIX):
        count = gpus or 1
        if lock is None:
            simulated = [open_simulated(name, state_dir, number) for number in range(1, count + 1)]
        else:
            simulated = take_simulated(name, state_dir, count, held=gpus_held)
        return simulated[0] if count * hosts == 1 else DeviceGroup(simulated, count * hosts)
    if name == "none":
        return NoneDevice(max_power_w)
    if name not in ("auto", "nvml", "rapl"):
        names = f"use 'auto', 'nvml', 'rapl', 'none' or '{PREFIX}<gpu>/<load>'"
        raise JobSpecError.of("ZeusJob.device", name, "unknown device", names)
    host = host or HostSettings()
    nvml = partial(
        open_nvml,
        read_only=host.power_read_only,
        max_power_w=max_power_w,
        power_socket=host.power_socket,
        gpus=gpus,
        processes=processes,
        lock=lock,
    )
    return _open_real(name, nvml, max_power_w, host.cpu_watts, with_siblings=processes > 1)


def _open_real(
    name: str,
    nvml: Callable[[], Device],
    max_power_w: float | None,
    cpu_watts: float | None,
    *,
    with_siblings: bool,
) -> Device:
    """Open a source of energy of this host, as :func:`open_device`."""
    from airflow_provider_zeus.power.cpu import EstimateDevice, open_rapl
    from airflow_provider_zeus.power.nvml.library import why_silent

    sources: dict[str, Callable[[], Device]] = {
        "nvml": nvml,
        "rapl": partial(open_rapl, max_power_w),
    }
    reasons = []
    # The GPU first: its energy is most of a training's.
    for kind in sources if name == "auto" else [name]:
        try:
            return sources[kind]()
        except DeviceError as error:
            # It may train on a GPU all the same, of which no other source tells.
            why = why_silent()
            if why:
                return NoneDevice(max_power_w, why=why)
            # Who names a source wants that one, or an error.
            if name == kind:
                raise JobSpecError.of(
                    "ZeusJob.device", name, str(error), "Or use 'auto' to do without"
                ) from error
            reasons.append(str(error))
    if cpu_watts is not None:
        return EstimateDevice(cpu_watts, max_power_w, with_siblings=with_siblings)
    why = f"no source of energy. {'; '.join(reasons)}; or set [zeus] cpu_watts for an estimate"
    return NoneDevice(max_power_w, why=why)


def open_nvml(
    *,
    read_only: bool = False,
    max_power_w: float | None = None,
    power_socket: str = "",
    gpus: int | None = None,
    processes: int = 1,
    lock: Callable[[Sequence[str]], GpuLock] | None = None,
) -> Device:
    """Open the GPUs that the training uses. Raises DeviceError with the reason: none can be used.

    :param read_only, power_socket: see :class:`~airflow_provider_zeus.power.nvml.gpu.NvmlDevice`.
    :param max_power_w: MAXPOWER [W] of all GPUs together, if they do not report it.
    :param gpus: number of GPUs; default: those that ``CUDA_VISIBLE_DEVICES`` names, one if it is
        not set.
    :param processes: number of processes that train together on this host.
    :param lock: takes the lock of the GPUs with these UUIDs; may wait.
    """
    from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
    from airflow_provider_zeus.power.nvml.visible import find_gpus

    visible = find_gpus(gpus)
    uuids = [gpu.uuid for gpu in visible]
    not_ours = ""
    # The energy of a part of the GPUs would look like that of the training.
    if gpus is not None and len(visible) < gpus:
        not_ours = (
            f"{gpus} GPUs train together and this process sees {len(visible)} of them: let "
            "CUDA_VISIBLE_DEVICES show every GPU of the host's training to each of its processes, "
            "and let each pick its own"
        )
    # A MIG slice is never this training's alone, lock or not.
    named = [gpu.uuid for gpu in visible if gpu.uuid and not gpu.is_mig]
    gpu_lock = None
    if lock is not None and named:
        gpu_lock = lock(named)
    parts = [
        NvmlDevice(
            read_only=read_only,
            max_power_w=max_power_w / len(visible) if max_power_w else None,
            power_socket=power_socket,
            gpu=gpu,
            among=uuids,
            processes=processes,
            not_ours=not_ours,
            lock=gpu_lock,
        )
        for gpu in visible
    ]
    # A group of one would lose the names of its GPU's reasons.
    if len(parts) == 1:
        return parts[0]
    return DeviceGroup(parts)
