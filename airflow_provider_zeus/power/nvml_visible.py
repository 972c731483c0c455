"""Which GPU is the training's: the first one that CUDA shows to this process."""

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
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        raise DeviceError("CUDA_VISIBLE_DEVICES is empty, which hides every GPU; unset it to use one")
    gpus = all_gpus()
    shown = chosen_by_cuda([gpu.uuid for gpu in gpus], visible)
    if not shown:
        hidden = "NVML lists no GPU" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU"
        here = ", ".join(gpu.uuid or gpu.problem for gpu in gpus) or "none"
        raise DeviceError(f"{hidden} (here: {here}); give this process one, in a container by --gpus")
    gpu = _mig(shown[0]) if isinstance(shown[0], str) else _in_cuda_order(shown[0], gpus, visible)
    if gpu.problem:
        raise DeviceError(gpu.problem)
    if len(shown) > 1:
        log.info("%d GPUs are visible; Zeus measures the first, %s.", len(shown), gpu.uuid)
    return gpu


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


def _in_cuda_order(first: int, gpus: Sequence[Gpu], visible: str | None) -> Gpu:
    """The GPU meant by a number: CUDA counts by speed unless ``CUDA_DEVICE_ORDER`` says otherwise, NVML by bus."""
    by_number = visible is None or not visible.strip().startswith("GPU-")
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) == 1
    if not by_number or same_order:
        return gpus[first]
    told = uuid_by_torch()
    for gpu in gpus:
        if told is not None and gpu.uuid == told:
            return gpu
    log.warning(
        "This host has GPUs of several models, which CUDA may number otherwise than NVML: Zeus measures %s, which may "
        "not be the one that trains. Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to its GPU-... id.",
        gpus[first].uuid,
    )
    return gpus[first]
