"""The cost of a replay, recurrence by recurrence, and its regret (Eq. 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from airflow_provider_zeus.simulation.environment import Run
from airflow_provider_zeus.simulation.scenario import Scenario


class Log:
    """One list per figure, one entry per recurrence. Costs [J], energies [J], times [s], power limits [W].

    ``expected_cost`` replaces each run's cost by the mean over all runs of the same batch size and bound: the same mean
    over seeds, with less variance.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.expected_cost: list[float] = []
        self.energy_j: list[float] = []
        self.time_s: list[float] = []
        self.batch_size: list[int] = []  # of the run that was kept
        self.limit_w: list[float] = []
        self.attempts: list[int] = []
        self.best_cost: list[float] = []  # C* at that recurrence
        self.runs: list[tuple[Run, ...]] = []
        self.runs_without_model = 0
        self.runs_below_target = 0

    def __len__(self) -> int:
        return len(self.cost)

    def add(
        self,
        scenario: Scenario,
        runs: Sequence[Run],
        *,
        final: bool = True,
        kept: bool = True,
    ) -> None:
        """Add a recurrence of these runs. One that ends below target, or without a model, costs one C* more: a repeat.

        :param final: whether the recurrence ends with its last run even if that misses the target.
        :param kept: whether the model of the last run is kept.
        """
        last, missed = runs[-1], scenario.best_cost
        self.cost.append(math.fsum([r.cost for r in runs]) + missed * (not last.reached))
        self.expected_cost.append(math.fsum([r.expected_cost for r in runs]) + missed * (1.0 - last.chance) * final)
        self.energy_j.append(math.fsum([r.energy_j for r in runs]))
        self.time_s.append(math.fsum([r.time_s for r in runs]))
        self.batch_size.append(last.batch_size)
        self.limit_w.append(last.limit_w)
        self.attempts.append(len(runs))
        self.best_cost.append(scenario.best_cost)
        self.runs.append(tuple(runs))
        self.runs_without_model += not kept
        self.runs_below_target += kept and not last.reached

    def regret(self) -> list[float]:
        """Return the cumulative regret after each recurrence, in units of C*."""
        return list(accumulate(c / best - 1 for c, best in zip(self.cost, self.best_cost, strict=True)))

    def expected_regret(self) -> list[float]:
        """Return the cumulative regret of ``expected_cost``, in units of C*."""
        return list(accumulate(c / best - 1 for c, best in zip(self.expected_cost, self.best_cost, strict=True)))
