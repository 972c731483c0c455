"""NVML in this process: initialised once, and again after a fork; its error codes as texts."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 2, 13, 15

_TEXTS = {
    1: "NVML is not initialised",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported by this GPU or driver",
    NO_PERMISSION: "no permission",
    6: "not found",
    9: "the NVIDIA driver is not loaded; load it (nvidia-smi must work), in a container give it the GPU (--gpus)",
    12: "libnvidia-ml.so.1 was not found; install the NVIDIA driver, in a container give it the GPU (--gpus)",
    FUNCTION_NOT_FOUND: "the driver is too old to know this call; update it",
    GPU_IS_LOST: "the GPU is lost; look at dmesg, reset it or reboot the host",
    16: "the GPU must be reset",
    17: "the operating system refused",
    18: "driver and library are of different versions; reboot the host",
    27: "the driver is not ready yet; try again in a minute, and look at dmesg if it stays so",
    999: "an unknown error of the driver",
}


class NvmlAnswer(NamedTuple):
    """An answer of NVML: ``value``, or, without one, ``code`` (-1: not an error of NVML) and ``problem``."""

    value: Any = None
    code: int = 0
    problem: str = ""


def ask(function: str, *arguments: Any) -> NvmlAnswer:
    """Call a function of NVML by its C name; never raises."""
    called = "nvmlInit"
    try:
        library, called = _library(), function
        return NvmlAnswer(getattr(library, function)(*arguments))
    except ModuleNotFoundError:
        return NvmlAnswer(None, -1, "the Python package nvidia-ml-py is not installed; install it")
    except Exception as error:  # NVMLError, and any error of a binding that does not fit its driver
        code = getattr(error, "value", -1)
        text = _TEXTS.get(code, f"error {code}") if code != -1 else repr(error)
        return NvmlAnswer(None, code, f"{called}: {text}")


_lock = threading.Lock()
_ready_in: int | None = None  # pid


def _library() -> Any:
    """The Python binding, initialised in this process. Raises ModuleNotFoundError, NVMLError."""
    global _ready_in
    import pynvml  # type: ignore[import-untyped]

    if _ready_in != os.getpid():
        with _lock:
            pynvml.nvmlInit()  # never shut down: other code of this process may have handles
            _ready_in = os.getpid()
    return pynvml


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that does not exist in the child may have held it


os.register_at_fork(after_in_child=_after_fork)
