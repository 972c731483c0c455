"""One replayed GPU, and the two optimizers of its power limit that train on it; used by ``limit_optimizers``.

The GPU is the package's simulated one (virtual clock, a counter that moves every 100 ms, a limit that takes its time to
be in force) with time and power of the authors' measurements, straight lines between their limits.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.simulated.models import CHIPS, EPOCHS, LOADS, Chip, Load
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from benchmarks.run_handle import plan_of
from benchmarks.simulation.traces import Pair

ETA = 0.5  # upstream's default
REPLAYED = "replayed"
_numbers = itertools.count()


@dataclass(frozen=True)
class Curve:
    """Seconds per sample and mean power [W] by limit [W], ascending, of one batch size on one GPU."""

    name: str
    gpu: str
    batch_size: int
    limits_w: tuple[float, ...]
    sample_s: tuple[float, ...]
    power_w: tuple[float, ...]

    @classmethod
    def of(cls, pair: Pair, batch_size: int) -> Curve:
        """As measured; the size of an epoch, which the measurements do not tell, is that of the simulated GPUs."""
        samples = EPOCHS[pair.workload][2]
        points = pair.points[batch_size]
        return cls(
            name=f"{pair.name} at batch size {batch_size}",
            gpu=pair.gpu,
            batch_size=batch_size,
            limits_w=tuple(p.limit_w for p in points),
            sample_s=tuple(p.time_s / samples for p in points),
            power_w=tuple(p.power_w for p in points),
        )

    def step(self, chip: Chip, samples: float, limit_w: float) -> tuple[float, float]:
        """Time [s] and mean power [W] of one optimizer step, as a load of the simulated GPU tells them."""
        at = min(max(bisect_left(self.limits_w, limit_w), 1), len(self.limits_w) - 1)
        low_w, high_w = self.limits_w[at - 1], self.limits_w[at]
        share = min(max((limit_w - low_w) / (high_w - low_w), 0.0), 1.0)
        sample_s, power_w = (y[at - 1] + share * (y[at] - y[at - 1]) for y in (self.sample_s, self.power_w))
        return samples * sample_s, power_w

    def cost(self, limit_w: float) -> float:
        """Cost of a sample [J] at a limit, Eq. 2."""
        sample_s, power_w = self.step(cast(Chip, None), 1, limit_w)
        return Weights(ETA, self.limits_w[-1]).cost(sample_s * power_w, sample_s)

    @property
    def best_w(self) -> float:
        """The limit of the 25 W grid that costs least [W]."""
        limits = LimitRange(min_w=self.limits_w[0], max_w=self.limits_w[-1])
        return min(limits.grid_w(), key=self.cost)

    @property
    def step_s(self) -> float:
        """An optimizer step at the highest limit [s]."""
        return self.sample_s[-1] * self.batch_size

    @contextmanager
    def opened(self, folder: Path, kind: type[SimulatedGpu] = SimulatedGpu) -> Iterator[SimulatedGpu]:
        """A fresh GPU that replays it, at its highest limit."""
        chip, load = f"{REPLAYED}-{self.gpu}", REPLAYED
        low_w, high_w = self.limits_w[0], self.limits_w[-1]
        CHIPS[chip] = Chip(
            model=self.gpu, min_limit_w=low_w, max_limit_w=high_w, idle_w=0.0, floor_w=0.0, clock_exponent=1.0
        )
        LOADS[chip, load] = cast(Load, self)  # all that a GPU asks it for is step()
        try:
            yield kind(chip, load=load, state_file=folder / f"{next(_numbers)}.gpu")
        finally:
            del LOADS[chip, load], CHIPS[chip]


@dataclass
class Search:
    """What one optimizer did in a training, seen from the GPU."""

    curve: Curve
    steps_per_epoch: int
    limit_w: float = 0.0  # at the end
    problem: str = ""
    done_step: int | None = None  # steps until the limit was decided; None: never
    limits: int = 0  # measured
    clock_s: list[float] = field(default_factory=list)  # after each step
    energy_j: list[float] = field(default_factory=list)

    def watch(self, gpu: SimulatedGpu) -> None:
        """A step was made."""
        self.clock_s.append(gpu.now_s())
        self.energy_j.append(gpu.energy_j())
        self.limit_w = gpu.limit_w()

    def report(self) -> dict[str, Any]:
        """The figures of the table. Excess is what was spent until then beyond the same samples at the best limit."""
        curve, steps = self.curve, self.done_step or len(self.clock_s)
        samples = steps * curve.batch_size
        best_s, best_power_w = curve.step(cast(Chip, None), samples, curve.best_w)
        excess_j = self.energy_j[steps - 1] - best_s * best_power_w
        excess_s = self.clock_s[steps - 1] - best_s
        weights = Weights(ETA, curve.limits_w[-1])
        return {
            "limit_w": self.limit_w,
            "best_w": curve.best_w,
            "regret": curve.cost(self.limit_w) / curve.cost(curve.best_w) - 1,
            "problem": self.problem,
            "limits": self.limits,
            "done_steps": self.done_step,
            "done_epochs": None if self.done_step is None else self.done_step / self.steps_per_epoch,
            "steps": len(self.clock_s),
            "excess_j": excess_j,
            "excess_s": excess_s,
            "excess_best_steps": weights.cost(excess_j, excess_s) / (curve.cost(curve.best_w) * curve.batch_size),
        }


def ours(curve: Curve, steps: int, epochs: int, folder: Path) -> Search:
    """The run handle in ``optimize`` mode; decided with the last change of the limit and the last profiling step."""
    lines: list[ResultLine] = []
    search = Search(curve, steps)
    changed, before_w = 0, curve.limits_w[-1]
    with curve.opened(folder) as gpu:
        run = ZeusRun.from_plan(plan(curve.batch_size, epochs, folder), sink=lines.append, device=gpu)
        for _ in run.epochs():
            for _ in range(steps):
                run.step()
                search.watch(gpu)
                if search.limit_w != before_w:
                    changed, before_w = len(search.clock_s), search.limit_w
            run.report(accuracy=0.0)
    search.limits = len({s.limit_w for line in lines for s in line.profile})
    profiling_s = max((p.t_s for line in lines for p in line.points if p.phase == "profile"), default=0.0)
    decided = max(bisect_left(search.clock_s, profiling_s - 1e-9) + 1, changed)
    if search.limits and decided <= len(search.clock_s) - steps:  # the last epoch had none of it
        search.done_step = decided
    return search


def upstream(curve: Curve, steps: int, epochs: int, folder: Path) -> Search:
    """Upstream's ``GlobalPowerLimitOptimizer``, its defaults; decided with its state ``Done``."""
    search = Search(curve, steps)
    with curve.opened(folder) as gpu, their_optimizer(gpu) as optimizer:
        try:
            for _ in range(epochs):
                for _ in range(steps):
                    optimizer.on_step_begin()
                    if search.done_step is None and type(optimizer.state).__name__ == "Done":
                        search.done_step = len(search.clock_s) or 1
                    gpu.on_step(curve.batch_size)
                    search.watch(gpu)
                optimizer.on_epoch_end()
        except ValueError as error:  # its model of a measurement refuses an energy of 0
            search.problem = type(error).__name__
        search.limits = len(optimizer.measurements)
    return search


@contextmanager
def their_optimizer(gpu: SimulatedGpu, **options: Any) -> Iterator[Any]:
    """Upstream's optimizer, told of ``gpu`` where it asks for its own monitor and GPUs."""
    from zeus.optimizer import power_limit

    limits = gpu.limit_range()
    theirs = SimpleNamespace(
        get_power_management_limit_constraints=lambda index: (round(limits.min_w * 1000), round(limits.max_w * 1000)),
        set_persistence_mode=lambda index, enabled, block: None,
        set_power_management_limit=lambda index, milliwatts: gpu.set_limit_w(milliwatts / 1000),
    )
    with (
        patch.object(power_limit, "get_gpus", lambda **_: theirs),
        patch.object(power_limit, "atexit", SimpleNamespace(register=lambda call: None)),  # the GPU is gone by then
    ):
        yield power_limit.GlobalPowerLimitOptimizer(
            _Monitor(gpu), optimum_selector=power_limit.ZeusCost(eta_knob=ETA), **options
        )


class _Monitor:
    """Upstream's monitor over the replayed GPU."""

    gpu_indices = (0,)

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._marks: dict[str, tuple[float, float]] = {}

    def begin_window(self, key: str) -> None:
        self._marks[key] = self._gpu.energy_j(), self._gpu.now_s()

    def end_window(self, key: str, cancel: bool = False) -> SimpleNamespace:
        energy_j, now_s = self._marks.pop(key)
        return SimpleNamespace(gpu_energy={0: self._gpu.energy_j() - energy_j}, time=self._gpu.now_s() - now_s)


def plan(batch_size: int, epochs: int, folder: Path, **spec: Any) -> Plan:
    """One attempt of so many epochs, which reaches no target."""
    return plan_of([batch_size], epochs, folder, heartbeat_s=3600.0, eta=ETA, **spec)


OPTIMIZERS: dict[str, Callable[[Curve, int, int, Path], Search]] = {"ours": ours, "upstream": upstream}
