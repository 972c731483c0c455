"""Finds the training's GPUs among those that CUDA shows to this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.power.limits.gpu_lock import ALONE, GpuLock
from airflow_provider_zeus.power.limits.sidecar_server import FUNCTION_NOT_FOUND, NOT_SUPPORTED
from airflow_provider_zeus.power.nvml.library import NOT_NVML, NvmlAnswer, ask

log = guarded_log(__name__)


class Gpu(NamedTuple):
    """A GPU as NVML lists it; where ``handle`` is None it cannot be reached, and ``problem`` has the reason."""

    handle: Any = None
    uuid: str | None = None
    model: str = "NVIDIA GPU of unknown name"
    is_mig: bool = False  # a slice of a GPU
    problem: str = ""


def find_gpus(count: int | None = None) -> list[Gpu]:
    """The first ``count`` GPUs that CUDA shows, or fewer. Raises DeviceError with the reason: there is none.

    Without ``count``: those that ``CUDA_VISIBLE_DEVICES`` names; one GPU where it is not set.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        raise DeviceError("CUDA_VISIBLE_DEVICES is empty, which hides every GPU; unset it to use one")
    here = all_gpus()
    shown = chosen_by_cuda([gpu.uuid for gpu in here], visible)
    if not shown:
        hidden = "NVML lists no GPU" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU"
        listed = ", ".join(gpu.uuid or gpu.problem for gpu in here) or "none"
        raise DeviceError(f"{hidden} (here: {listed}); give this process one, in a container by --gpus")
    if count is None:
        count = 1 if visible is None else len(shown)
    gpus = _in_cuda_order(shown[:count], here, visible)
    for gpu in gpus:
        if gpu.problem:
            raise DeviceError(gpu.problem)
    if len(shown) > count:
        used = "the first" if count == 1 else f"the first {count}"
        log.info("%d GPUs are visible; Zeus measures %s, %s.", len(shown), used, ", ".join(str(g.uuid) for g in gpus))
    return gpus


def all_gpus() -> list[Gpu]:
    """Every GPU of this host in the driver's order. Raises DeviceError with the driver's answer: they are not known."""
    count = ask("nvmlDeviceGetCount")
    if count.problem:
        raise DeviceError(count.problem)
    return [_gpu("nvmlDeviceGetHandleByIndex", index) for index in range(count.value)]


def chosen_by_cuda(uuids: Sequence[str | None], visible: str | None) -> list[int | str]:
    """Parse ``CUDA_VISIBLE_DEVICES``: positions in ``uuids``, and ids of MIG slices unchanged, in its order.

    By CUDA's rules: ``GPU-`` ids may be abbreviated while they are unique, and the first invalid entry ends the list.
    A GPU that is named twice counts once: its energy is that of one.
    """
    if visible is None:
        return list(range(len(uuids)))
    shown: list[int | str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            shown.append(entry)
            continue
        if entry.startswith("GPU-"):
            meant = [i for i, uuid in enumerate(uuids) if uuid and uuid.lower().startswith(entry.lower())]
        else:
            meant = [int(entry)] if entry.isdecimal() and int(entry) < len(uuids) else []
        if len(meant) != 1:
            break
        shown += meant
    return list(dict.fromkeys(shown))


def torch_cuda() -> Any | None:
    """``torch.cuda`` where this process uses it already; None otherwise. Imports and initialises nothing."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:
        return None


def uuid_by_torch(index: int | None = None) -> str | None:
    """UUID of torch's GPU of this index, or of its current one; None where torch uses no CUDA yet, or does not know."""
    cuda = torch_cuda()
    if cuda is None:
        return None
    try:
        named = cuda.get_device_properties(cuda.current_device() if index is None else index).uuid
    except Exception:  # an older torch, or CUDA after an error
        return None
    return f"GPU-{named}".replace("GPU-GPU-", "GPU-")


def uuids_by_torch() -> set[str | None]:
    """UUIDs of the GPUs on which this process holds memory by torch; of its current one where it holds none."""
    cuda: Any = torch_cuda()
    found = set[str | None]()
    try:
        for index in range(cuda.device_count() if cuda else 0):
            if cuda.memory_reserved(index):  # asking for it makes no context there
                found.add(uuid_by_torch(index))
    except Exception as error:
        log.debug("torch does not tell where it holds memory: %r", error)
    return found or {uuid_by_torch()}


def _gpu(function: str, key: int | str) -> Gpu:
    """The GPU, or MIG slice, that a function of NVML finds by its index or UUID."""
    handle = ask(function, key)
    if handle.problem:
        return Gpu(problem=handle.problem)
    uuid, name = ask("nvmlDeviceGetUUID", handle.value), ask("nvmlDeviceGetName", handle.value)
    if uuid.code == NOT_NVML:  # of a wrong binding, of which nothing can be trusted
        return Gpu(problem=uuid.problem)
    gpu = Gpu(handle.value, uuid.value)
    return gpu if name.problem else gpu._replace(model=name.value)


def _in_cuda_order(chosen: Sequence[int | str], here: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """The chosen GPUs: CUDA numbers them by speed unless ``CUDA_DEVICE_ORDER`` is set, NVML by bus."""
    gpus = [
        _gpu("nvmlDeviceGetHandleByUUID", entry)._replace(uuid=entry, is_mig=True)
        if isinstance(entry, str)
        else here[entry]
        for entry in chosen
    ]
    by_number = visible is None or not visible.strip().startswith(("GPU-", "MIG-"))
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in here}) == 1
    if not by_number or same_order or len(set(chosen)) == len(here):  # when all are chosen, their order does not matter
        return gpus
    by_torch = uuid_by_torch()
    used = [gpu for gpu in here if by_torch is not None and gpu.uuid == by_torch]
    if len(gpus) == 1 and used:
        return used
    log.warning(
        "This host has GPUs of several models, which CUDA and NVML may number differently: Zeus measures %s, which may "
        "not be where the training is. Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to GPU-... ids.",
        ", ".join(str(gpu.uuid) for gpu in gpus),
    )
    return gpus


def why_not_ours(gpu: Gpu, lock: GpuLock | None, processes: int = 1) -> str:
    """As :func:`why_shared`, and by the GPU's lock. After waiting for the lock, the earlier training may take time to
    leave the GPU.
    """
    if lock is None or lock.why_shared:
        return lock.why_shared if lock else why_shared(gpu, processes)
    leaves_s = 10.0  # a process that ended is off its GPU by then
    until_s = time.monotonic() + (leaves_s if lock.waited else 0.0)
    while (why := why_shared(gpu, processes)) and time.monotonic() < until_s:
        time.sleep(0.2)
    return why


def computing_on(handle: Any) -> NvmlAnswer:
    """The processes that compute on a GPU, as NVML lists them."""
    running = ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if running.code == FUNCTION_NOT_FOUND:  # drivers before 510
        running = ask("nvmlDeviceGetComputeRunningProcesses_v2", handle)
    return running


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
    running = computing_on(gpu.handle)
    if running.code == NOT_SUPPORTED:
        return ""
    if running.problem:
        return f"whether other processes use the GPU is not known ({running.problem}): {ALONE}"
    ours = processes if processes > 1 else int(torch_cuda() is not None)
    others = len(running.value) - ours
    if others > 0:
        return f"{others} other process{'es use' if others > 1 else ' uses'} the GPU: {ALONE}"
    return ""
