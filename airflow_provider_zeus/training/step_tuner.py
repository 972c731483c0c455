"""Chooses the power limit of a training that knows nothing of it, by the optimizer steps that torch tells.

torch's own hook for all optimizers tells each step, in the training's thread; torch is never imported here. The
optimizer that steps most leads: a window of the profile is a number of its steps, so gradients that are accumulated, or
steps that a gradient scaler leaves out, count as what they end in.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import zlib
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import LIMIT, Observation, ProfileSample
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.meter import edge, read
from airflow_provider_zeus.training.profiling.profiler import Profiler, limits_to_measure
from airflow_provider_zeus.training.profiling.sweep import Sweep
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import ALONE

log = logging.getLogger(__name__)

LEAD_STEPS = 8  # of one optimizer, after which it leads
PAUSE = 4.0  # times the usual time between two steps: so long a gap is validation or a checkpoint
SIMULATED_SAMPLES = 256  # of a step, for a simulated GPU: nothing tells how many it has


class StepTuner:
    """Profiles power limits while the training steps, and sets the best one. Raises nothing into the training.

    :param device: of the training, where it is open already: a simulated GPU, whose clock the steps advance.
    """

    def __init__(self, plan: Plan, state_dir: str, device: Device | None = None) -> None:
        self.steps = 0  # of the leading optimizer
        self.kind: int | None = None  # what its profile is kept by: see :func:`step_kind`
        self.said = ""  # why no limit is tuned; empty: it is, or no step was seen yet
        self._plan, self._state_dir, self._device = plan, state_dir, device
        self._tunes = plan.job.mode in ("optimize", "observe")
        self._pid, self._resources = os.getpid(), ExitStack()
        self._hook: Any = None
        self._counts: Counter[int] = Counter()  # steps of each optimizer since the leading one stepped
        self._lead: int | None = None
        self._limits: LimitControl | None = None
        self._known = list(plan.profile)
        self._sweep: Sweep | None = None
        self._sent: list[ProfileSample] = []  # of sweeps that are over
        self._last_s = self._tick_s = 0.0
        self._gaps_s: deque[float] = deque(maxlen=32)

    def look(self) -> None:
        """Ask torch for its steps, once the training has loaded it. Any thread may call this."""
        if self._hook is None and not self.said:
            optimizer = sys.modules.get("torch.optim.optimizer")
            register = getattr(optimizer, "register_optimizer_step_post_hook", None)
            if register is not None:
                self._hook = register(lambda optimizer, *_: self.step(optimizer))
        if self._limits is not None:
            self._limits.keep_guarded()

    def step(self, optimizer: Any = None) -> None:
        """Count a step of an optimizer; None: of the training, which tells its steps itself."""
        if os.getpid() != self._pid or self.said:
            return
        try:
            self._count(optimizer)
        except Exception as error:
            log.warning("Zeus tunes no power limit from here on (%s). The training goes on.", type(error).__name__)
            log.debug("The step could not be counted.", exc_info=True)
            self.said = "its steps could not be counted"
            self._give_back()

    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """The profile samples since the last call. Any thread may call this."""
        return () if self._sweep is None else self._sweep.take_unsent()

    def observed(self, seen: Observation) -> Observation:
        """What was measured of the task, with what the steps tell."""
        if self._lead is None:
            return seen
        excess_j, excess_s = self._sweep.excess(self.steps) if self._sweep else (None, None)
        seen = replace(seen, samples=self.steps, step_kind=self.kind, excess_j=excess_j, excess_s=excess_s)
        if self._limits is not None and self._device is not None:
            seen = replace(seen, power_limit_w=self._device.limit_w(), limit_found_w=self._limits.found_w)
            if self._limits.why_not_set:
                seen = replace(seen, reasons={**seen.reasons, LIMIT: self._limits.why_not_set})
        return seen

    def stop(self) -> None:
        """The training is over: no further step counts. The profile keeps what was measured."""
        if self._hook is not None:
            self._hook.remove()
        if self._sweep is not None:
            self._sweep.keep()
        self.said = self.said or "the training is over"

    def close(self) -> None:
        """Give the power limit back and release the device."""
        self._give_back()
        self._resources.close()

    # ------------------------------------------------------------------ inside
    def _count(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key != self._lead:
            self._counts[key] += 1
            if self._counts[key] < LEAD_STEPS:
                return
            self._lead = key
            self._begin(optimizer)
            self._counts.clear()
            return
        self._counts.clear()
        self.steps += 1
        device = self._device
        if device is None:
            return
        device.on_step(SIMULATED_SAMPLES)
        if self._sweep is not None:
            self._pass(self._sweep, device)

    def _pass(self, sweep: Sweep, device: Device) -> None:
        """Pass an edge of a window where one is due; leave out a window that a pause broke."""
        now_s = device.now_s()
        gap_s, self._last_s = now_s - self._last_s, now_s
        usual_s = median(self._gaps_s) if len(self._gaps_s) >= LEAD_STEPS else math.inf
        if gap_s > PAUSE * usual_s:
            if sweep.active:
                sweep.windows.drop()
            else:
                sweep.stop(read(device), self.steps, bare=True)
            return
        self._gaps_s.append(gap_s)
        if sweep.active and sweep.windows.edge_due(now_s):
            complete = sweep.pass_edge(edge(device), self.steps)
            if complete and not sweep.profiler.surely_best:
                log.info(
                    "Zeus: steps differ too much, or limits too little, to tell the best power limit from full "
                    "power: none is chosen."
                )
                sweep.keep_found()
            self._last_s = device.now_s()
        elif not sweep.active and now_s >= self._tick_s:
            self._tick_s = now_s + 1.0
            sweep.check_drift(read(device), self.steps)

    def _begin(self, optimizer: Any) -> None:
        """An optimizer leads from now on: profile its steps, or use the profile of an earlier run."""
        if self.kind is None:
            self._open()
        if self._sweep is not None:  # of another model
            self._sweep.keep()
            self._known += self._sweep.measured
        self.kind = step_kind(optimizer)
        device, limits, job = self._device, self._limits, self._plan.job
        if device is None or limits is None:
            return
        weights = Weights.of(job, device.info)
        profiler = Profiler(
            limits_to_measure(job, limits, weights),
            self._known,
            batch_size=self.kind,
            weights=weights,
            min_s=job.profile_s,
            min_steps=job.profile_steps,
            of_steps=True,
        )
        self._sweep = Sweep(device, limits, profiler, observe=job.mode == "observe")
        self._gaps_s.clear()
        self._sweep.start(edge(device), self.steps)
        if self._sweep.profiler.next_limit_w is None and profiler.limits_w and not profiler.surely_best:
            self._sweep.keep_found()
        self._last_s = device.now_s()

    def _open(self) -> None:
        """Take the GPU's lock if it is free, and find the limits that may be set."""
        device, plan = self._device, replace(self._plan, gpu_lock_wait_s=0.0)
        if device is None:
            device = self._device = environment.device_of_plan(plan, self._state_dir, ALONE)
            self._resources.callback(device.close)
        limits = environment.limits_of_plan(plan, self._state_dir, device, ALONE)
        if limits is not None:
            self._limits = self._resources.enter_context(limits)
        elif self._tunes:
            why = device.missing.get("limit_range") or device.missing.get("limit_w") or "this device has no power limit"
            log.warning("Zeus tunes no power limit: %s.", why)

    def _give_back(self) -> None:
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.__exit__(None, None, None)


def step_kind(optimizer: Any) -> int:
    """A number for the kind of step: the optimizer's class and how many parameters it trains. None: of the training."""
    count = 0
    for group in getattr(optimizer, "param_groups", None) or ():
        count += sum(int(parameter.numel()) for parameter in group["params"])
    return zlib.crc32(f"{type(optimizer).__name__} {count}".encode()) or 1
