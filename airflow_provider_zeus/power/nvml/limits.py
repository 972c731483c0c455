"""Setting a GPU's power limit and checking that it is in force; the grid of limits to profile."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.limits.helpers import LimitHelper
from airflow_provider_zeus.power.limits.sidecar_server import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SAME_W,
)
from airflow_provider_zeus.power.nvml.library import NvmlAnswer

TAKES_EFFECT_S = 0.5  # a limit is in force this long after it was set

_MEASURE = "set mode='measure'"


def set_limit_w(
    gpu: Callable[..., NvmlAnswer], limit_w: float, limits: LimitRange, helper: LimitHelper | None = None
) -> str:
    """Set the power limit [W] and wait until it is in force. Raises DeviceError.

    :param gpu: calls NVML for the GPU: name of the function, further arguments.
    :param helper: sets the limit for this process, which may not.

    Returns a sentence for the log where it is unknown whether the limit is in force, else an empty text.
    """
    what = f"power limit = {limit_w:g} W"
    out_of_range = DeviceError(f"{what}: out of range. Use {limits.min_w:g} to {limits.max_w:g} W.")
    if not limits.min_w - SAME_W < limit_w < limits.max_w + SAME_W:
        raise out_of_range
    remedies = {
        NO_PERMISSION: f"Run as root or with CAP_SYS_ADMIN, name a helper by [zeus] power_socket, or {_MEASURE}.",
        NOT_SUPPORTED: "Limits of this GPU cannot be set: use mode='measure'.",
        GPU_IS_LOST: f"Until then {_MEASURE}.",
    }
    if helper is not None:
        try:
            helper.set_limit_w(limit_w)
        except OSError as error:
            raise DeviceError(f"{what}: {error}. If it persists {_MEASURE}.") from error
    else:
        answer = gpu("nvmlDeviceSetPowerManagementLimit", round(limit_w * 1000))
        if answer.code == INVALID_ARGUMENT:
            raise out_of_range
        if answer.problem:
            raise DeviceError(f"{what}: {answer.problem}. {remedies.get(answer.code, f'If it persists {_MEASURE}.')}")
    return _wait_in_force(gpu, limit_w, what)


def _wait_in_force(gpu: Callable[..., NvmlAnswer], limit_w: float, what: str) -> str:
    """Read the limit back. A limit in force below the one set is no error: there may be another cap."""
    until_s = time.monotonic() + TAKES_EFFECT_S
    while True:
        in_force, present = gpu("nvmlDeviceGetEnforcedPowerLimit"), gpu("nvmlDeviceGetPowerManagementLimit")
        failed = next((answer for answer in (in_force, present) if answer.problem), None)
        if failed is not None:
            is_expected = failed.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
            return "" if is_expected else f"Whether a power limit took effect is not known. {failed.problem}."
        in_force_w, set_w = in_force.value / 1000, present.value / 1000
        if in_force_w < limit_w + SAME_W and abs(set_w - limit_w) < SAME_W:
            return ""
        if time.monotonic() > until_s:
            raise DeviceError(
                f"{what}: the driver took it, but {in_force_w:g} W is in force. Use higher limits (power_limits_w), "
                f"stop what else sets limits, or {_MEASURE}."
            )
        time.sleep(0.02)


def grid_step_w(width_w: float) -> float:
    """Distance [W] of the limits to profile on a range of this width: 25 W, more on wide ranges (at most 11 limits)."""
    narrow_w = 75.0
    if width_w < narrow_w:
        return 10.0
    most_limits = 11
    steps_w = (25, 30, 40, 50, 60, 75, 80, 100, 120, 150, 200, 250)
    return float(next((step for step in steps_w if width_w < step * most_limits), steps_w[-1]))
