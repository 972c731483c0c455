"""NVML in this process, by ``pynvml``: initialised once, and again after a fork.

:func:`ask` gives errors as texts and raises none. A call that does not return is waited for once in
a process. After that NVML is not called there any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from airflow_provider_zeus.patience import T, bounded
from airflow_provider_zeus.power.limits.driver import FUNCTION_NOT_FOUND, NVML_ERRORS, Nvml

NOT_NVML = -1  # NVML's own codes are positive
RETURNS_S = 10.0  # nothing tells a slow call from one that hangs: after so long it is one


class NvmlAnswer(NamedTuple):
    """An answer of NVML: ``value``, or, without one, ``code`` (-1: not an error of NVML) and
    ``problem``.
    """

    value: Any = None
    code: int = 0
    problem: str = ""
    took_s: float = 0.0  # a driver that takes long is asked less often

    def read(self, read: Callable[[Any], T]) -> T | None:
        """The value as ``read`` makes it; None if there is a problem."""
        # A wrong value must never be read: a problem comes without one.
        return None if self.problem else read(self.value)


class _Silence:
    """Whether a call of this process did not return, and which one. Forked children know it too."""

    why = ""


def why_silent() -> str:
    """Why NVML is not called in this process any more; empty: it is."""
    return _Silence.why


def call_within(call: Callable[[], T], function: str) -> T:
    """Return the result of a call of NVML. Raises TimeoutError: it does not return, or an earlier
    one did not.

    It runs in a daemon thread, since nothing ends a call that hangs in the driver. ``pynvml`` does
    not hold the interpreter's lock meanwhile.
    """
    if not _Silence.why:
        try:
            return bounded(call, RETURNS_S)
        except TimeoutError:
            _Silence.why = _Silence.why or (
                f"{function} gave no answer for {RETURNS_S:g} s, so NVML is not called in this "
                "process any more; look at dmesg, reset the GPU or reboot the host"
            )
    raise TimeoutError(_Silence.why)


class BoundedNvml(Nvml):
    """The driver library, by which a training gives back a limit that another training left.

    A call that hangs raises TimeoutError: the limit's record stays for the next training.
    """

    def call(self, function: str, *arguments: Any, writes: tuple[Any, ...] = ()) -> list[Any]:
        """As in :class:`.Nvml`."""
        return call_within(partial(super().call, function, *arguments, writes=writes), function)


def ask(
    function: str, *arguments: Any, clock: Callable[[], float] = time.perf_counter
) -> NvmlAnswer:
    """Call a function of NVML by its name in ``pynvml``; never raises. An answer of a wrong kind is
    a problem.

    :param clock: tells how long the driver takes [s].
    """

    def timed() -> NvmlAnswer:
        began_s = clock()
        answer = _ask(function, *arguments)
        return answer._replace(took_s=clock() - began_s)

    try:
        return call_within(timed, function)
    except TimeoutError as error:
        return NvmlAnswer(None, NOT_NVML, str(error))


def _ask(function: str, *arguments: Any) -> NvmlAnswer:
    called = "nvmlInit"
    try:
        import pynvml  # type: ignore[import-untyped]

        # Once in each process: a forked one cannot use its parent's.
        _initialise(pynvml, os.getpid())
        called = function
        call = getattr(pynvml, function, None)
        # A binding of another package may lack the function.
        if call is None:
            return NvmlAnswer(None, FUNCTION_NOT_FOUND, _wrong_binding(function))
        value = call(*arguments)
        if _fits(function, value):
            return NvmlAnswer(value)
        # A newer binding would hand out the same: these come from the driver.
        problem = f"{function}: {value!r:.60} is no figure of it"
        if isinstance(value, str | bytes | None):
            problem = _wrong_binding(function)
        return NvmlAnswer(None, NOT_NVML, problem)
    except ModuleNotFoundError:
        return NvmlAnswer(
            None, NOT_NVML, "the Python package nvidia-ml-py is not installed; install it"
        )
    except Exception as error:  # NVMLError, and any error of a binding that does not fit its driver
        code = getattr(error, "value", NOT_NVML)
        # An error that is none of NVML's says itself what it is.
        if not isinstance(code, int) or code == NOT_NVML:
            return NvmlAnswer(None, NOT_NVML, f"{called}: {error!r}")
        return NvmlAnswer(None, code, f"{called}: {NVML_ERRORS.get(code, f'error {code}')}")


# A binding that does not fit may answer these with a text or None, which must become no figure.
_NUMBERS = (
    "Count",
    "TotalEnergyConsumption",
    "PowerUsage",
    "PowerManagementLimit",
    "EnforcedPowerLimit",
)


def _fits(function: str, value: Any) -> bool:
    """Whether an answer is of the kind that this function has in nvidia-ml-py."""
    name = function.removeprefix("nvmlDeviceGet").removeprefix("nvmlSystemGet")
    if name in ("Name", "UUID", "DriverVersion"):
        return isinstance(value, str)
    if name in ("MigMode", "PowerManagementLimitConstraints"):
        return isinstance(value, list | tuple) and len(value) == 2 and all(map(_counts, value))
    if name.startswith("ComputeRunningProcesses"):
        return isinstance(value, list | tuple)
    if name == "ViolationStatus":
        return _counts(getattr(value, "violationTime", None))
    if name == "Samples":
        return _are_samples(value)
    if name == "UtilizationRates":
        return _counts(getattr(value, "gpu", None))
    if name in _NUMBERS or name.endswith(("ClockInfo", "Reasons")):
        return _counts(value)
    return not isinstance(value, bytes)


def _are_samples(value: Any) -> bool:
    """Whether a value has the type of its samples, 1 for whole numbers, and each of them with its
    time.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    kind, samples = value
    # The value is a union: read as another type than its own it would be a wrong number.
    if kind != 1 or not samples:
        return False
    return all(
        _counts(sample.timeStamp) and _counts(sample.sampleValue.uiVal) for sample in samples
    )


def _counts(value: Any) -> bool:
    # 64 bits set are NVML's mark of a value that is not available. No figure of 32 bits that is
    # read here can have one.
    return isinstance(value, int | float) and 0 <= value < 2**63


def _wrong_binding(function: str) -> str:
    """Other packages bring a module of this name: their texts are bytes, and they lack the newer
    calls.
    """
    # The right one last: if another is there beside it, that one is to be removed.
    for package in ("pynvml", "nvidia-ml-py3", "nvidia-ml-py2", "nvidia-ml-py"):
        try:
            installed = f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
        problem = f"{function}: the module pynvml is of {installed}, which answers otherwise; "
        if package != "nvidia-ml-py":
            problem += f"pip uninstall {package}, then "
        return f"{problem}pip install -U nvidia-ml-py"
    return (
        f"{function}: the module pynvml is not of nvidia-ml-py; install that package, without any "
        "other pynvml"
    )


@lru_cache(maxsize=1)
def _initialise(binding: Any, pid: int) -> None:
    """Once in the process of this id, which may be a fork.

    Raises NVMLError, and tries again at the next call then.
    """
    # Under a lock of the binding; never shut down: other code of this process may have handles.
    binding.nvmlInit()
