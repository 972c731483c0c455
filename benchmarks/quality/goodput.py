"""Pollux's choice of the batch size, as a policy of the replay (Qiao et al., *Pollux*,
OSDI 2021, sections 3 and 4.1).

Goodput is throughput times statistical efficiency. With the gradient noise scale ``noise``
[samples] a sample of a batch of m teaches ``(noise + m0) / (noise + m)`` as much as one of a batch
of m0. Before each epoch the batch size of highest goodput is taken, no smaller than m0, the size
that the job was submitted with. The power limit is the highest: Pollux knows none. Each training of
a job begins from nothing: Pollux keeps no log between trainings.

Known here, and not to Pollux at first: the throughput of every size, which it fits as it trains.
The noise scales are the published ones of ``data/noise_scales.toml``,
taken at the same share of the way to the target.

And several GPUs of one kind, reckoned from the measurements of one: ``4xa40``. Nothing is lost
between them. Each GPU trains a batch of b / n. So an epoch takes 1 / n of the time that it takes
one GPU with that batch, at n times the power, and its energy is the same. What the GPUs exchange
after each step is left out: it is not in the traces.
Epochs to the target depend on the whole batch, b.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.simulation.environment import NOTHING, Environment, Log, Run
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement, Traces

NOISE_SCALES = Path(__file__).resolve().parents[1] / "data" / "noise_scales.toml"
_EPS = 1e-9


class Variant(NamedTuple):
    """How Pollux is replayed."""

    # m0 is the smallest measured size, as in Pollux's own evaluation; else the default
    from_smallest: bool = True
    times: float = 1.0  # on every noise scale
    # an epoch gets as far as Pollux's model says; else as far as measured trainings did
    believed: bool = False


POLLUX: Mapping[str, Variant] = {
    "pollux": Variant(),
    "pollux_from_default": Variant(from_smallest=False),
    "pollux_noise_quarter": Variant(times=0.25),
    "pollux_noise_4": Variant(times=4.0),
    "pollux_believed": Variant(believed=True),
}


@dataclass(frozen=True, slots=True)
class NoiseScales:
    """Of one workload: where the figures come from,
    and one per epoch of the published training [samples].
    """

    file: str
    stands_in: str  # what differs from the workload; empty: nothing
    until: str
    samples: tuple[float, ...]

    def at(self, progress: float) -> float:
        """The noise scale [samples] at a share of the way to the target, from 0 to 1."""
        return self.samples[min(int(progress * len(self.samples)), len(self.samples) - 1)]


@cache
def noise_scales(path: Path = NOISE_SCALES) -> Mapping[str, NoiseScales]:
    """The published noise scales by workload."""
    found = {}
    for name, of in tomllib.loads(path.read_text(encoding="utf-8"))["workloads"].items():
        pairs = zip(of["grad_sqr"], of["grad_var"], strict=True)
        samples = tuple(var / sqr * of["per_samples"] for sqr, var in pairs)
        found[name] = NoiseScales(of["file"], of["stands_in"], of["until"], samples)
    return found


def efficiency(noise: float, batch_size: int, reference: int) -> float:
    """What a sample teaches at this batch size,
    as a multiple of what it teaches at the reference.
    """
    return (noise + reference) / (noise + batch_size)


def best_batch_size(scenario: Scenario, noise: float, smallest: int) -> int:
    """The measured batch size of highest goodput, none below ``smallest``.

    Every epoch holds the same samples.
    """
    sizes = [b for b in scenario.pair.batch_sizes if b >= smallest]
    return max(sizes, key=lambda b: efficiency(noise, b, smallest) / scenario.full_power(b).time_s)


def pollux(scenario: Scenario, recurrences: int, seed: int, variant: Variant) -> Log:
    """Replay Pollux. Raises JobSpecError where no noise scale was published for a workload."""
    noise = noise_scales().get(scenario.pair.workload)
    if noise is None:
        remedy = f"Published: {', '.join(noise_scales())}"
        raise JobSpecError.of(
            "workload", scenario.pair.workload, "has no published gradient noise scale", remedy
        )
    env = Environment(scenario, seed)
    log = Log()
    for _ in range(recurrences):
        log.add(scenario, [train(env, noise, variant)])
    return log


def train(env: Environment, noise: NoiseScales, variant: Variant) -> Run:
    """One training, its batch size chosen before each epoch;
    ``batch_size`` is that of the last one.

    An epoch at batch size b gets ``1 / needs[b]`` of the way to the target: so many epochs did one
    measured training at b alone need. Where that never got there, an epoch at b gets nowhere; the
    noise scale grows all the same, by the epochs that the default needs. ``expected_cost`` and
    ``chance`` are this training's own.
    """
    scenario = env.scenario
    pair = env.scenario.pair
    needs = {b: env.needs(b) for b in pair.batch_sizes}
    default = pair.default_batch_size
    smallest = _smallest(scenario, variant)
    usual = min(needs[default], pair.max_epochs)
    progress = 0.0
    epochs = 0
    energy_j = 0.0
    time_s = 0.0
    b = smallest
    while progress < 1 - _EPS and epochs < pair.max_epochs:
        scale = noise.at(max(progress, epochs / usual)) * variant.times
        b = best_batch_size(scenario, scale, smallest)
        point = scenario.full_power(b)
        progress += efficiency(scale, b, default) / usual if variant.believed else 1 / needs[b]
        epochs = epochs + 1
        energy_j = energy_j + point.energy_j
        time_s = time_s + point.time_s
    cost = scenario.weights.cost(energy_j, time_s)
    reached = progress >= 1 - _EPS
    limit_w = scenario.full_power(b).limit_w
    return Run(
        b,
        limit_w,
        epochs,
        reached,
        energy_j,
        time_s,
        cost,
        cost / epochs,
        NOTHING,
        cost,
        float(reached),
    )


def sizes_by_progress(scenario: Scenario, variant: Variant) -> list[int]:
    """The batch size that Pollux takes at each published noise scale of the workload, in order."""
    smallest = _smallest(scenario, variant)
    noise = noise_scales()[scenario.pair.workload].samples
    return [best_batch_size(scenario, scale * variant.times, smallest) for scale in noise]


def _smallest(scenario: Scenario, variant: Variant) -> int:
    """m0."""
    pair = scenario.pair
    return pair.batch_sizes[0] if variant.from_smallest else pair.default_batch_size


_SEVERAL = re.compile(r"([2-9])x(\w+)")


def pair_on(traces: Traces, workload: str, gpu: str) -> Pair:
    """A workload on a GPU of the traces, or on several, as ``4xa40``.

    Raises JobSpecError where it was not measured.

    Batch sizes: those of which the whole has measured epochs,
    and the part of one GPU a measured power curve.
    """
    several = _SEVERAL.fullmatch(gpu)
    if several is None or gpu in traces.gpus:
        return traces.pair(workload, gpu)
    n = int(several[1])
    one = traces.pair(workload, several[2])
    trained = traces.epochs(workload)
    points = {
        b * n: tuple(PowerMeasurement(w * n, s / n, power_w * n) for w, s, power_w in found)
        for b, found in one.points.items()
        if b * n in trained
    }
    if not points:
        problem = f"has no batch size that {n} {several[2].upper()} can share as measured"
        raise JobSpecError.of("workload", workload, problem, "Use another workload or GPU")
    wanted = traces.workloads[workload].default_batch_size
    return replace(
        one,
        gpu=gpu,
        max_power_w=one.max_power_w * n,
        points=points,
        epochs={b: trained[b] for b in points},
    ).starting_at(max((b for b in points if b <= wanted), default=min(points)))
