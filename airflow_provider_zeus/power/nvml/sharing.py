"""Whether another process uses a GPU: only otherwise are its energy the training's and its limit ours to set."""

from __future__ import annotations

import time

from airflow_provider_zeus.power.limits.gpu_lock import ALONE, GpuLock
from airflow_provider_zeus.power.nvml.library import FUNCTION_NOT_FOUND, NOT_SUPPORTED, ask
from airflow_provider_zeus.power.nvml.visible import Gpu, torch_cuda

LEAVES_S = 10.0  # a process that ended is off its GPU by then


def why_not_ours(gpu: Gpu, lock: GpuLock | None, processes: int = 1) -> str:
    """As :func:`why_shared`, and by the GPU's lock. After waiting for the lock, the earlier training may take time to
    leave the GPU.
    """
    if lock is None or lock.why_shared:
        return lock.why_shared if lock else why_shared(gpu, processes)
    until_s = time.monotonic() + (LEAVES_S if lock.waited else 0.0)
    while (why := why_shared(gpu, processes)) and time.monotonic() < until_s:
        time.sleep(0.2)
    return why


def why_shared(gpu: Gpu, processes: int = 1) -> str:
    """Why the GPU's energy and limit are not the training's alone; empty where they are.

    Processes are counted without their ids: NVML reports those of the host, which mean nothing in a container.

    :param processes: number of processes that train together on this host; any of them may use the GPU already.
    """
    if gpu.is_mig:
        return f"a MIG slice shares its GPU's energy counter and power limit with other slices: {ALONE}"
    mig = ask("nvmlDeviceGetMigMode", gpu.handle)
    if not mig.problem and mig.value[0]:
        return f"the GPU is cut into MIG slices, which share its energy counter and power limit: {ALONE}"
    if mig.problem and mig.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):  # as on GPUs and drivers without MIG
        return f"whether the GPU is cut into MIG slices is not known ({mig.problem}): {ALONE}"
    running = ask("nvmlDeviceGetComputeRunningProcesses_v3", gpu.handle)
    if running.code == FUNCTION_NOT_FOUND:  # drivers before 510
        running = ask("nvmlDeviceGetComputeRunningProcesses_v2", gpu.handle)
    if running.code == NOT_SUPPORTED:
        return ""
    if running.problem:
        return f"whether other processes use the GPU is not known ({running.problem}): {ALONE}"
    ours = processes if processes > 1 else int(torch_cuda() is not None)
    others = len(running.value) - ours
    if others > 0:
        return f"{others} other process{'es use' if others > 1 else ' uses'} the GPU: {ALONE}"
    return ""
