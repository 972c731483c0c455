"""An NVIDIA GPU, by NVML. What NVML refuses, and whenever it does, is a reading without a value, with the reason."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.optimizer.trial import DeviceInfo
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.gpu_lock import GpuLock
from airflow_provider_zeus.power.helper import Helper
from airflow_provider_zeus.power.nvml_helper import helper_at
from airflow_provider_zeus.power.nvml_library import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Answer, ask
from airflow_provider_zeus.power.nvml_limits import grid_step_w, set_limit_w
from airflow_provider_zeus.power.nvml_poll import PolledEnergy
from airflow_provider_zeus.power.nvml_sharing import why_not_ours
from airflow_provider_zeus.power.nvml_visible import Gpu, find_gpu, uuid_by_torch
from airflow_provider_zeus.power.record import boot_id

log = logging.getLogger(__name__)

_ABSENT = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


class NvmlDevice:
    """One GPU as :class:`~airflow_provider_zeus.power.device.Device`; by default the first that CUDA shows here.

    Energy comes from the GPU's counter (``nvml_counter``), on GPUs older than Volta from its power, polled
    (``nvml_poll``); which one is decided here, once. A GPU that is shared, with other processes or as a MIG slice, has
    neither energy nor limits: what it draws is not this training's alone.

    :param read_only: never set a limit, as ``[zeus] power_read_only`` asks: the library's setter is out of reach.
    :param max_power_w: MAXPOWER of Eq. 2 [W] where the GPU does not tell its highest limit.
    :param power_socket: ``[zeus] power_socket``: where a helper sets limits; empty: this process does so itself.
    :param gpu: another GPU than the first.
    :param among: UUIDs of all GPUs on which the training may be found, where they are several.
    :param processes: that train together on this host.
    :param not_ours: why what it draws is not this training's alone, where the caller knows.
    :param lock: by which other trainings of this host keep off this GPU, or say that they share it.

    Raises DeviceError: no GPU can be used, and why.
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
        gpu = gpu or find_gpu()
        self.uuid = gpu.uuid
        self._among = among or (gpu.uuid,)
        self.missing: dict[str, str] = {}
        self._handle, self._pid = gpu.handle, os.getpid()
        self._is_mig = gpu.is_mig
        self._said: set[str] = set()
        self._compared = False  # with the GPU that torch uses
        self._polled: PolledEnergy | None = None
        self._lock = lock
        self._not_ours = not_ours or why_not_ours(gpu, lock, processes)
        self._range = self._read_range()
        self.info = DeviceInfo(
            model=f"{gpu.model} (shared)" if self._not_ours and not gpu.is_mig else gpu.model,  # its times differ too
            max_power_w=self._range.max_w if self._range else max_power_w,
            energy_source=self._energy_source(),
        )
        self._never_set = self._why_never_set(read_only)
        self._helper, self._helper_described = self._find_helper(power_socket)
        if self._never_set:
            self.missing["limit_range"] = self._never_set
        self.limit_w()  # so that ``missing`` tells of it

    # ------------------------------------------------------------------ readings
    def now_s(self) -> float:
        """Monotonic clock of this host [s]."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy [J], of the counter since the driver was loaded, else since the first question."""
        if self._lock is not None and not self._not_ours and (shared := self._lock.look()):
            self._lose(shared)
        if self._not_ours or self.info.energy_source is None:
            return None
        if self._polled is not None:
            return self._kept("energy_j", self._polled.read_j())
        return self._watts("energy_j", "nvmlDeviceGetTotalEnergyConsumption")

    def limit_range(self) -> LimitRange | None:
        """Limits that may be set [W]; None where none may, on a shared GPU for instance."""
        return None if self._never_set else self._range

    def limit_w(self) -> float | None:
        """The power limit set [W], by whichever process."""
        if self._is_mig:
            self.missing["limit_w"] = self._not_ours
            return None
        return self._watts("limit_w", "nvmlDeviceGetPowerManagementLimit")

    def restore_record(self) -> dict[str, Any] | None:
        """The GPU, the boot after which its driver would have its own limit again, and the helper, if any."""
        if not self.uuid:
            return None
        helper = {"helper": self._helper_described} if self._helper_described else {}
        return {"kind": "nvml", "uuid": self.uuid, "boot_id": boot_id(), **helper}

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W] and see that it is in force. Raises DeviceError."""
        if self._never_set or self._range is None:
            raise DeviceError(f"power limit = {limit_w:g} W: {self._never_set}. Or set mode='measure'.")
        doubt = set_limit_w(self._ask, limit_w, self._range, self._helper)
        if doubt:
            self._say("in_force", doubt)

    # ------------------------------------------------------------------ around a training
    def on_step(self, samples: int) -> None:
        """Ignored: the clock is the host's."""

    def synchronize(self) -> None:
        """Wait for torch's work on the GPU, where torch is used on one. Its errors are left to the training's calls."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        try:
            if cuda is not None and cuda.is_initialized():
                cuda.synchronize()
                for other in range(cuda.device_count()) if len(self._among) > 1 else ():
                    if cuda.memory_reserved(other):  # else it may have no context, and would get one
                        cuda.synchronize(other)
                self._compare_with_torch()
        except Exception as error:
            log.debug("torch.cuda.synchronize() failed: %r", error)

    def close(self) -> None:
        """Stop polling, let go of the helper and of the GPU's lock."""
        if self._lock is not None:
            self._lock.close()
        if self._polled is not None:
            self._polled.close()
        if self._helper is not None:
            self._helper.close()

    def _lose(self, why: str) -> None:
        """From here on somebody else draws energy too, and takes time."""
        self._not_ours = self.missing["energy_j"] = why
        self.info = replace(self.info, model=f"{self.info.model} (shared)")
        self._say("not_ours", f"Energy is not measured from here on: {why}.")

    def _compare_with_torch(self) -> None:
        """Once CUDA is in use it tells where the training really is: nothing is charged to it from another GPU."""
        if self._compared or self._is_mig:
            return
        self._compared = True
        told = uuid_by_torch()
        if told is None or self.uuid is None or told in self._among:
            return
        self._not_ours = f"torch trains on {told}, and {self.uuid} would be measured: set CUDA_VISIBLE_DEVICES={told}"
        self.missing["energy_j"] = self._not_ours  # profiling gives up for want of it, and gives the limit back
        self._say("not_ours", f"Energy is not measured: {self._not_ours}.")

    # ------------------------------------------------------------------ at the opening
    def _energy_source(self) -> str | None:
        if self._not_ours:
            self.missing["energy_j"] = self._not_ours
            return None
        counter = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if not counter.problem:
            return "nvml_counter"
        self.missing["energy_j"] = counter.problem
        if counter.code not in _ABSENT:
            return None
        power = self._ask("nvmlDeviceGetPowerUsage")
        if power.problem:
            self.missing["energy_j"] += f"; {power.problem}"
            return None
        del self.missing["energy_j"]
        self._polled = PolledEnergy(partial(ask, "nvmlDeviceGetPowerUsage", self._handle))
        return "nvml_poll"

    def _read_range(self) -> LimitRange | None:
        if self._is_mig:
            return None
        answer = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        if answer.problem:
            self.missing["limit_range"] = self.missing["max_power_w"] = answer.problem
            return None
        min_w, max_w = (mw / 1000 for mw in answer.value)
        return LimitRange(min_w=min_w, max_w=max_w, step_w=grid_step_w(max_w - min_w))

    def _find_helper(self, power_socket: str) -> tuple[Helper | None, dict[str, Any] | None]:
        if not power_socket or self._never_set or self.uuid is None:
            return None, None
        try:
            described, helper = helper_at(power_socket, [self.uuid])
        except DeviceError as error:
            self._never_set = str(error)
            self._say("limit_range", f"Power limits are not set: {error}.")
            return None, None
        return helper, described

    def _why_never_set(self, read_only: bool) -> str:
        if read_only:
            return "[zeus] power_read_only is set: limits are read, never set"
        if self._not_ours:
            return self._not_ours
        if self.uuid is None:
            return "the GPU's UUID cannot be read, so nobody could give the limit back after a crash"
        return self.missing.get("limit_range", "")

    # ------------------------------------------------------------------ inside
    def _ask(self, function: str, *arguments: Any) -> Answer:
        if self._pid != os.getpid():  # forked: the parent's handle is not this process's
            again = ask("nvmlDeviceGetHandleByUUID", self.uuid)
            if again.problem:
                return again
            self._handle, self._pid = again.value, os.getpid()
        return ask(function, self._handle, *arguments)

    def _watts(self, reading: str, function: str) -> float | None:
        answer = self._ask(function)
        return self._kept(reading, answer if answer.problem else Answer(answer.value / 1000))

    def _kept(self, reading: str, answer: Answer) -> float | None:
        """The value; without one, note why and say so once."""
        if not answer.problem:
            self.missing.pop(reading, None)
            return float(answer.value)
        self.missing[reading] = answer.problem
        if answer.code not in _ABSENT:
            self._say(reading, f"A reading of the GPU failed. {answer.problem}.")
        return None

    def _say(self, reading: str, text: str) -> None:
        if reading not in self._said:
            self._said.add(reading)
            log.warning("%s The training goes on.", text)
