"""Finds the training's GPUs among those that CUDA shows to this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.power.limits.driver import FUNCTION_NOT_FOUND, NOT_SUPPORTED
from airflow_provider_zeus.power.limits.gpu_lock import ALONE, GpuLock
from airflow_provider_zeus.power.nvml.library import NOT_NVML, NvmlAnswer, ask

log = guarded_log(__name__)


class Gpu(NamedTuple):
    """A GPU as NVML lists it; if ``handle`` is None it cannot be reached, and ``problem`` has the
    reason.
    """

    handle: Any = None
    uuid: str | None = None
    model: str = "NVIDIA GPU of unknown name"
    is_mig: bool = False  # a slice has no energy counter of its own
    problem: str = ""


def find_gpus(count: int | None = None) -> list[Gpu]:
    """The first ``count`` GPUs that CUDA shows, or fewer. Raises DeviceError with the reason: there
    is none.

    Without ``count``: those that ``CUDA_VISIBLE_DEVICES`` names; one GPU if it is not set.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # An empty variable hides all GPUs, which is mostly a mistake.
    if visible is not None and not visible.strip():
        raise DeviceError(
            "CUDA_VISIBLE_DEVICES is empty, which hides every GPU; unset it to use one"
        )
    here = all_gpus()
    shown = chosen_by_cuda([gpu.uuid for gpu in here], visible)
    if not shown:
        hidden = "NVML lists no GPU"
        if visible is not None:
            hidden = f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU"
        names = [gpu.uuid or gpu.problem for gpu in here]
        listed = ", ".join(names) or "none"
        raise DeviceError(
            f"{hidden} (here: {listed}); give this process one, in a container by --gpus"
        )
    if count is None:
        count = 1 if visible is None else len(shown)
    gpus = _in_cuda_order(shown[:count], here, visible)
    for gpu in gpus:
        if gpu.problem:
            raise DeviceError(gpu.problem)
    if len(shown) > count:
        used = "the first" if count == 1 else f"the first {count}"
        log.info(
            "%d GPUs are visible; Zeus measures %s, %s.",
            len(shown),
            used,
            ", ".join(str(g.uuid) for g in gpus),
        )
    return gpus


def all_gpus() -> list[Gpu]:
    """Every GPU of this host in the driver's order.

    Raises DeviceError with the driver's answer: they are not known.
    """
    count = ask("nvmlDeviceGetCount")
    if count.problem:
        raise DeviceError(count.problem)
    return [_gpu("nvmlDeviceGetHandleByIndex", index) for index in range(count.value)]


def chosen_by_cuda(uuids: Sequence[str | None], visible: str | None) -> list[int | str]:
    """Parse ``CUDA_VISIBLE_DEVICES``: positions in ``uuids``, and ids of MIG slices unchanged, in
    its order.

    By CUDA's rules: ``GPU-`` ids may be abbreviated while they are unique, and the first invalid
    entry ends the list. A GPU that is named twice counts once: its energy is that of one.
    """
    if visible is None:
        return list(range(len(uuids)))
    shown: list[int | str] = []
    names = [str(uuid).lower() for uuid in uuids]
    for entry in map(str.strip, visible.split(",")):
        if entry.startswith("MIG-"):
            shown.append(entry)
            continue
        meant: list[int] = []
        if entry.startswith("GPU-"):
            meant = [i for i, name in enumerate(names) if name.startswith(entry.lower())]
        elif entry.isdecimal() and int(entry) < len(uuids):
            meant = [int(entry)]
        if len(meant) != 1:  # CUDA, too, shows nothing behind such an entry
            break
        shown += meant
    return list(dict.fromkeys(shown))


def torch_cuda() -> Any | None:
    """``torch.cuda`` if this process uses it already; None otherwise.

    Imports and initialises nothing.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # of any kind, by a torch that is only half imported
        return None


def uuid_by_torch(index: int | None = None) -> str | None:
    """UUID of torch's GPU of this index, or of its current one; None if torch uses no CUDA yet, or
    does not know.
    """
    cuda = torch_cuda()
    if cuda is None:
        return None
    try:
        if index is None:
            index = cuda.current_device()
        named = cuda.get_device_properties(index).uuid
    except Exception:  # of any kind: an older torch, or CUDA after an error
        return None
    return f"GPU-{named}".replace("GPU-GPU-", "GPU-")


def uuids_by_torch() -> set[str | None]:
    """UUIDs of the GPUs on which this process holds memory by torch; of its current one if it holds
    none.
    """
    cuda = torch_cuda()
    if cuda is None:
        return {None}
    uuids = set[str | None]()
    try:
        for index in range(cuda.device_count()):
            if cuda.memory_reserved(index):  # asking for it makes no context there
                uuids.add(uuid_by_torch(index))
    except Exception as error:
        log.debug("torch does not tell where it holds memory: %r", error)
    return uuids or {uuid_by_torch()}


def _gpu(function: str, key: int | str) -> Gpu:
    """The GPU, or MIG slice, that a function of NVML finds by its index or UUID."""
    handle = ask(function, key)
    if handle.problem:
        return Gpu(problem=handle.problem)
    uuid = ask("nvmlDeviceGetUUID", handle.value)
    name = ask("nvmlDeviceGetName", handle.value)
    if uuid.code == NOT_NVML:  # of a wrong binding, of which nothing can be trusted
        return Gpu(problem=uuid.problem)
    gpu = Gpu(handle.value, uuid.value)
    if name.problem:
        return gpu
    return gpu._replace(model=name.value)


def _in_cuda_order(
    chosen: Sequence[int | str], here: Sequence[Gpu], visible: str | None
) -> list[Gpu]:
    """The chosen GPUs. CUDA numbers by speed unless ``CUDA_DEVICE_ORDER`` is set, NVML by bus."""
    gpus = [_chosen_gpu(entry, here) for entry in chosen]
    by_id = visible is not None and visible.strip().startswith(("GPU-", "MIG-"))
    if by_id or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return gpus
    # Of one model, or when all are chosen, their order does not matter.
    models = {gpu.model for gpu in here}
    if len(models) == 1 or len(set(chosen)) == len(here):
        return gpus
    by_torch = uuid_by_torch()
    if len(gpus) == 1 and by_torch is not None:
        for gpu in here:
            if gpu.uuid == by_torch:
                return [gpu]
    log.warning(
        "This host has GPUs of several models, which CUDA and NVML may number differently: Zeus "
        "measures %s, which may not be where the training is. Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or "
        "CUDA_VISIBLE_DEVICES to GPU-... ids.",
        ", ".join(str(gpu.uuid) for gpu in gpus),
    )
    return gpus


def _chosen_gpu(entry: int | str, here: Sequence[Gpu]) -> Gpu:
    """The GPU at a position, or the MIG slice of an id."""
    if isinstance(entry, int):
        return here[entry]
    return _gpu("nvmlDeviceGetHandleByUUID", entry)._replace(uuid=entry, is_mig=True)


def why_not_ours(gpu: Gpu, lock: GpuLock | None, processes: int = 1) -> str:
    """As :func:`why_shared`, and by the GPU's lock. After waiting for the lock, the earlier
    training may take time to leave the GPU.
    """
    if lock is None:
        return why_shared(gpu, processes)
    if lock.why_shared:
        return lock.why_shared
    until_s = time.monotonic()
    if lock.waited:
        until_s += 10.0  # a process that ended is off its GPU by then
    why = why_shared(gpu, processes)
    while why and time.monotonic() < until_s:
        time.sleep(0.2)
        why = why_shared(gpu, processes)
    return why


def computing_on(handle: Any) -> NvmlAnswer:
    """The processes that compute on a GPU, as NVML lists them."""
    running = ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if running.code == FUNCTION_NOT_FOUND:  # drivers before 510 know this version alone
        running = ask("nvmlDeviceGetComputeRunningProcesses_v2", handle)
    return running


def why_shared(gpu: Gpu, processes: int = 1) -> str:
    """Why the GPU's energy and limit are not the training's alone; empty if they are.

    Processes are counted without their ids: NVML reports those of the host, which mean nothing in a
    container.

    :param processes: number of processes that train together on this host; any of them may use the
        GPU already.
    """
    shares = "its energy counter and power limit"
    if gpu.is_mig:
        return (
            "a MIG slice shares its GPU's energy counter and power limit with other slices: "
            f"{ALONE}"
        )
    mig = ask("nvmlDeviceGetMigMode", gpu.handle)
    if not mig.problem:
        if mig.value[0]:
            return f"the GPU is cut into MIG slices, which share {shares}: {ALONE}"
    # A GPU or a driver that knows no MIG answers with these two codes, and has no slices.
    elif mig.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        return f"whether the GPU is cut into MIG slices is not known ({mig.problem}): {ALONE}"
    running = computing_on(gpu.handle)
    if running.code == NOT_SUPPORTED:
        return ""
    if running.problem:
        return f"whether other processes use the GPU is not known ({running.problem}): {ALONE}"
    # A process of ours counts once it uses the GPU; of several any may do so already.
    ours = processes if processes > 1 else int(torch_cuda() is not None)
    # NVML gives ids of the host, which mean nothing in a container: only their number counts.
    others = len(running.value) - ours
    if others <= 0:
        return ""
    use = "process uses" if others == 1 else "processes use"
    return f"{others} other {use} the GPU: {ALONE}"
