"""The workload power profiles that a GPU enforces, such as MAX_Q (Blackwell and later).

With another profile the same training takes other times and energies at the same limit, as on
another device. So the profile is a part of the device's model, and nothing that was measured under
one is used under another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from airflow_provider_zeus.power.nvml.library import NvmlAnswer

PREFIX = "NVML_POWER_PROFILE_"
# They share the prefix but number no profile: some would rename the profiles 0 to 3.
NO_PROFILE = (
    "MAX",
    "OPERATION_CLEAR",
    "OPERATION_SET",
    "OPERATION_SET_AND_OVERWRITE",
    "OPERATION_MAX",
)
BITS = 32  # NVML counts up to 255 profiles: a mask is a list of eight such numbers


def enforced_profiles(ask: Callable[..., NvmlAnswer]) -> str:
    """The names of the enforced profiles, such as ``"MAX_Q + LLM_TRAINING"``.

    Empty if none is enforced, or if the binding, the driver or the GPU knows none.

    :param ask: calls a function of NVML for this GPU.
    """
    try:
        import pynvml  # type: ignore[import-untyped]

        profiles = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    except (ImportError, AttributeError):
        return ""
    answer = ask("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", ctypes.byref(profiles))
    if answer.problem:
        return ""
    names = _names(pynvml)
    numbers = _numbers(profiles.enforcedProfilesMask.mask)
    return " + ".join(names.get(number, str(number)) for number in numbers)


def _names(binding: Any) -> dict[int, str]:
    """Profile number -> name, of all that the binding knows."""
    names = {}
    for constant, number in vars(binding).items():
        name = constant.removeprefix(PREFIX)
        if constant.startswith(PREFIX) and name not in NO_PROFILE:
            names[number] = name
    return names


def _numbers(mask: Any) -> list[int]:
    """The numbers of the bits that are set, ascending."""
    numbers = []
    for place, number in enumerate(mask):
        numbers += [BITS * place + bit for bit in range(BITS) if number >> bit & 1]
    return numbers
