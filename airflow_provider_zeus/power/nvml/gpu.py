"""An NVIDIA GPU, by NVML. A reading that NVML refuses is None, with the reason."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial, wraps
from statistics import fmean
from typing import Any, TypeVar

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.power.device import Clocks, Device, LimitRange
from airflow_provider_zeus.power.limits.driver import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
)
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.limits.helpers import LimitHelper, helper_at
from airflow_provider_zeus.power.limits.limit_format import SAME_W
from airflow_provider_zeus.power.nvml.library import NvmlAnswer, ask, why_silent
from airflow_provider_zeus.power.nvml.power_profiles import enforced_profiles
from airflow_provider_zeus.power.nvml.visible import (
    Gpu,
    computing_on,
    find_gpus,
    torch_cuda,
    uuid_by_torch,
    why_not_ours,
)
from airflow_provider_zeus.power.polling import PolledEnergy, moves

log = guarded_log(__name__)

TAKES_EFFECT_S = 0.5  # drivers take up to so long until a limit is in force
_ABSENT = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_MEASURE = "set mode='measure'"
# A slow driver must not be asked often: so many calls does each method make, at least.
_CALLS = {"energy_j": 1, "limit_w": 1, "busy": 1, "clocks": 4, "set_limit_w": 4}
Method = TypeVar("Method", bound=Callable[..., Any])


def _timed(method: Method) -> Method:
    """Let the device note how long a method took, by the device's own clock."""

    @wraps(method)
    def timed(device: NvmlDevice, *args: Any) -> Any:
        device.driver_s = 0.0
        began_s = device.now_s()
        try:
            return method(device, *args)
        finally:
            device.note_time(method.__name__, device.now_s() - began_s)

    return timed  # type: ignore[return-value]


class NvmlDevice(Device):
    """One GPU as :class:`~airflow_provider_zeus.power.device.Device`; by default the first that
    CUDA shows here.

    Energy comes from the GPU's counter (``nvml_counter``) or, on GPUs older than Volta, from polled
    power (``nvml_poll``); the source is chosen once, at the start. A GPU that is shared, with other
    processes or as a MIG slice, has neither energy nor limits: its power is not this training's
    alone.

    :param read_only: never set a limit (``[zeus] power_read_only``).
    :param max_power_w: MAXPOWER of Eq. 2 [W] if the GPU does not report its highest limit.
    :param power_socket: ``[zeus] power_socket``: socket of the helper that sets limits; empty: this
        process sets them.
    :param gpu: another GPU than the first.
    :param among: UUIDs of all GPUs of the training, if there are several.
    :param processes: number of processes that train together on this host.
    :param not_ours: why the GPU's energy is not this training's alone, if the caller knows.
    :param lock: the lock by which trainings of this host take turns on this GPU.

    Raises DeviceError with the reason: no GPU can be used.
    """

    def __init__(
        self,
        *,
        read_only: bool = False,
        max_power_w: float | None = None,
        power_socket: str = "",
        gpu: Gpu | None = None,
        among: Collection[str | None] = (),
        processes: int = 1,
        not_ours: str = "",
        lock: GpuLock | None = None,
    ) -> None:
        gpu = gpu or find_gpus(1)[0]
        self.uuid = gpu.uuid
        self.missing: dict[str, str] = {}
        self._among = among or (gpu.uuid,)
        self._handle = gpu.handle
        self._pid = os.getpid()
        self.driver_s = 0.0  # apart from the time of this thread, which a busy host makes long
        self._is_mig = gpu.is_mig
        self._warned: set[str] = set()
        self._is_compared = False  # CUDA may number GPUs otherwise than NVML
        self._polled: PolledEnergy | None = None
        # Several of each method: a busy host makes one of them long, so the shortest counts.
        self._newest_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=5))
        self._took_s: dict[str, float] = {}
        self._call_s = 0.0
        self._seen_limit_w: float | None = None
        self._max_clock: NvmlAnswer | None = None
        self._silent_helper = ""  # a helper that hung once may hang again
        self._sampled_us = 0  # a time of the driver's own clock: it takes no other
        self._lock = lock
        self._not_ours = not_ours or why_not_ours(gpu, lock, processes)
        self._range = self._read_range()
        model = gpu.model
        profiles = enforced_profiles(self._ask)
        if profiles:  # times and energies of another profile are those of another device
            model += f", power profile {profiles}"
        if self._not_ours and not gpu.is_mig:
            model += " (shared)"  # its times differ too
        self.info = DeviceInfo(
            model=model,
            max_power_w=self._range.max_w if self._range else max_power_w,
            energy_source=self._energy_source(),
        )
        self._why_no_limits = self._why_not_set(read_only=read_only)
        self._helper: LimitHelper | None = None
        self._helper_description: dict[str, Any] | None = None
        if power_socket and not self._why_no_limits:
            self._open_helper(power_socket)
        if self._why_no_limits:
            self.missing["limit_range"] = self._why_no_limits
        self.limit_w()  # it fills ``missing``, which pages read before any limit is set

    def _why_not_set(self, *, read_only: bool) -> str:
        """Why no limit may be set, before a helper is asked; empty if one may."""
        if read_only:
            return "[zeus] power_read_only is set: limits are read, never set"
        if self._not_ours:
            return self._not_ours
        if not self.uuid:
            return "the GPU's UUID cannot be read, so the limit could not be restored after a crash"
        return self.missing.get("limit_range", "")

    def _open_helper(self, power_socket: str) -> None:
        """Connect to the helper that sets the limit; if that fails, none is set."""
        try:
            self._helper_description, self._helper = helper_at(power_socket, [self.uuid or ""])
        except DeviceError as error:
            self._why_no_limits = str(error)
            self.missing["helper"] = str(error)
            self._warn_once("limit_range", f"Power limits are not set: {error}.")

    def note_time(self, method: str, took_s: float) -> None:
        """Note how long a method of this device took [s]: in the driver, and in the thread that
        asks it.

        A busy host makes the second part long now and then, so of the newest ones the shortest
        counts.
        """
        # Only this thread's part may be an outlier: the driver's own time counts in full.
        newest_s = self._newest_s[method]
        newest_s.append(took_s)
        self._took_s[method] = max(self.driver_s, min(newest_s))
        self.waited_s += self._took_s[method]

    def takes_s(self, method: str) -> float:
        """How long a method takes [s]: as the last time, or by its calls of the driver."""
        # What was measured is better than an estimate.
        if method in self._took_s:
            return self._took_s[method]
        return _CALLS[method] * self._call_s

    @_timed
    def energy_j(self) -> float | None:
        """Energy [J] by the counter since the driver was loaded, or polled since the first call."""
        if self._lock is not None and not self._not_ours:
            self._check_lock(self._lock)
        # A shared counter has the energy of others in it.
        if self._not_ours or self.info.energy_source is None:
            return None
        if self._polled is not None:
            return self._reading("energy_j", self._polled.read_j())
        return self._reading("energy_j", self._ask("nvmlDeviceGetTotalEnergyConsumption"), per=1000)

    def _check_lock(self, lock: GpuLock) -> None:
        """Measure no energy from here on if another training has come to share the GPU."""
        shared = lock.check()
        if shared:
            self._not_ours = shared
            self.missing["energy_j"] = shared
            self.info = replace(self.info, model=f"{self.info.model} (shared)")
            self._warn_once("not_ours", f"Energy is not measured from here on: {shared}.")

    def limit_range(self) -> LimitRange | None:
        """Limits that may be set [W]; None if none may, as on a shared GPU."""
        if self._why_no_limits:
            return None
        return self._range

    @_timed
    def limit_w(self) -> float | None:
        """The power limit that is set [W], by this or another process."""
        if self._is_mig:
            self.missing["limit_w"] = self._not_ours
            return None
        self._seen_limit_w = self._reading(
            "limit_w", self._ask("nvmlDeviceGetPowerManagementLimit"), per=1000
        )
        return self._seen_limit_w

    @property
    def seen_limit_w(self) -> float | None:
        """The power limit [W] when it was last read or set; no call of the driver."""
        return self._seen_limit_w

    @_timed
    def busy(self) -> float | None:
        """Share of the time since the last call in which a kernel ran, 0 to 1; at the first one, of
        the last moment.

        It is the mean of the driver's samples, some five a second. One alone, which is all that a
        driver without them tells, would say how the GPU is at the step that asks.
        """
        if self._not_ours:
            self.missing["gpu_busy"] = self._not_ours
            return None
        utilization = 1  # NVML_GPU_UTILIZATION_SAMPLES, which is in no binding
        sampled = self._ask("nvmlDeviceGetSamples", utilization, self._sampled_us)
        if sampled.problem:  # NVML calls it an error, too, if no sample is new
            answer = self._ask("nvmlDeviceGetUtilizationRates")
            if not answer.problem:
                answer = answer._replace(value=answer.value.gpu)
            return self._reading("gpu_busy", answer, per=100)
        _, new = sampled.value
        # The first samples are of the time before this training.
        if not self._sampled_us:
            new = new[-1:]
        self._sampled_us = max(sample.timeStamp for sample in new)
        answer = NvmlAnswer(fmean(sample.sampleValue.uiVal for sample in new))
        return self._reading("gpu_busy", answer, per=100)

    @_timed
    def clocks(self) -> Clocks | None:
        """The GPU's clock and the reasons that hold it back; None of a MIG slice, which shares it,
        and if it is unknown.
        """
        if self._is_mig:
            return None
        # NVML_CLOCK_SM and NVML_PERF_POLICY_POWER, as numbers: this must load without pynvml, too.
        sm = 1
        power = 0
        capped = self._ask("nvmlDeviceGetViolationStatus", power)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons.problem:  # drivers before 535 have another name for it
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        now = self._ask("nvmlDeviceGetClockInfo", sm)
        if self._max_clock is None or self._max_clock.problem:  # it never changes, and a call costs
            self._max_clock = self._ask("nvmlDeviceGetMaxClockInfo", sm)
        # None, not Clocks without any: this driver is then asked no more, which would cost time.
        if all(answer.problem for answer in (capped, reasons, now)):
            return None
        return Clocks(
            sm_mhz=now.read(float),
            max_mhz=self._max_clock.read(float),
            reasons=reasons.read(int),
            capped_s=capped.read(lambda status: status.violationTime / 1e9),
        )

    def computing(self) -> list[int] | None:
        """Ids of the processes that compute on this GPU, by the host's count; None if NVML does not
        tell.
        """
        running = computing_on(self._handle)
        return running.read(lambda processes: [process.pid for process in processes])

    def restore_record(self) -> list[dict[str, Any]] | None:
        """The GPU, and the helper that sets its limit, if any."""
        if not self.uuid:
            return None
        record: dict[str, Any] = {"kind": "nvml", "uuid": self.uuid}
        if self._helper_description:
            record["helper"] = self._helper_description
        return [record]

    @_timed
    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W], by the helper if there is one, and wait until it is in force.

        Raises DeviceError.
        """
        limits = self._range
        setting = f"power limit = {limit_w:g} W"
        if self._why_no_limits or limits is None:
            raise DeviceError(f"{setting}: {self._why_no_limits}. Or {_MEASURE}.")
        out_of_range = f"{setting}: out of range. Use {limits.min_w:g} to {limits.max_w:g} W."
        # Refused here: some drivers take such a limit and do nothing.
        if not limits.min_w - SAME_W < limit_w < limits.max_w + SAME_W:
            raise DeviceError(out_of_range)
        if self._helper is not None:
            self._set_by_helper(self._helper, limit_w, setting)
        else:
            # The range as read may be rounded, so the driver's own answer decides.
            answer = self._ask("nvmlDeviceSetPowerManagementLimit", round(limit_w * 1000))
            if answer.code == INVALID_ARGUMENT:
                raise DeviceError(out_of_range)
            if answer.problem:
                remedies = {
                    NO_PERMISSION: "Run as root or with CAP_SYS_ADMIN, name a helper by [zeus] "
                    f"power_socket, or {_MEASURE}.",
                    NOT_SUPPORTED: "Limits of this GPU cannot be set: use mode='measure'.",
                    GPU_IS_LOST: f"Until then {_MEASURE}.",
                }
                remedy = remedies.get(answer.code, f"If it persists {_MEASURE}.")
                raise DeviceError(f"{setting}: {answer.problem}. {remedy}")
        self._wait_in_force(limit_w, setting)

    def _set_by_helper(self, helper: LimitHelper, limit_w: float, setting: str) -> None:
        """Let a helper set the limit [W]; one that was silent is not asked again."""
        if self._silent_helper:
            raise DeviceError(f"{setting}: {self._silent_helper}. The helper is not asked again.")
        try:
            helper.set_limit_w(limit_w)
        except OSError as error:
            if isinstance(error.__cause__, TimeoutError):  # its driver hangs: one wait is enough
                self._silent_helper = str(error)
            raise DeviceError(f"{setting}: {error}. If it persists {_MEASURE}.") from error

    def _wait_in_force(self, limit_w: float, setting: str) -> None:
        """Read the limit back.

        A limit in force below the one set is no error: there may be another cap.
        """
        until_s = time.monotonic() + TAKES_EFFECT_S
        while True:
            # The one set may be in force only after some milliseconds, or never under another cap.
            in_force = self._ask("nvmlDeviceGetEnforcedPowerLimit")
            present = self._ask("nvmlDeviceGetPowerManagementLimit")
            failed = in_force if in_force.problem else present
            if failed.problem:
                if failed.code not in _ABSENT:
                    self._warn_once(
                        "in_force",
                        f"Whether a power limit took effect is not known. {failed.problem}.",
                    )
                return
            in_force_w = in_force.value / 1000
            set_w = present.value / 1000
            self._seen_limit_w = set_w
            if in_force_w < limit_w + SAME_W and abs(set_w - limit_w) < SAME_W:
                return
            if time.monotonic() > until_s:
                raise DeviceError(
                    f"{setting}: the driver took it, but {in_force_w:g} W is in force. Use higher "
                    f"limits (power_limits_w), stop what else sets limits, or {_MEASURE}."
                )
            time.sleep(0.02)

    def synchronize(self) -> None:
        """Wait for torch's work on the GPU. Errors of torch are left to the training's own calls.

        If torch trains on another GPU than this one, energy is not measured from here on.
        """
        cuda = torch_cuda()
        if cuda is None:
            return
        try:
            # A wait amid the capture of a CUDA graph would void the training's graph.
            if getattr(cuda, "is_current_stream_capturing", bool)():
                return
            cuda.synchronize()
            others = cuda.device_count() if len(self._among) > 1 else 0
            for other in range(others):
                # On a GPU without memory of ours a wait may create a context, which takes memory.
                if cuda.memory_reserved(other):
                    cuda.synchronize(other)
        except Exception as error:
            log.debug("torch.cuda.synchronize() failed: %r", error)
            return
        if self._is_compared or self._is_mig:
            return
        self._is_compared = True  # not earlier: before CUDA has started torch knows no GPU
        used = uuid_by_torch()
        if used in (None, *self._among) or self.uuid is None:
            return
        self._not_ours = (
            f"torch trains on {used}, and {self.uuid} would be measured: set "
            f"CUDA_VISIBLE_DEVICES={used}"
        )
        self.missing["energy_j"] = self._not_ours  # profiling then stops and gives the limit back
        self._warn_once("not_ours", f"Energy is not measured: {self._not_ours}.")

    def close(self) -> None:
        """Release the GPU's lock, stop polling and close the helper's connection."""
        if self._lock is not None:
            self._lock.close()
        if self._polled is not None:
            self._polled.close()
        if self._helper is not None:
            self._helper.close()

    def _energy_source(self) -> str | None:
        if self._not_ours:
            self.missing["energy_j"] = self._not_ours
            return None
        read_counter = partial(self._ask, "nvmlDeviceGetTotalEnergyConsumption")
        counter = read_counter()
        if not counter.problem:
            # The 0 J of a counter that stands still would look like a measurement.
            if moves(lambda: read_counter().value):
                return "nvml_counter"
            self.missing["energy_j"] = (
                f"the GPU's energy counter stands still at {counter.value / 1000:g} J"
            )
            return None
        if counter.code not in _ABSENT:
            self.missing["energy_j"] = counter.problem
            return None
        read_power = partial(self._ask, "nvmlDeviceGetPowerUsage")
        power = read_power()
        if power.problem:
            self.missing["energy_j"] = f"{counter.problem}; {power.problem}"
            return None
        # An idle GPU draws some watts, too: 0 W all the time is no measurement.
        if not power.value and not moves(lambda: read_power().value):
            self.missing["energy_j"] = f"{counter.problem}; its power reads 0 W"
            return None
        # Not by _ask(): the polling thread must not count as time for which the training waits.
        self._polled = PolledEnergy(partial(ask, "nvmlDeviceGetPowerUsage", self._handle))
        return "nvml_poll"

    def _read_range(self) -> LimitRange | None:
        if self._is_mig:
            return None
        answer = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        problem = answer.problem
        if not problem:
            min_w, max_w = (mw / 1000 for mw in answer.value)
            if 0 < min_w <= max_w:
                return LimitRange(min_w=min_w, max_w=max_w, step_w=grid_step_w(max_w - min_w))
            problem = f"its limits read {min_w:g} to {max_w:g} W"  # some drivers tell 0 to 0
        self.missing["limit_range"] = problem
        self.missing["max_power_w"] = problem
        return None

    def _ask(self, function: str, *arguments: Any) -> NvmlAnswer:
        if self._pid != os.getpid():  # forked: the parent's handle is not valid here
            handle = ask("nvmlDeviceGetHandleByUUID", self.uuid or "")
            if handle.problem:
                return handle
            self._handle = handle.value
            self._pid = os.getpid()
        answer = ask(function, self._handle, *arguments, clock=self.now_s)
        self._call_s = answer.took_s
        self.driver_s += answer.took_s
        return answer

    def _reading(self, name: str, answer: NvmlAnswer, *, per: int = 1) -> float | None:
        """The answer's value divided by ``per``; without one, keep the reason in ``missing`` and
        log it once.
        """
        if not answer.problem:
            self.missing.pop(name, None)
            return float(answer.value / per)
        self.missing[name] = answer.problem
        # A reading that this GPU lacks for good is no failure to warn of.
        if answer.code not in _ABSENT:
            # A driver that hangs fails all readings, and one warning of it is enough.
            topic = "silent" if answer.problem == why_silent() else name
            self._warn_once(topic, f"A reading of the GPU failed. {answer.problem}.")
        return None

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning("%s The training continues.", text)


def grid_step_w(width_w: float) -> float:
    """Distance [W] of the limits to profile on a range of this width: 25 W, more on wide ranges (at
    most 11 limits).
    """
    # In steps of 25 W a narrower range would have three limits at most, too few to choose from.
    narrow_w = 75.0
    if width_w < narrow_w:
        return 10.0
    most_limits = 11
    steps_w = (25, 30, 40, 50, 60, 75, 80, 100, 120, 150, 200, 250)
    for step_w in steps_w:
        if width_w < step_w * most_limits:
            return float(step_w)
    return float(steps_w[-1])
