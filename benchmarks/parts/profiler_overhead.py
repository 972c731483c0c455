"""What profiling the power limit costs a whole training: the run handle itself,
on a GPU that replays a curve.

The simulated GPU has a virtual clock and a counter that moves every 100 ms; time and power are the
curve's. Beside it the paper's way (section 6.5): five seconds at each limit, once; against two
trainings without profiling: at the best limit (Eq. 7) from the first step on, and at full power.
"""

from __future__ import annotations

import logging
import math
import random
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS, Chip, Load
from airflow_provider_zeus.training.run import ZeusRun
from benchmarks.report import interval
from benchmarks.run_handle import plan_of
from benchmarks.simulation.scenario import Scenario

ETA = 0.5
WINDOW_S = 5.0  # profile_s of a job, by default
STEP_S = 0.1  # at the highest limit
BATCH_SIZE = 1000  # by definition
VALIDATION = 0.1  # of an epoch's samples, after it
REPLAYED = "replayed"

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Curve:
    """One training with one batch size on one GPU:
    an epoch's time [s] and energy [J] by limit [W], ascending.
    """

    max_power_w: float
    limits_w: Floats
    time_s: Floats
    energy_j: Floats

    def cost(self, eta: float) -> Floats:
        """Cost of an epoch [J] at each limit (Eq. 2)."""
        return np.asarray(eta * self.energy_j + (1 - eta) * self.max_power_w * self.time_s)


@dataclass(frozen=True)
class Replayed:
    """A load of the simulated GPU: seconds a sample and mean power [W] by limit [W],
    straight lines between them.
    """

    limits_w: tuple[float, ...]
    sample_s: tuple[float, ...]
    power_w: tuple[float, ...]

    def step(self, chip: Chip, samples: float, limit_w: float) -> tuple[float, float]:
        """Time [s] and mean power [W] of one optimizer step,
        as a load of the simulated GPU tells them.
        """
        at = min(max(bisect_left(self.limits_w, limit_w), 1), len(self.limits_w) - 1)
        low_w = self.limits_w[at - 1]
        high_w = self.limits_w[at]
        share = min(max((limit_w - low_w) / (high_w - low_w), 0.0), 1.0)
        sample_s, power_w = (
            y[at - 1] + share * (y[at] - y[at - 1]) for y in (self.sample_s, self.power_w)
        )
        return samples * sample_s, power_w

    @contextmanager
    def opened(self, folder: Path, kind: type[SimulatedGpu]) -> Iterator[SimulatedGpu]:
        """A fresh GPU that replays it, at its highest limit."""
        low_w = self.limits_w[0]
        high_w = self.limits_w[-1]
        CHIPS[REPLAYED] = Chip(
            model=REPLAYED,
            min_limit_w=low_w,
            max_limit_w=high_w,
            idle_w=0.0,
            floor_w=0.0,
            clock_exponent=1.0,
        )
        LOADS[REPLAYED, REPLAYED] = cast(Load, self)  # all that a GPU asks it for is step()
        try:
            yield kind(REPLAYED, load=REPLAYED, state_file=folder / "replayed.gpu")
        finally:
            del LOADS[REPLAYED, REPLAYED], CHIPS[REPLAYED]


class Noisy(SimulatedGpu):
    """A replayed GPU whose steps scatter, so that windows do by ``NOISE``."""

    NOISE = 0.01
    SEED = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        exact = self._step
        rng = random.Random(self.SEED)
        sd = self.NOISE * math.sqrt(WINDOW_S / STEP_S)

        def scattered(samples: int, limit_w: float) -> tuple[float, float]:
            step_s, power_w = exact(samples, limit_w)
            off_s = max(1 + sd * rng.gauss(0, 1), 0.1)
            off_j = max(1 + sd * rng.gauss(0, 1), 0.1)
            return step_s * off_s, power_w * off_j / off_s

        self._step = scattered  # type: ignore[assignment]


class Overhead(NamedTuple):
    """A training that profiles beyond the same one at the optimum from step 1."""

    energy: float  # relative
    time: float
    cost: float
    regret: float  # of the limit it ended at


def overhead(curve: Curve, epoch_s: float, epochs: int, seed: int = 0) -> Overhead:
    """The first run of a job, of so many epochs of that length at full power;
    each ends with a validation.

    It is trained until its profile is complete, or to its end;
    the rest is what the curve says of the limit found.
    """
    sample_s = curve.time_s / curve.time_s[-1] * STEP_S / BATCH_SIZE
    power_w = curve.energy_j / curve.time_s
    rows = (tuple(map(float, row)) for row in (curve.limits_w, sample_s, power_w))
    replayed = Replayed(*rows)
    steps = round(epoch_s / STEP_S)
    checked = round(VALIDATION * epoch_s / STEP_S)
    made = 0
    noisy = type("Seeded", (Noisy,), {"SEED": seed})
    with tempfile.TemporaryDirectory() as folder, replayed.opened(Path(folder), noisy) as gpu:
        plan = plan_of(
            [BATCH_SIZE], epochs, folder, heartbeat_s=3600.0, eta=ETA, max_power_w=curve.max_power_w
        )
        run = ZeusRun.from_plan(plan, device=gpu)
        for _ in run.epochs():
            for _ in range(steps):
                run.step()
                made += 1
                if not profiling(run):
                    break
            else:
                for _ in range(checked):
                    gpu.on_step(BATCH_SIZE)
                made += checked
                run.report(accuracy=0.0)
                continue
            break
        limit_w = gpu.limit_w()
        spent_s = gpu.now_s()
        spent_j = gpu.energy_j()
        run.close()
    weights = Weights(ETA, curve.max_power_w)
    at = int(np.abs(curve.limits_w - limit_w).argmin())
    best = int(curve.cost(weights.eta).argmin())
    samples = epochs * (steps + checked) * BATCH_SIZE
    left = (epochs * (steps + checked) - made) * BATCH_SIZE
    time_s = spent_s + left * sample_s[at]
    energy_j = spent_j + left * sample_s[at] * power_w[at]
    best_s = samples * sample_s[best]
    best_j = samples * sample_s[best] * power_w[best]
    return Overhead(
        energy=float(energy_j / best_j - 1),
        time=float(time_s / best_s - 1),
        cost=float(weights.cost(energy_j, time_s) / weights.cost(best_j, best_s) - 1),
        regret=float(curve.cost(weights.eta)[at] / curve.cost(weights.eta)[best] - 1),
    )


def profiling(run: ZeusRun) -> bool:
    """Whether the run's present attempt profiles now."""
    return run.progress.live is not None and run.progress.live._sweep.active


SEEDS = 40  # of the noise that our search meets


class Extra(NamedTuple):
    """Relative extra of one training, as [mean, low, high]."""

    energy: tuple[float, float, float]
    time: tuple[float, float, float]
    cost: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of Eq. 2, of our search
    astray: int = 0  # trainings that ended at another limit than the best


def papers_way(scenario: Scenario, *, full_power: bool) -> Extra:
    """Five seconds at each limit of the default batch size, then the best limit; exact,
    so its interval is a point.

    :param full_power: against full power from first to last,
        from which the windows alone differ; else the best limit.
    """
    b = scenario.pair.default_batch_size
    points = scenario.pair.points[b]
    arm = scenario.arms[b]
    best = points[-1] if full_power else next(p for p in points if p.limit_w == arm.limit_w)
    epochs = scenario.success_epochs(b)
    extra_s = math.fsum(WINDOW_S * (1 - best.time_s / p.time_s) for p in points)
    extra_j = math.fsum(WINDOW_S * (p.power_w - best.energy_j / p.time_s) for p in points)
    energy = extra_j / (epochs * best.energy_j)
    time = extra_s / (epochs * best.time_s)
    return Extra((energy,) * 3, (time,) * 3)


def our_way(scenario: Scenario, seeds: int = SEEDS) -> Extra:
    """The package's own search in a training of the same length, against the best limit."""
    pair = scenario.pair
    b = pair.default_batch_size
    points = pair.points[b]
    columns = [
        np.array(column)
        for column in zip(*((p.limit_w, p.time_s, p.energy_j) for p in points), strict=True)
    ]
    curve = Curve(pair.max_power_w, *columns)
    epochs = max(1, round(scenario.success_epochs(b)))
    logging.getLogger("airflow_provider_zeus").setLevel(logging.WARNING)  # a line per training
    found = [overhead(curve, points[-1].time_s, epochs, seed) for seed in range(seeds)]
    astray = sum(f.regret > 0 for f in found)
    energy, time, cost = (
        interval([getattr(f, name) for f in found]) for name in ("energy", "time", "cost")
    )
    return Extra(energy, time, cost, astray)
