"""NVML in this process: initialised once, and again after a fork; its errors as texts, never raised."""

from __future__ import annotations

import os
import threading
from ctypes import Array, byref, c_uint, c_ulonglong, c_void_p
from typing import Any, NamedTuple

from airflow_provider_zeus.power.limits.sidecar_server import INSUFFICIENT_SIZE, Nvml, NvmlError

_WRITES = {  # function -> what it writes behind its arguments; all others one unsigned int
    "nvmlDeviceGetHandleByIndex_v2": (c_void_p,),
    "nvmlDeviceGetHandleByUUID": (c_void_p,),
    "nvmlDeviceGetTotalEnergyConsumption": (c_ulonglong,),
    "nvmlDeviceGetPowerManagementLimitConstraints": (c_uint, c_uint),
    "nvmlDeviceGetMigMode": (c_uint, c_uint),
    "nvmlDeviceGetUtilizationRates": (c_uint * 2,),
    "nvmlDeviceSetPowerManagementLimit": (),
}


class NvmlAnswer(NamedTuple):
    """An answer of NVML: ``value``, or, without one, ``code`` (-1: not an error of NVML) and ``problem``."""

    value: Any = None
    code: int = 0
    problem: str = ""


def ask(function: str, *arguments: Any) -> NvmlAnswer:
    """Call a function of NVML by its C name; never raises.

    The value is a number or a handle, a tuple where the function writes several numbers, a text for names, and the
    number of processes for a list of them.
    """
    global _nvml
    try:
        if _nvml is None or _nvml[0] != os.getpid():
            with _lock:
                _nvml = os.getpid(), Nvml()
        return NvmlAnswer(_read(_nvml[1], function, arguments))
    except NvmlError as error:
        return NvmlAnswer(None, error.code, str(error))
    except OSError:
        remedy = "install the NVIDIA driver, in a container give it the GPU (--gpus)"
        return NvmlAnswer(None, 12, f"nvmlInit: libnvidia-ml.so.1 was not found; {remedy}")
    except Exception as error:  # of a binding that does not fit its driver
        return NvmlAnswer(None, -1, f"{function}: {error!r}")


def _read(nvml: Nvml, function: str, arguments: tuple[Any, ...]) -> Any:
    if function in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlSystemGetDriverVersion"):
        return nvml.text(function, *arguments)
    if function.startswith("nvmlDeviceGetComputeRunningProcesses"):
        count = c_uint(0)  # room for none: it answers how many there are
        try:
            nvml.call(function, *arguments, byref(count), None)
        except NvmlError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
        return count.value
    given = [each.encode() if isinstance(each, str) else each for each in arguments]
    written = nvml.call(function, *given, writes=_WRITES.get(function, (c_uint,)))
    values = [tuple(each) if isinstance(each, Array) else getattr(each, "value", each) for each in written]
    if written and isinstance(written[0], c_void_p):  # a handle goes into other calls as it is
        return written[0]
    return values[0] if len(values) == 1 else tuple(values)


_lock = threading.Lock()
_nvml: tuple[int, Nvml] | None = None  # the process that initialised it, and the binding


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that does not exist in the child may have held it


os.register_at_fork(after_in_child=_after_fork)
