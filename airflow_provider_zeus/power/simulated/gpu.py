"""A simulated GPU: power and time of measured trainings on a virtual clock, to run everything
without a GPU.

Only :meth:`SimulatedGpu.on_step` advances its clock: validation, data loading and waiting cost 0 s
and 0 J.
"""

from __future__ import annotations

import fcntl
import math
import os
import uuid
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.power.device import Device, LimitRange, default_state_dir
from airflow_provider_zeus.power.simulated import state_file
from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS, Chip
from airflow_provider_zeus.power.simulated.state_file import (
    CLOCK_S,
    COUNTER_MJ,
    EFFECTIVE_W,
    ENERGY_J,
    LIMIT_W,
    LayoutError,
    StateFile,
)

log = guarded_log(__name__)

TICK_S = 0.1  # the energy counter is refreshed this often (NVML: every 20 to 100 ms)
PREFIX = "simulated:"


class SimulatedGpu(Device):
    """One GPU under one load, as :class:`~airflow_provider_zeus.power.device.Device`.

    Its state is in ``state_file`` (layout:
    :mod:`~airflow_provider_zeus.power.simulated.state_file`), so that other processes can read and
    set the limit; one training at a time uses it (:meth:`take`), since a step of another one would
    advance its clock. A corrupt file is replaced by a new one. If no file can be created (a folder
    has its name, the disk is full), the state is in memory and no limit is set.

    :param state_file: default: the one that ``open_simulated`` names, in the default state folder.
    :param gpu: ``v100`` (limits 100 to 250 W) or ``a40`` (100 to 300 W).
    :param load: the training that it simulates, one of
        :data:`~airflow_provider_zeus.power.simulated.models.LOADS`.
    :param may_set_limit: False: setting the limit is refused, as for most users on real GPUs.

    Raises JobSpecError for an unknown GPU or load.
    """

    def __init__(
        self,
        gpu: str,
        *,
        load: str,
        state_file: str | os.PathLike[str] | None = None,
        may_set_limit: bool = True,
    ) -> None:
        if (gpu, load) not in LOADS:
            raise _unknown(f"{PREFIX}{gpu}/{load}")
        self.chip = CHIPS[gpu]
        self.load = LOADS[gpu, load]
        self.info = DeviceInfo(
            model=f"simulated {self.chip.model}",
            max_power_w=self.chip.max_limit_w,
            energy_source="simulated",
        )
        self.missing: dict[str, str] = {}
        self._may_set_limit = may_set_limit
        folder, name = os.path.split(state_file or _state_file(default_state_dir(), gpu, load))
        self._path = os.path.join(os.path.realpath(folder), name)
        state, self._in_file = _opened(self._path, self.chip)
        self.uuid = f"SIM-{uuid.uuid5(uuid.NAMESPACE_URL, self._path)}"
        # Its lock lasts as long as the training: a step of another one would advance its clock.
        self._release: Callable[[], object] | None = None
        self._slots = state.slots
        # Each step asks again: a training has few batch sizes and limits, so the model runs seldom.
        self._step = lru_cache(maxsize=4096)(partial(self.load.step, self.chip))

    def now_s(self) -> float:
        """Virtual time [s]."""
        return self._slots[CLOCK_S]

    def energy_j(self) -> float:
        """Energy counter [J] in whole millijoules, updated every 100 ms."""
        return self._slots[COUNTER_MJ] / 1000.0

    def limit_range(self) -> LimitRange:
        """Limits that the chip accepts [W]."""
        return LimitRange(min_w=self.chip.min_limit_w, max_w=self.chip.max_limit_w)

    def limit_w(self) -> float:
        """The power limit that is set [W], by this or another process."""
        return self._slots[LIMIT_W]

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]; it is reached within about 1 s of virtual time.

        Raises DeviceError.
        """
        if not self._may_set_limit:
            raise DeviceError(
                f"power limit = {limit_w:g} W: this process may not set it. Let it run with the "
                "right to set limits, or set mode='measure'."
            )
        if not self.chip.min_limit_w <= limit_w <= self.chip.max_limit_w:
            raise DeviceError(
                f"power limit = {limit_w:g} W: out of range. Use {self.chip.min_limit_w:g} to "
                f"{self.chip.max_limit_w:g} W."
            )
        self._slots[LIMIT_W] = limit_w

    def take(self) -> bool:
        """Take this GPU for one training until :meth:`close`; False if another training of this
        host has it.

        True also if nothing can be locked: the state is in memory, or the file system has no locks.
        """
        if not self._in_file:
            return True
        try:
            descriptor = private_files.open_file(self._path, os.O_RDWR)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return not isinstance(error, BlockingIOError)
        # A device that is never closed must not hold its GPU until the process ends.
        self._release = weakref.finalize(self, os.close, descriptor)
        return True

    def close(self) -> None:
        """Leave this GPU to the next training."""
        if self._release is not None:
            self._release()

    def restore_record(self) -> list[dict[str, Any]] | None:
        """Kind and path of the state file; None if there is no file."""
        if self._in_file:
            return [{"kind": "simulated", "path": self._path}]
        return None

    def on_step(self, samples: int) -> None:
        """Advance clock and energy by one optimizer step over ``samples`` (at least 1)."""
        if samples < 1:
            raise ValueError(f"samples = {samples}: an optimizer step has at least one")
        slots = self._slots
        limit_w = slots[LIMIT_W]
        if slots[EFFECTIVE_W] != limit_w:
            limit_w = self._settle(samples, limit_w)
        step_s, power_w = self._step(samples, limit_w)
        before_s = slots[CLOCK_S]
        before_j = slots[ENERGY_J]
        now_s = before_s + step_s
        tick_s = math.floor(now_s / TICK_S) * TICK_S
        # At ticks alone, as a real counter: what is too short to be measured must show here, too.
        if tick_s > before_s:
            slots[COUNTER_MJ] = math.floor((before_j + power_w * (tick_s - before_s)) * 1000.0)
        slots[ENERGY_J] = before_j + power_w * step_s
        slots[CLOCK_S] = now_s

    def _settle(self, samples: int, limit_w: float) -> float:
        """Move the limit in force towards the one set; returns it for the middle of this step, in
        whole watts [W].
        """
        effective_w = self._slots[EFFECTIVE_W]
        step_s, _ = self._step(samples, round(effective_w))
        # Assumed time constant of a changed limit: it has settled after the 1 s that is discarded.
        settle_s = 0.3
        halfway = math.exp(-step_s / 2 / settle_s)
        left_w = (effective_w - limit_w) * halfway * halfway
        settled_w = 0.5  # an exponential never arrives: so close, the limit counts as in force
        self._slots[EFFECTIVE_W] = limit_w if abs(left_w) < settled_w else limit_w + left_w
        return round(limit_w + (effective_w - limit_w) * halfway)


def open_simulated(name: str, state_dir: str | os.PathLike[str], number: int = 1) -> SimulatedGpu:
    """Open ``simulated:<gpu>/<load>``; its state is in ``<state_dir>/simulated-<gpu>-<load>.gpu``.

    :param number: of several such GPUs, from 1; from 2 on the file is
        ``simulated-<gpu>-<load>-<number>.gpu``.

    Raises JobSpecError: there is no such simulated GPU.
    """
    gpu, _, load = name.removeprefix(PREFIX).partition("/")
    if not name.startswith(PREFIX):
        raise _unknown(name)
    return SimulatedGpu(gpu, load=load, state_file=_state_file(state_dir, gpu, load, number))


def take_simulated(
    name: str, state_dir: str | os.PathLike[str], gpus: int = 1, held: Collection[str] = ()
) -> list[SimulatedGpu]:
    """Open simulated GPUs that no other training of this host uses: there are as many as trainings
    need.

    :param held: UUIDs of GPUs that the parent process has taken for this training.

    Raises JobSpecError: there is no such simulated GPU.
    """
    ours: list[SimulatedGpu] = []
    numbers = count(1)
    while len(ours) < gpus:
        gpu = open_simulated(name, state_dir, next(numbers))
        # Each training its own: virtual time costs nothing, so none has to wait.
        if gpu.uuid in held or gpu.take():
            ours.append(gpu)
    return ours


def _state_file(state_dir: str | os.PathLike[str], gpu: str, load: str, number: int = 1) -> Path:
    with suppress(OSError):  # logged when the file is opened
        private_files.make_folder(state_dir)
    return Path(state_dir) / f"simulated-{gpu}-{load}{f'-{number}' if number > 1 else ''}.gpu"


def _unknown(name: str) -> JobSpecError:
    loads = ", ".join(sorted({load for _, load in LOADS}))
    remedy = f"use {PREFIX}<gpu>/<load> with gpu {' or '.join(CHIPS)} and load one of {loads}"
    return JobSpecError.of("ZeusJob.device", name, "no such simulated GPU", remedy)


def _opened(path: str, chip: Chip) -> tuple[StateFile, bool]:
    """The state, and whether it is in its file; a file that cannot be used is replaced."""
    try:
        if not os.path.exists(path):
            state_file.create(path, chip.max_limit_w)
        try:
            state = StateFile(path)
            if not chip.min_limit_w <= state.limit_w() <= chip.max_limit_w:
                raise LayoutError(
                    f"{path} holds a limit of {state.limit_w():g} W, which a {chip.model} does not "
                    "have"
                )
        except LayoutError as error:
            log.warning("Starting a fresh simulated GPU: %s.", error)
            state_file.create(path, chip.max_limit_w, replace=True)
            state = StateFile(path)
        return state, True
    except OSError as error:
        log.warning("The simulated GPU keeps its state in memory, and no limit is set: %s.", error)
        return StateFile.in_memory(chip.max_limit_w), False
