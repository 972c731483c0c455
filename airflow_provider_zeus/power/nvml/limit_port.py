"""A GPU's power limit for the guardian: NVML by ctypes, since the guardian starts without site packages.

Where a helper sets limits, it also restores them; reading them needs no permission and is done here.
"""

from __future__ import annotations

import ctypes
from typing import Any

from airflow_provider_zeus.power.limits.helper import LimitHelper

LIBRARY = "libnvidia-ml.so.1"


class NvmlPort:
    """Reads and restores the limit of one GPU. Raises OSError where NVML, or the helper, does not answer."""

    def __init__(self, uuid: str, helper: LimitHelper | None = None) -> None:
        self._helper = helper
        if helper is not None:
            helper.check()
            helper.close()
        self._library = ctypes.CDLL(LIBRARY)
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def limit_w(self) -> float:
        """The power limit that is set [W]."""
        limit_mw = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerManagementLimit", self._handle, ctypes.byref(limit_mw))
        return limit_mw.value / 1000

    def set_limit_w(self, limit_w: float) -> None:
        """Restore the limit found [W]."""
        if self._helper is not None:
            self._helper.restore_w(limit_w)
            self._helper.close()
            return
        self._call("nvmlDeviceSetPowerManagementLimit", self._handle, ctypes.c_uint(round(limit_w * 1000)))

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise OSError(f"{LIBRARY} has no {function}") from error
        if code != 0:
            raise OSError(f"{function} failed with NVML error {code}")
