"""NVIDIA's driver library, called by ctypes: for processes that set and give back limits, which
have no binding.

Its errors have their texts here, for all who call it. Python 3.9 or newer, standard library only:
the sidecar runs with this file on hosts that have nothing else.
"""

from __future__ import annotations

import ctypes
from typing import Any

INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
NVML_ERRORS = {
    1: "NVML is not initialised",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported by this GPU or driver",
    NO_PERMISSION: "no permission",
    6: "not found",
    9: "the NVIDIA driver is not loaded; load it (nvidia-smi must work), in a container give it "
    "the GPU (--gpus)",
    12: "libnvidia-ml.so.1 was not found; install the NVIDIA driver, in a container give it the "
    "GPU (--gpus)",
    FUNCTION_NOT_FOUND: "the driver is too old to know this call; update it",
    GPU_IS_LOST: "the GPU is lost; look at dmesg, reset it or reboot the host",
    16: "the GPU must be reset",
    17: "the operating system refused",
    18: "driver and library are of different versions; reboot the host",
    27: "the driver is not ready yet; try again in a minute, and look at dmesg if it stays so",
    999: "an unknown error of the driver",
}


class NvmlError(OSError):
    """An error that the driver returned: ``code`` is NVML's number."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function.partition('_')[0]}: {NVML_ERRORS.get(code, f'error {code}')}")
        self.code = code


class Nvml:
    """NVIDIA's driver library.

    Raises NvmlError if it returns an error, OSError if this host has none.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")  # never shut down: other code of this process may have handles

    def call(self, function: str, *arguments: Any, writes: tuple[Any, ...] = ()) -> list[Any]:
        """Call a function by its C name; returns a ctypes object of each kind in ``writes``."""
        written = [kind() for kind in writes]
        try:
            code = getattr(self._library, function)(*arguments, *map(ctypes.byref, written))
        except AttributeError:
            code = FUNCTION_NOT_FOUND  # NVML's own code for it, so callers need no second case
        if code != 0:
            raise NvmlError(code, function)
        return written

    def text(self, function: str, *arguments: Any) -> str:
        """Call a function that writes a text, such as a UUID."""
        # NVML_DEVICE_UUID_V2_BUFFER_SIZE: a driver refuses a buffer that is too short.
        buffer = ctypes.create_string_buffer(96)
        self.call(function, *arguments, buffer, ctypes.c_uint(96))
        return buffer.value.decode()

    def handle(self, gpu: str | int) -> ctypes.c_void_p:
        """The handle of a GPU, by its UUID or its index."""
        function = "nvmlDeviceGetHandleByUUID"
        argument: Any = str(gpu).encode()
        if isinstance(gpu, int):
            function = "nvmlDeviceGetHandleByIndex_v2"
            argument = ctypes.c_uint(gpu)
        (handle,) = self.call(function, argument, writes=(ctypes.c_void_p,))
        return handle  # type: ignore[no-any-return]

    def limit_w(self, uuid: str) -> float:
        """The power limit that is set [W]."""
        (limit_mw,) = self.call(
            "nvmlDeviceGetPowerManagementLimit", self.handle(uuid), writes=(ctypes.c_uint,)
        )
        return float(limit_mw.value / 1000)

    def range_w(self, uuid: str) -> tuple[float, float]:
        """Lowest and highest limit of the driver [W]."""
        function = "nvmlDeviceGetPowerManagementLimitConstraints"
        low, high = self.call(function, self.handle(uuid), writes=2 * (ctypes.c_uint,))
        return low.value / 1000, high.value / 1000

    def set_limit_w(self, uuid: str, limit_w: float) -> None:
        """Set the power limit [W]."""
        self.call(
            "nvmlDeviceSetPowerManagementLimit",
            self.handle(uuid),
            ctypes.c_uint(round(limit_w * 1000)),
        )
