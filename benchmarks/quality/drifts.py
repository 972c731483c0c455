"""Jobs whose data change: from one recurrence on another table of Epochs(b) holds,
in half of them for a while only.

===================  =================================================================================================
kind                 Epochs(b) after the shift
===================  =================================================================================================
level x1.3 ...       as many times longer, all alike
towards small,       x (b / default)^.4, ^-.4: small, or large, batch sizes get better
  towards large
switched             another workload's on the same GPU, read at the same place between the smallest and the largest
                     size, at the default's old level: another shape that no neighbour announces
target raised        the best batch size and all larger ones never reach the target; smaller ones do as before
target lowered       the way back; a default that does not reach the target before gives way to the largest that does
tilt, large lost     as ``towards small``, and the larger half of the sizes never reaches the target
tilt, small lost     as ``towards large``, and the smaller half never does
silent               one batch size away from the best, at first twice as dear as the best, costs .6 of it: nothing that
                     still runs tells it
===================  =================================================================================================

``max_epochs`` is the same before and after, since a job's author would have to give it beforehand:
half more than the longest run that reaches its target under either table, and no less than it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.command import on_all_cores
from benchmarks.replays import Replays, chunks
from benchmarks.simulation.driver import replay
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair

RAISED = "target raised"
LOWERED = "target lowered"
SMALL_ONLY = "tilt, large lost"
LARGE_ONLY = "tilt, small lost"
# batch sizes stop reaching the target, or reach it again
LOST = (RAISED, LOWERED, SMALL_ONLY, LARGE_ONLY)
# recurrences, from 0
SHIFT = 50
BACK = 85
END = 120
END_BACK = 150
END_SILENT = 200
LEVEL = "level x"
SWITCHED = "switched"
SILENT = "silent"
LEVELS = (1.3, 2.5, 10.0)
TILT = 0.4
TILTS = {"towards small": TILT, "towards large": -TILT}  # exponent of b / default
KINDS = (*(f"{LEVEL}{level:g}" for level in LEVELS), *TILTS, SWITCHED, *LOST, SILENT)
# cost of the silent batch size before and after, cheapest other = 1
BAD = 2.0
GOOD = 0.6
ROOM = 1.5
REACHES = 0.8  # share of its runs that a default reaches the target in


@dataclass(frozen=True)
class Drift:
    """A job that recurs so often, and what holds from which recurrence on."""

    before: Scenario
    recurrences: int
    shifts: Mapping[int, Scenario] = field(default_factory=dict)
    silent: int | None = None  # the batch size that gets better, where it is one alone
    expected_runs: int | None = None  # of the job; None: it does not say how often it recurs
    audit: float = 0.0  # of the job


def drifts(pairs: Iterable[Pair]) -> dict[str, Drift]:
    """All of them by name, and for each pair a job without a shift, ``steady``."""
    whole = [Scenario(pair) for pair in pairs]
    found: dict[str, Drift] = {}
    for scenario in whole:
        name = scenario.pair.name
        for kind in KINDS:
            truths = shifted(kind, scenario, whole)
            if truths is None:
                continue
            before, after = truths
            if kind == SILENT:
                found[f"{name} {kind}"] = Drift(
                    before, END_SILENT, {SHIFT: after}, away_from_best(scenario)
                )
                continue
            found[f"{name} {kind}"] = Drift(before, END, {SHIFT: after})
            found[f"{name} {kind} and back"] = Drift(before, END_BACK, {SHIFT: after, BACK: before})
            if kind == KINDS[0]:
                found[f"{name} steady"] = Drift(before, END_SILENT)
    return found


def shifted(
    kind: str, scenario: Scenario, whole: Sequence[Scenario]
) -> tuple[Scenario, Scenario] | None:
    """What holds before and after a shift of a kind; None where there is none of this scenario.

    :param whole: all scenarios, whose tables ``switched`` takes.
    """
    if kind == SILENT:
        b = away_from_best(scenario)
        return (
            None if b is None else with_room(at_cost(scenario, b, BAD), at_cost(scenario, b, GOOD))
        )
    if kind in LOST:
        return _losing(kind, scenario)
    after = (
        _switched(scenario, whole)
        if kind == SWITCHED
        else times(scenario, factor_of(kind, scenario.pair))
    )
    return None if after is None else with_room(scenario, after)


def _losing(kind: str, scenario: Scenario) -> tuple[Scenario, Scenario] | None:
    """A shift after which sizes stop reaching the target; ``target lowered``:
    after which they reach it again.
    """
    if kind in (RAISED, LOWERED):
        after = without(scenario, [b for b in scenario.pair.batch_sizes if b >= scenario.best])
    else:
        tilt = "towards small" if kind == SMALL_ONLY else "towards large"
        tilted = times(scenario, factor_of(tilt, scenario.pair))
        sizes = scenario.pair.batch_sizes
        half = len(sizes) // 2  # the middle one stays
        after = without(tilted, sizes[len(sizes) - half :] if kind == SMALL_ONLY else sizes[:half])
    if after is None:
        return None
    before, after = with_room(scenario, after)
    if kind != LOWERED:
        return before, after
    reach = [b for b in after.pair.batch_sizes if reaching(after.pair, b)]
    default = after.pair.default_batch_size
    default = default if default in reach else max(reach)
    return with_default(after, default), with_default(before, default)


def factor_of(kind: str, pair: Pair) -> Callable[[int], float]:
    """By how much Epochs(b) grow. Raises ValueError where there is no such kind."""
    if kind in TILTS:
        return lambda b: math.pow(b / pair.default_batch_size, TILTS[kind])
    named = kind.startswith(LEVEL)
    level = float(kind.removeprefix(LEVEL))
    if not named or not 0 < level < math.inf:
        raise ValueError(kind)
    return lambda b: level


def _switched(scenario: Scenario, whole: Sequence[Scenario]) -> Scenario | None:
    default = scenario.pair.default_batch_size
    here = [s.pair.name for s in whole if s.pair.gpu == scenario.pair.gpu]
    at = here.index(scenario.pair.name)
    by_name = {s.pair.name: s for s in whole}
    for donor in here[at + 1 :] + here[:at]:
        found = taken_from(scenario, by_name[donor])
        if reaching(found.pair, default) >= REACHES:  # a job whose default fails is another story
            return found
    return None


def times(scenario: Scenario, factor: Callable[[int], float]) -> Scenario:
    """Epochs(b) x a factor of b."""
    return changed(scenario, epochs=scaled(scenario.pair, factor))


def taken_from(scenario: Scenario, donor: Scenario) -> Scenario:
    """Another workload's table: a run that failed there fails here."""
    pair = scenario.pair
    other = donor.pair
    most = other.max_epochs

    def read_at(b: int) -> tuple[float, ...]:
        place = _place(pair.batch_sizes, b)
        size = min(other.batch_sizes, key=lambda s: (abs(_place(other.batch_sizes, s) - place), s))
        return tuple(e if e <= most else math.inf for e in other.epochs[size])

    table = {b: read_at(b) for b in pair.batch_sizes}
    default = pair.default_batch_size
    level = statistics.median_low(pair.epochs[default]) / statistics.median_low(table[default])
    if not 0 < level < math.inf:
        level = 1.0  # the default fails in one of the two
    return changed(
        scenario,
        epochs={b: tuple(whole_epochs(e * level) for e in runs) for b, runs in table.items()},
    )


def _place(sizes: tuple[int, ...], b: int) -> float:
    """0 for the smallest, 1 for the largest, by logarithm."""
    return math.log(b / sizes[0]) / math.log(sizes[-1] / sizes[0]) if len(sizes) > 1 else 0.0


def with_room(before: Scenario, after: Scenario) -> tuple[Scenario, Scenario]:
    """Both with the ``max_epochs`` that lets what reached its target before do so after."""
    pair = before.pair
    reached = [b for b in pair.batch_sizes if reaching(pair, b) > 0]
    runs = [
        e for b in reached for s in (before, after) for e in s.pair.epochs[b] if math.isfinite(e)
    ]
    longest = max(pair.max_epochs, math.ceil(ROOM * max(runs, default=0.0)))
    return changed(before, max_epochs=longest), changed(after, max_epochs=longest)


# ---------------------------------------------------------------------- sizes that are lost
def without(scenario: Scenario, lost: Collection[int]) -> Scenario | None:
    """The scenario where these batch sizes never reach the target; None where no other one does."""
    left = [b for b in scenario.pair.batch_sizes if b not in lost and reaching(scenario.pair, b)]
    epochs = {b: (math.inf,) if b in lost else runs for b, runs in scenario.pair.epochs.items()}
    return changed(scenario, epochs=epochs) if left else None


# ---------------------------------------------------------------------- one size alone
def away_from_best(scenario: Scenario) -> int | None:
    """Two places from the best batch size, else one; a larger one rather than a smaller one."""
    sizes = scenario.pair.batch_sizes
    best = sizes.index(scenario.best)
    near = (sizes[i] for i in (best + 2, best - 2, best + 1, best - 1) if 0 <= i < len(sizes))
    others = (b for b in near if b != scenario.pair.default_batch_size)
    return next((b for b in others if math.isfinite(scenario.expected_cost(b))), None)


def at_cost(scenario: Scenario, b: int, cost: float) -> Scenario:
    """A batch size whose runs cost so many times what the cheapest other one's do."""
    others = min(scenario.expected_cost(other) for other in scenario.pair.batch_sizes if other != b)
    factor = cost * others / scenario.expected_cost(b)
    runs = tuple(whole_epochs(e * factor) for e in scenario.pair.epochs[b])
    return changed(scenario, epochs={**scenario.pair.epochs, b: runs})


# ---------------------------------------------------------------------- a scenario with one change
def changed(scenario: Scenario, **fields: Any) -> Scenario:
    """The scenario with other fields of its pair."""
    return replace(scenario, pair=replace(scenario.pair, **fields))


def with_default(scenario: Scenario, batch_size: int) -> Scenario:
    """Another default batch size."""
    return changed(scenario, default_batch_size=batch_size)


def reaching(pair: Pair, batch_size: int) -> float:
    """Share of the runs of a batch size that reach the target."""
    runs = pair.epochs[batch_size]
    return sum(e <= pair.max_epochs for e in runs) / len(runs)


def whole_epochs(epochs: float) -> float:
    """Rounded, at least one; a run that never reaches its target stays so."""
    return max(1.0, math.floor(epochs + 0.5)) if math.isfinite(epochs) else math.inf


def scaled(pair: Pair, factor: Callable[[int], float]) -> dict[int, tuple[float, ...]]:
    """The epochs of each batch size times its factor.

    A target is looked at after each epoch, so they stay whole.
    """
    return {b: tuple(whole_epochs(e * factor(b)) for e in runs) for b, runs in pair.epochs.items()}


# ---------------------------------------------------------------------- replays
def play(part: tuple[Drift, str, Sequence[int]]) -> Replays:
    """Replays of one job under one policy, all its seeds."""
    drift, policy, seeds = part
    scenario = drift.before
    found = Replays()
    for seed in seeds:
        job = scenario.job(policy=policy, audit=drift.audit)
        found.add(scenario, replay(scenario, job, drift.recurrences, seed, drift.shifts))
    return found


def run_all(
    cases: Mapping[str, Drift],
    policies: Sequence[str],
    seeds: Sequence[int],
    jobs: int | None = None,
) -> dict[str, dict[str, Replays]]:
    """Every case under every policy."""
    of = [
        (name, policy, some)
        for policy in policies
        for name in cases
        for some in chunks(tuple(seeds))
    ]
    parts = [(cases[name], policy, some) for name, policy, some in of]
    found: dict[str, dict[str, Replays]] = {
        name: {p: Replays() for p in policies} for name in cases
    }
    for (name, policy, _), replays in zip(of, on_all_cores(play, parts, jobs), strict=True):
        found[name][policy].join(replays)
    return found
