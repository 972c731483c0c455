"""Batch sizes that stop reaching the target, or reach it again: which table of Epochs(b) holds before and after."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.replays import Replays, mean_ci
from benchmarks.scenario_sets import changed, reaching, with_default

RAISED, LOWERED = "target raised", "target lowered"
SMALL_ONLY, LARGE_ONLY = "tilt, large lost", "tilt, small lost"
LOST = (RAISED, LOWERED, SMALL_ONLY, LARGE_ONLY)


def without(scenario: Scenario, lost: Collection[int]) -> Scenario | None:
    """The scenario where these batch sizes never reach the target; None where no other one does."""
    left = [b for b in scenario.pair.batch_sizes if b not in lost and reaching(scenario.pair, b)]
    epochs = {b: (math.inf,) if b in lost else runs for b, runs in scenario.pair.epochs.items()}
    return changed(scenario, epochs=epochs) if left else None


def best_and_larger(scenario: Scenario) -> Sequence[int]:
    """The batch sizes that a raised target rules out."""
    return [b for b in scenario.pair.batch_sizes if b >= scenario.best]


def half_of(scenario: Scenario, *, large: bool) -> Sequence[int]:
    """The smaller or the larger half of the batch sizes, the middle one left out."""
    sizes = scenario.pair.batch_sizes
    count = len(sizes) // 2
    return sizes[len(sizes) - count :] if large else sizes[:count]


def with_reaching_default(scenario: Scenario) -> Scenario:
    """The scenario; where its default never reaches the target, with the largest batch size that does."""
    pair = scenario.pair
    reach = [b for b in pair.batch_sizes if reaching(pair, b)]
    return scenario if pair.default_batch_size in reach else with_default(scenario, max(reach))


def below_after(found: Replays, shift: int) -> dict[str, Any]:
    """Recurrences below target from ``shift`` on: [mean, half of ci95] per seed, and of these ``again``.

    Again: after the first recurrence since the shift that reached the target.
    """
    below, again = [], []
    for missed, sizes in zip(found.below_target, found.batch_sizes, strict=True):
        since = {t for t in missed if t >= shift}
        found_at = next((t for t in range(shift, len(sizes)) if t not in since), len(sizes))
        below.append(float(len(since)))
        again.append(float(sum(t > found_at for t in since)))
    return {"below": mean_ci(below), "again": mean_ci(again)}


def below_rows(entries: Mapping[str, Mapping[str, Any]], policies: Sequence[str]) -> list[list[str]]:
    """Rows of a table: per scenario and policy the recurrences below target, and those again."""
    return [
        [name, *(f"{of[p]['below'][0]:.1f} ({of[p]['again'][0]:.1f})" for p in policies)]
        for name, of in entries.items()
    ]
