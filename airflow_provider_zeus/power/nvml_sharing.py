"""Whether a GPU is this training's alone: only then are its energy the training's and its limit ours to set."""

from __future__ import annotations

import sys
import time

from airflow_provider_zeus.power.gpu_lock import GpuLock
from airflow_provider_zeus.power.nvml_library import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Answer, ask
from airflow_provider_zeus.power.nvml_visible import Gpu

LEAVES_S = 10.0  # a process that ended is off its GPU by then

_ALONE = "train on a GPU of its own to have energy measured and power limits set"


def why_not_ours(gpu: Gpu, lock: GpuLock | None, processes: int = 1) -> str:
    """As :func:`why_shared`, and as the GPU's lock says. Once waited for, the training before has time to leave it."""
    if lock is None or lock.why_shared:
        return lock.why_shared if lock else why_shared(gpu, processes)
    until_s = time.monotonic() + (LEAVES_S if lock.waited else 0.0)
    while (why := why_shared(gpu, processes)) and time.monotonic() < until_s:
        time.sleep(0.2)
    return why


def why_shared(gpu: Gpu, processes: int = 1) -> str:
    """Why energy and limit are not the training's, in words; empty where they are.

    Processes are counted and their ids not looked at: NVML tells those of the host, which mean nothing in a container.

    :param processes: that train together on this host; each may have begun to use the GPU before this one looks.
    """
    if gpu.is_mig:
        return f"a MIG slice shares its GPU's energy counter and power limit with other slices: {_ALONE}"
    mig = ask("nvmlDeviceGetMigMode", gpu.handle)
    if not mig.problem and mig.value[0]:
        return f"the GPU is cut into MIG slices, which share its energy counter and power limit: {_ALONE}"
    if mig.problem and mig.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):  # as on GPUs and drivers without MIG
        return f"whether the GPU is cut into MIG slices is not known ({mig.problem}): {_ALONE}"
    running = _running(gpu)
    if running.code == NOT_SUPPORTED:
        return ""
    if running.problem:
        return f"whether other processes use the GPU is not known ({running.problem}): {_ALONE}"
    others = len(running.value) - (processes if processes > 1 else _ours())
    if others > 0:
        return f"{others} other process{'es use' if others > 1 else ' uses'} the GPU: {_ALONE}"
    return ""


def _running(gpu: Gpu) -> Answer:
    answer = ask("nvmlDeviceGetComputeRunningProcesses_v3", gpu.handle)
    if answer.code == FUNCTION_NOT_FOUND:  # drivers before 510
        return ask("nvmlDeviceGetComputeRunningProcesses_v2", gpu.handle)
    return answer


def _ours() -> int:
    """1 where this process has begun to use the GPU itself, as far as torch can tell."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return int(cuda is not None and cuda.is_initialized())
    except Exception:
        return 0
