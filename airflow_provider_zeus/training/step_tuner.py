"""Chooses the power limit of a training that knows nothing of it, by the optimizer steps that torch
reports.

torch's own hook for all optimizers reports each step, in the training's thread; torch is never
imported here. The optimizer that steps most leads: a window of the profile is a number of its
steps, so gradients that are accumulated, or steps that a gradient scaler leaves out, count as what
they end in.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from statistics import median
from threading import Lock
from typing import Any
from weakref import ref

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import LIMIT, UNCAPPED, Observation, ProfileSample
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.meter import SPARE, Reading, read
from airflow_provider_zeus.power.simulated.gpu import PREFIX, SimulatedGpu
from airflow_provider_zeus.training.profiling.profiler import profiler_of
from airflow_provider_zeus.training.profiling.sweep import Sweep, drain
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import ALONE, Ranks
from airflow_provider_zeus.training.torch_listener import (
    LEAD_STEPS,
    Leading,
    of_all,
    on_steps,
    step_kind,
)

log = guarded_log(__name__)

SIMULATED_SAMPLES = 256  # a simulated GPU computes its time from samples, and torch tells none


_forks = 0  # between the first process and this one: os.getpid() in each step would cost more


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class StepTuner:
    """Profiles power limits while the training steps, and sets the best one. Raises nothing into
    the training.

    :param device: of the training, if it is open already: a simulated GPU, whose clock the steps
        advance.
    :param ranks: this process among those that train together: the first one.
    """

    def __init__(self, plan: Plan, device: Device | None = None, ranks: Ranks = ALONE) -> None:
        self.steps = 0
        self.kind: int | None = None  # samples of another kind of step do not compare
        self.over = False  # no step counts any more
        self._why_uncounted = ""
        self._plan = plan
        self._device = device
        self._ranks = ranks
        self._born = _forks
        self._resources = ExitStack()
        self._leading = Leading()
        self._lead: ref[Any] | None = None
        self._limits: LimitControl | None = None
        self._known = list(plan.profile)
        self._sweep: Sweep | None = None
        # A second model must not lose the first one's samples.
        self._unsent: deque[ProfileSample] = deque()
        self._earlier: list[dict[str, Any]] = []  # a run reports all of its models together
        self._changing = Lock()  # a heartbeat must not mix the figures of two models
        self._is_simulated = isinstance(device, SimulatedGpu) or plan.job.device.startswith(PREFIX)
        self._now_s: Callable[[], float] = time.perf_counter
        self._simulated: Device | None = None  # its clock stands still if no step advances it
        self._last_s = 0.0
        self._due_s = 0.0  # a look at each step would slow short steps
        self._look_at = 0
        # Few, so that their median follows steps that become longer for good.
        self._gaps_s: deque[float] = deque(maxlen=32)
        self._long_s = math.inf  # until the usual gap is known, none counts as a pause
        self._paused_at = 0
        self._end_hearing = on_steps(self.step)

    @staticmethod
    def is_asked_for(job: ZeusJob) -> bool:
        """Whether the steps of a job's trainings are counted: to tune the limit, or to advance a
        simulated GPU.
        """
        return job.tries_limits or job.device.startswith(PREFIX)

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that trains."""
        return self._born != _forks

    def look(self) -> None:
        """Make sure that the limit is still guarded. Any thread may call this."""
        limits = self._limits
        if limits is not None:
            limits.keep_guarded()

    def step(self, optimizer: Any = None) -> None:
        """Count a step of an optimizer; None: of the training, which reports its steps itself."""
        if self.over or self._born != _forks:  # each training step comes here: a call would slow it
            return
        try:
            lead = None if self._lead is None else self._lead()
            stepped = self if optimizer is None else optimizer
            if lead is not stepped:
                if self._leading.overtakes(stepped, self.steps, led=lead is not None):
                    self._begin(stepped)
                    self._lead = ref(stepped)
                return
            self.steps += 1
            if self._simulated is not None:
                self._simulated.on_step(SIMULATED_SAMPLES)
            now_s = self._now_s()
            gap_s = now_s - self._last_s
            self._last_s = now_s
            is_due = now_s >= self._due_s or self.steps >= self._look_at
            if is_due or gap_s > self._long_s:
                self._pass(now_s, gap_s)
        except Exception as error:
            log.warning(
                "Zeus tunes no power limit from here on (%s). The training goes on.",
                type(error).__name__,
            )
            log.debug("The step could not be counted.", exc_info=True)
            # Figures that miss a step would be too low, so none are reported.
            self.over = True
            self._lead = None
            self._why_uncounted = "its steps could not be counted"
            limits = self._limits
            if limits is not None:
                limits.why_not_set = limits.why_not_set or self._why_uncounted
                with suppress(Exception):
                    # close() leaves them again: it tries once more, or finds nothing to do
                    limits.__exit__(None, None, None)

    def take_unsent(self) -> tuple[ProfileSample, ...]:
        """The profile samples since the last call. Any thread may call this."""
        unsent = drain(self._unsent)
        if self._sweep is not None:
            unsent += self._sweep.take_unsent()
        return unsent

    def observed(self, seen: Observation) -> Observation:
        """The observation of the task, with the figures of the steps."""
        sweep = self._sweep
        limits = self._limits
        whys: dict[str, str] = {}
        if sweep is not None:
            whys = {UNCAPPED: sweep.profiler.why_uncapped, LIMIT: sweep.profiler.slow}
        if limits is not None and limits.why_not_set:
            whys[LIMIT] = limits.why_not_set
        # without a reason the row would keep the steps that it knew before
        whys["samples"] = self._why_uncounted
        reasons = {**seen.reasons, **{name: why for name, why in whys.items() if why}}
        figures: dict[str, Any] = {}
        if self._lead is not None:
            figures = of_all(self._figures())
        return replace(seen, **figures, reasons=reasons)

    def stop(self) -> None:
        """The training is over: no further step counts. The profile keeps its samples."""
        self._end_hearing()
        if self._sweep is not None:
            self._sweep.keep()
        is_unseen = self._lead is None and not self.over
        if is_unseen and self._plan.job.tries_limits:
            log.info(
                "Zeus tuned no power limit: in the process of this task neither an optimizer of "
                "torch nor run.step() told %d steps.",
                LEAD_STEPS,
            )
        self.over = True

    def close(self) -> None:
        """Give the power limit back and release the device."""
        self._resources.close()

    def _figures(self) -> list[dict[str, Any]]:
        """The figures of each model up to the one that is trained now."""
        with self._changing:
            earlier = list(self._earlier)
            kind = self.kind
            steps = self.steps
            sweep = self._sweep
        figures: dict[str, Any] = {"samples": steps, "step_kind": kind}
        figures |= {"excess_j": None, "excess_s": None}
        if sweep is not None:
            figures["excess_j"], figures["excess_s"] = sweep.excess(steps)
        limits = self._limits
        if limits is not None:
            figures["power_limit_w"] = limits.device.seen_limit_w
            figures["limit_found_w"] = limits.found_w
        return [*earlier, figures]

    def _pass(self, now_s: float, gap_s: float) -> None:
        """Pass an edge of a window if one is due; leave out a window that a pause broke."""
        sweep = self._sweep
        if sweep is None:
            self._due_s = math.inf
            self._long_s = math.inf
            self._look_at = sys.maxsize
            return
        self._note_gap(gap_s, is_profiled=sweep.active)
        # A window with a pause in it measures no steps; steps that stay so long raise the usual
        # gap, and are no pauses any more.
        if gap_s > self._long_s:
            if sweep.active:
                sweep.windows.drop()
            else:
                sweep.stop(Reading(None, now_s), self.steps, bare=True)
            return
        if sweep.edge_due(now_s):
            complete = sweep.pass_edge(sweep.pace.edge(must=True), self.steps)
            is_sure = bool(sweep.profiler.slow) or sweep.profiler.surely_best
            if complete and not is_sure:
                _keep_found(sweep)
            self._last_s = self._now_s()
        elif not sweep.active and now_s >= self._due_s:
            sweep.check_drift(sweep.pace.read(share=SPARE), self.steps)
            self._last_s = self._now_s()
        self._due_s = 0.0 if sweep.active else now_s + 1.0

    def _note_gap(self, gap_s: float, *, is_profiled: bool) -> None:
        """Note the time since the step before; now and then renew the gap that is a pause."""
        was_paused = self._paused_at == self.steps - 1
        is_pause = gap_s > self._long_s
        if is_pause:
            self._paused_at = self.steps
        # While nothing is profiled only few steps come here, and every pause does: pauses would
        # become the usual gap.
        is_usual = was_paused or not is_pause
        if is_profiled or is_usual:
            self._gaps_s.append(gap_s)
        if self.steps < self._look_at or len(self._gaps_s) < LEAD_STEPS:
            return
        # Four times the usual gap is validation or a checkpoint; 2 % of a window breaks none on a
        # busy host.
        self._long_s = max(4.0 * median(self._gaps_s), 0.02 * self._plan.job.profile_s)
        self._look_at = self.steps + LEAD_STEPS
        if len(self._gaps_s) == self._gaps_s.maxlen:  # known well by now: each look slows a step
            self._look_at = self.steps + 8 * LEAD_STEPS

    def _begin(self, optimizer: Any) -> None:
        """An optimizer leads from now on: profile its steps, or use an earlier run's profile."""
        kind = step_kind(optimizer)
        if kind == self.kind:  # the next fold of a cross validation goes on with its profile
            return
        if self.kind is None:
            self._open()
        earlier = self._earlier
        if self._sweep is not None:  # a profile of another model says nothing of this one
            self._sweep.keep()
            self._known += self._sweep.measured
            self._unsent.extend(self._sweep.take_unsent())
            earlier = self._figures()
        with self._changing:
            self._earlier = earlier
            self.kind = kind
            self.steps = 0
            self._sweep = None
        if self._limits is not None:
            self._gaps_s.clear()
            self._long_s = math.inf
            self._due_s = 0.0
            self._look_at = LEAD_STEPS
            self._sweep = self._started(self._limits, kind)
        if self._device is not None and self._is_simulated:
            self._now_s = self._device.now_s
            self._simulated = self._device
        self._last_s = self._now_s()

    def _started(self, limits: LimitControl, kind: int) -> Sweep:
        """Begin to profile steps of this kind, or to train at the best limit."""
        job = self._plan.job
        device = limits.device
        device.synchronize()  # else work that an earlier model queued counts in the first window
        weights = Weights.of(job, device.info)
        profiler = profiler_of(job, limits, weights, self._known, batch_size=kind, of_steps=True)
        sweep = Sweep(device, limits, profiler, observe=job.mode == "observe")
        sweep.start(read(device), self.steps)
        is_complete = profiler.next_limit_w is None and bool(profiler.limits_w)
        if is_complete and not profiler.surely_best:
            _keep_found(sweep)
        sweep.pace.begin()
        return sweep

    def _open(self) -> None:
        """Take the GPU's lock if it is free, and find the limits that may be set."""
        device = self._device
        # The training has begun: to wait for another task's lock would stop it in its step.
        plan = replace(self._plan, gpu_lock_wait_s=0.0)
        if device is None:
            device = environment.device_of_plan(plan, self._ranks)
            self._device = device
            self._resources.callback(device.close)
        limits = environment.limits_of_plan(plan, device, self._ranks)
        if limits is not None:
            self._limits = self._resources.enter_context(limits)
        elif self._plan.job.tries_limits:
            no_limit = device.missing.get("limit_w", "this device has no power limit")
            why = device.missing.get("limit_range", no_limit)
            log.warning("Zeus tunes no power limit: %s.", why)


def _keep_found(sweep: Sweep) -> None:
    """Train on at the limit found: no other one is surely better."""
    log.info(
        "Zeus: steps differ too much, or limits too little, to tell the best power limit from full "
        "power: none is chosen."
    )
    sweep.keep_found()
