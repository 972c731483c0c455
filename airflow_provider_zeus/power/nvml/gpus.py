"""The NVIDIA GPUs of a training on this host, one or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.group import DeviceGroup
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.visible import find_gpus


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
    :param max_power_w: MAXPOWER [W] of all GPUs together, where they do not report it.
    :param gpus: number of GPUs; default: those that ``CUDA_VISIBLE_DEVICES`` names, one where it is not set.
    :param processes: number of processes that train together on this host.
    :param lock: takes the lock of the GPUs with these UUIDs; may wait.
    """
    found = find_gpus(gpus)
    uuids, not_ours = [gpu.uuid for gpu in found], ""
    if gpus is not None and len(found) < gpus:
        not_ours = (
            f"{gpus} GPUs train together and this process sees {len(found)} of them: let CUDA_VISIBLE_DEVICES show "
            "every GPU of the host's training to each of its processes, and let each pick its own"
        )
    named = [gpu.uuid for gpu in found if gpu.uuid and not gpu.is_mig]
    held = lock(named) if lock is not None and named else None
    parts = [
        NvmlDevice(
            read_only=read_only,
            max_power_w=max_power_w / len(found) if max_power_w else None,
            power_socket=power_socket,
            gpu=gpu,
            among=uuids,
            processes=processes,
            not_ours=not_ours,
            lock=held,
        )
        for gpu in found
    ]
    return parts[0] if len(parts) == 1 else DeviceGroup(parts)
