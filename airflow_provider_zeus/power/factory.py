"""Opens the device that a job names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.device import Device, NoneDevice
from airflow_provider_zeus.power.group import DeviceGroup
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.simulated.gpu import PREFIX, open_simulated, take_simulated

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
    """Open the device of a job; see :func:`open_device`. Raises JobSpecError for an unknown one.

    With ``gpu_lock="wait"``, wait at most ``gpu_lock_wait_s`` seconds for GPUs that another training of this host uses.

    :param gpus_held: UUIDs of GPUs whose lock the parent process holds for this training.
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
        gpus_held=gpus_held,
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
    gpus_held: Collection[str] = (),
) -> Device:
    """Open ``auto``, ``nvml``, ``rapl``, ``none`` or ``simulated:<gpu>/<load>``.

    ``auto`` is the best real source of this host: an NVIDIA GPU, else the processors' counters where they can be read,
    else the estimate where ``cpu_watts`` is set, else none.

    :param state_dir: folder of the state of simulated devices; a path of the host, shared by its processes.
    :param max_power_w: MAXPOWER of Eq. 2 [W], used where the device does not report it.
    :param cpu_watts: power of one busy CPU core [W].
    :param read_only: never set a limit on a real GPU.
    :param power_socket: socket of the helper that sets limits of real GPUs; empty: this process sets them.
    :param gpus: number of this host's GPUs that train together; default: one per process; for a single process, those
        that it is shown.
    :param processes: number of processes that train together on this host; this one measures for all of them.
    :param hosts: number of hosts that train together.
    :param lock: takes the lock of the GPUs with these UUIDs; None: no lock is taken. A simulated GPU is not waited
        for: each training gets one of its own.
    :param gpus_held: UUIDs of simulated GPUs that the parent process has taken for this training.

    Raises JobSpecError: the name is unknown, or this host has no such device.
    """
    gpus = gpus or (processes if processes > 1 else None)
    if name.startswith(PREFIX):
        count = gpus or 1
        if lock is None:
            simulated = [open_simulated(name, state_dir, number) for number in range(1, count + 1)]
        else:
            simulated = take_simulated(name, state_dir, count, gpus_held)
        return simulated[0] if count * hosts == 1 else DeviceGroup(simulated, count * hosts)
    if name == "none":
        return NoneDevice(max_power_w)
    if name not in ("auto", "nvml", "rapl"):
        known = f"use 'auto', 'nvml', 'rapl', 'none' or '{PREFIX}<gpu>/<load>'"
        raise JobSpecError.of("ZeusJob.device", name, "unknown device", known)
    from airflow_provider_zeus.power.nvml.gpu import open_nvml

    nvml = partial(open_nvml, read_only=read_only, max_power_w=max_power_w, power_socket=power_socket)
    reasons = []
    for kind, opened in (
        ("nvml", partial(nvml, gpus=gpus, processes=processes, lock=lock)),
        ("rapl", partial(_moving_rapl, max_power_w)),
    ):
        try:
            if name in (kind, "auto"):
                return opened()
        except DeviceError as error:
            if name == kind:
                raise JobSpecError.of("ZeusJob.device", name, str(error), "Or use 'auto' to do without") from error
            reasons.append(str(error))
    if cpu_watts is not None:
        from airflow_provider_zeus.power.cpu import EstimateDevice

        return EstimateDevice(cpu_watts, max_power_w, with_siblings=processes > 1)
    why = f"no source of energy. {'; '.join(reasons)}; or set [zeus] cpu_watts for an estimate"
    return NoneDevice(max_power_w, why=why)


def _moving_rapl(max_power_w: float | None) -> Device:
    """The processors' counters. Raises DeviceError where they cannot be read, or stand still as on some hosts."""
    from airflow_provider_zeus.power.cpu import RaplDevice
    from airflow_provider_zeus.power.polling import moves

    device = RaplDevice(max_power_w)
    if moves(device.energy_j):
        return device
    device.close()
    raise DeviceError("the processors' energy counters stand still")
