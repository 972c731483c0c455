"""Setting a GPU's power limit by NVML and seeing that it took; which limits to profile."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.helper import Helper
from airflow_provider_zeus.power.nvml_library import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Answer,
)
from airflow_provider_zeus.power.record import SAME_W

TAKES_EFFECT_S = 0.5  # a limit that was set is in force by then

_MEASURE = "set mode='measure'"
_REMEDIES = {
    NO_PERMISSION: f"Run as root or with CAP_SYS_ADMIN, name a helper by [zeus] power_socket, or {_MEASURE}.",
    NOT_SUPPORTED: "Limits of this GPU cannot be set: use mode='measure'.",
    GPU_IS_LOST: f"Until then {_MEASURE}.",
}
_STEPS_W = (25, 30, 40, 50, 60, 75, 80, 100, 120, 150, 200, 250)
_MOST_LIMITS = 11
_NARROW_W = 75.0


def set_limit_w(gpu: Callable[..., Answer], limit_w: float, limits: LimitRange, helper: Helper | None = None) -> str:
    """Set the power limit [W]; a sentence where nobody can tell whether it is in force. Raises DeviceError.

    :param gpu: asks NVML about the GPU: name of the function, further arguments.
    :param helper: sets it in place of this process, which may not.
    """
    named = f"power limit = {limit_w:g} W"
    out_of_range = DeviceError(f"{named}: out of range. Use {limits.min_w:g} to {limits.max_w:g} W.")
    if not limits.min_w - SAME_W < limit_w < limits.max_w + SAME_W:
        raise out_of_range
    if helper is not None:
        _set_by(helper, limit_w, named)
        return _seen_in_force(gpu, limit_w, named)
    answer = gpu("nvmlDeviceSetPowerManagementLimit", round(limit_w * 1000))
    if answer.code == INVALID_ARGUMENT:
        raise out_of_range
    if answer.problem:
        raise DeviceError(f"{named}: {answer.problem}. {_REMEDIES.get(answer.code, f'If it persists {_MEASURE}.')}")
    return _seen_in_force(gpu, limit_w, named)


def _set_by(helper: Helper, limit_w: float, named: str) -> None:
    try:
        helper.set_limit_w(limit_w)
    except OSError as error:
        raise DeviceError(f"{named}: {error}. If it persists {_MEASURE}.") from error


def grid_step_w(wide_w: float) -> float:
    """Distance [W] of the limits to profile on a range so wide: 25 W, more on wide ranges, for at most 11 limits."""
    if wide_w < _NARROW_W:
        return 10.0
    return float(next((step for step in _STEPS_W if wide_w < step * _MOST_LIMITS), _STEPS_W[-1]))


def _seen_in_force(gpu: Callable[..., Answer], limit_w: float, named: str) -> str:
    """Read back. A limit in force below the one set is no error: another cap may hold as well."""
    until_s = time.monotonic() + TAKES_EFFECT_S
    while True:
        in_force, present = gpu("nvmlDeviceGetEnforcedPowerLimit"), gpu("nvmlDeviceGetPowerManagementLimit")
        failed = next((a for a in (in_force, present) if a.problem), None)
        if failed is not None:
            known = failed.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
            return "" if known else f"Whether a power limit took effect is not known. {failed.problem}."
        in_force_w, set_w = in_force.value / 1000, present.value / 1000
        if in_force_w < limit_w + SAME_W and abs(set_w - limit_w) < SAME_W:
            return ""
        if time.monotonic() > until_s:
            raise DeviceError(
                f"{named}: the driver took it, but {in_force_w:g} W is in force. Use higher limits (power_limits_w), "
                f"stop what else sets limits, or {_MEASURE}."
            )
        time.sleep(0.02)
