"""Scenarios that no constant was chosen on: the measured pairs, each changed in one way. Pure: Scenario to Scenario.

===================  =================================================================================================
kind                 what is changed, and why that is plausible
===================  =================================================================================================
(pair alone)         on GPUs other than those of the paper's main evaluation
eta 0, eta 1         time alone, energy alone
default b            another default batch size, of those that reach the target in 80 % of their runs
easier, harder       another target: Epochs(b) x .8 (b / smallest)^-.08, or x 1.3 (b / smallest)^.08. What is harder to
  target             reach takes longer, and the longer the larger the batch (the generalisation gap); the largest
                     batch size never reaches the harder one
n sizes              a coarser list: the default and others spread evenly; or a finer one: sizes put into the widest
                     gaps, their Epochs, times and powers interpolated in log-log between the two measured neighbours
wide, narrow GPU     time of an epoch x (b / smallest)^-.12 or ^.12: a GPU that large batches fill better, or less well
===================  =================================================================================================

Epochs stay whole numbers: a target is looked at after each epoch. A job's author gives ``max_epochs`` for its target.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement

PARTS = ("development", "held-out")
MAIN_GPUS = ("v100", "a40")  # their pairs as measured are benchmarks.reproduction's
REACHES = 0.8  # share of runs
SIZES = (2, 4, 15)
EASIER, HARDER = (0.8, -0.08), (1.3, 0.08)  # (factor at the smallest size, exponent)
GPU = 0.12


def part_of(name: str) -> str:
    """Half of the scenarios are kept away from whoever chooses constants, by a hash of their name."""
    return PARTS[hashlib.sha256(name.encode()).digest()[0] % 2]


def static_scenarios(pairs: Iterable[Pair]) -> dict[str, Scenario]:
    """All of them by name."""
    found: dict[str, Scenario] = {}
    for pair in pairs:
        whole = Scenario(pair)
        kinds = {f"eta {eta:g}": replace(whole, eta=eta) for eta in (0.0, 1.0)}
        kinds |= {f"default {b}": with_default(whole, b) for b in _other_defaults(pair)}
        kinds |= {"easier target": retargeted(whole, *EASIER), "harder target": harder(whole)}
        kinds |= {f"{n} sizes": coarser(whole, n) for n in SIZES if n < len(pair.batch_sizes)}
        kinds |= {f"{n} sizes": finer(whole, n) for n in SIZES if n > len(pair.batch_sizes)}
        kinds |= {"wide GPU": on_gpu(whole, -GPU), "narrow GPU": on_gpu(whole, GPU)}
        if pair.gpu not in MAIN_GPUS:
            found[pair.name] = whole
        found |= {f"{pair.name} {kind}": scenario for kind, scenario in kinds.items()}
    return found


def changed(scenario: Scenario, **fields: Any) -> Scenario:
    """The scenario with other fields of its pair."""
    return replace(scenario, pair=replace(scenario.pair, **fields))


def reaching(pair: Pair, batch_size: int) -> float:
    """Share of the runs of a batch size that reach the target."""
    runs = pair.epochs[batch_size]
    return sum(e <= pair.max_epochs for e in runs) / len(runs)


def with_default(scenario: Scenario, batch_size: int) -> Scenario:
    """Another default batch size."""
    return changed(scenario, default_batch_size=batch_size)


def _other_defaults(pair: Pair) -> list[int]:
    """The smallest, the middle and the largest that would do."""
    would_do = [b for b in pair.batch_sizes if b != pair.default_batch_size and reaching(pair, b) >= REACHES]
    at = (0, len(would_do) // 2, len(would_do) - 1) if would_do else ()
    return list(dict.fromkeys(would_do[i] for i in at))


# ---------------------------------------------------------------------- other targets
def whole_epochs(epochs: float) -> float:
    """Rounded, at least one; a run that never reaches its target stays so."""
    return max(1.0, math.floor(epochs + 0.5)) if math.isfinite(epochs) else math.inf


def scaled(pair: Pair, factor: Callable[[int], float]) -> dict[int, tuple[float, ...]]:
    """The epochs of each batch size times its factor."""
    return {b: tuple(whole_epochs(e * factor(b)) for e in runs) for b, runs in pair.epochs.items()}


def retargeted(scenario: Scenario, factor: float, exponent: float) -> Scenario:
    """Epochs(b) x factor (b / smallest)^exponent, and ``max_epochs`` as that changes the default's."""
    pair = scenario.pair
    smallest = pair.batch_sizes[0]

    def by(b: int) -> float:
        return factor * math.pow(b / smallest, exponent)

    longest = math.ceil(pair.max_epochs * by(pair.default_batch_size))
    return changed(scenario, epochs=scaled(pair, by), max_epochs=longest)


def harder(scenario: Scenario) -> Scenario:
    """A harder target, which the largest batch size never reaches; nor would anybody make that one the default."""
    pair = scenario.pair
    *others, largest = pair.batch_sizes
    default = pair.default_batch_size
    if default == largest and others:
        scenario = with_default(scenario, max(b for b in others if reaching(pair, b) >= REACHES or b == others[0]))
    found = retargeted(scenario, *HARDER)
    return changed(found, epochs={**found.pair.epochs, largest: (math.inf,)}) if others else found


# ---------------------------------------------------------------------- other GPUs
def on_gpu(scenario: Scenario, exponent: float) -> Scenario:
    """Time of an epoch x (b / smallest)^exponent; powers stay."""
    pair = scenario.pair
    smallest = pair.batch_sizes[0]
    points = {
        b: tuple(p._replace(time_s=p.time_s * (b / smallest) ** exponent) for p in measured)
        for b, measured in pair.points.items()
    }
    return changed(scenario, points=points)


# ---------------------------------------------------------------------- other lists of batch sizes
def coarser(scenario: Scenario, count: int) -> Scenario:
    """The default and ``count - 1`` others, spread evenly over the list."""
    pair = scenario.pair
    others = [b for b in pair.batch_sizes if b != pair.default_batch_size]
    each = len(others) / max(count - 1, 1)
    kept = {pair.default_batch_size, *(others[int((i + 0.5) * each)] for i in range(count - 1))}
    return listed(scenario, sorted(kept))


def finer(scenario: Scenario, count: int) -> Scenario:
    """So many batch sizes, or as many as there is room for between those measured."""
    pair = scenario.pair
    sizes = list(pair.batch_sizes)
    while len(sizes) < count:
        gaps = [(low, high) for low, high in pairwise(sizes) if high - low > 1]
        if not gaps:
            break
        low, high = max(gaps, key=lambda gap: (gap[1] / gap[0], -gap[0]))
        sizes = sorted([*sizes, min(max(round(math.sqrt(low * high)), low + 1), high - 1)])
    return listed(scenario, sizes)


def listed(scenario: Scenario, sizes: Iterable[int]) -> Scenario:
    """These batch sizes alone, each measured or between two that were."""
    pair = scenario.pair
    points: dict[int, tuple[PowerMeasurement, ...]] = {}
    epochs: dict[int, tuple[float, ...]] = {}
    for b in sizes:
        points[b], epochs[b] = (pair.points[b], pair.epochs[b]) if b in pair.points else _between(pair, b)
    return changed(scenario, points=points, epochs=epochs)


def _between(pair: Pair, b: int) -> tuple[tuple[PowerMeasurement, ...], tuple[float, ...]]:
    """Points and epochs of a size between two measured ones: the k-th shortest runs of both make its k-th.

    A run of it fails where either of the two does.
    """
    low, high = max(s for s in pair.batch_sizes if s < b), min(s for s in pair.batch_sizes if s > b)
    part = math.log(b / low) / math.log(high / low)

    def mean(one: float, other: float) -> float:
        return math.pow(one, 1 - part) * math.pow(other, part)

    upper: Mapping[float, PowerMeasurement] = {p.limit_w: p for p in pair.points[high]}
    shared = [(p, upper[p.limit_w]) for p in pair.points[low] if p.limit_w in upper]
    points = tuple(PowerMeasurement(p.limit_w, mean(p.time_s, q.time_s), mean(p.power_w, q.power_w)) for p, q in shared)
    one, other = sorted(pair.epochs[low]), sorted(pair.epochs[high])
    runs = max(len(one), len(other))
    both = [(one[i * len(one) // runs], other[i * len(other) // runs]) for i in range(runs)]
    return points, tuple(whole_epochs(math.inf if math.inf in ends else mean(*ends)) for ends in both)
