"""Which GPUs are the training's, of those that CUDA shows to this process: the first, or as many as it uses."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.nvml_library import ask

log = logging.getLogger(__name__)


class Gpu(NamedTuple):
    """A GPU as NVML lists it; ``handle`` None: it cannot be reached, ``problem`` says why."""

    handle: Any = None
    uuid: str | None = None
    model: str = "NVIDIA GPU of unknown name"
    is_mig: bool = False  # a slice of a GPU
    problem: str = ""


def find_gpu() -> Gpu:
    """The first GPU that ``CUDA_VISIBLE_DEVICES`` leaves visible. Raises DeviceError: there is none, and why."""
    return find_gpus(1)[0]


def find_gpus(count: int | None = None) -> list[Gpu]:
    """The first ``count`` GPUs that CUDA shows, fewer where it shows fewer. Raises DeviceError: there is none, and why.

    Without ``count``: those that ``CUDA_VISIBLE_DEVICES`` names, one where it is not set: the others are not ours.
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
    """Every GPU of this host as its driver counts them. Raises DeviceError: the driver does not tell."""
    count = ask("nvmlDeviceGetCount")
    if count.problem:
        raise DeviceError(count.problem)
    return [_listed(index) for index in range(count.value)]


def chosen_by_cuda(uuids: Sequence[str | None], visible: str | None) -> list[int | str]:
    """What ``CUDA_VISIBLE_DEVICES`` shows, in its order: positions in ``uuids``, and ids of MIG slices as they are.

    As CUDA reads it: ``GPU-`` ids may be cut short while they are unique, and the first entry that names nothing ends
    the list.
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
    return shown


def uuid_by_torch() -> str | None:
    """UUID of torch's current GPU; None where torch is not imported, has not begun to use CUDA, or cannot tell."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        return f"GPU-{cuda.get_device_properties(cuda.current_device()).uuid}".replace("GPU-GPU-", "GPU-")
    except Exception:  # an older torch, or CUDA after an error
        return None


def _listed(index: int) -> Gpu:
    handle = ask("nvmlDeviceGetHandleByIndex", index)
    return Gpu(problem=handle.problem) if handle.problem else _described(handle.value)


def _mig(uuid: str) -> Gpu:
    handle = ask("nvmlDeviceGetHandleByUUID", uuid)
    if handle.problem:
        return Gpu(problem=handle.problem)
    return _described(handle.value)._replace(uuid=uuid, is_mig=True)


def _described(handle: Any) -> Gpu:
    uuid, name = ask("nvmlDeviceGetUUID", handle), ask("nvmlDeviceGetName", handle)
    gpu = Gpu(handle, uuid.value)
    return gpu if name.problem else gpu._replace(model=name.value)


def _in_cuda_order(chosen: Sequence[int | str], here: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """The GPUs meant by numbers: CUDA counts by speed unless ``CUDA_DEVICE_ORDER`` says otherwise, NVML by bus."""
    gpus = [_mig(entry) if isinstance(entry, str) else here[entry] for entry in chosen]
    by_number = visible is None or not visible.strip().startswith(("GPU-", "MIG-"))
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in here}) == 1
    if not by_number or same_order or len(set(chosen)) == len(here):  # of all of them the order does not matter
        return gpus
    told = uuid_by_torch()
    meant = [gpu for gpu in here if told is not None and gpu.uuid == told]
    if len(gpus) == 1 and meant:
        return meant
    log.warning(
        "This host has GPUs of several models, which CUDA may number otherwise than NVML: Zeus measures %s, which may "
        "not be where the training is. Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to GPU-... ids.",
        ", ".join(str(gpu.uuid) for gpu in gpus),
    )
    return gpus
