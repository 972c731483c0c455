"""What a replay cost, recurrence by recurrence, and its regret (Eq. 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from airflow_provider_zeus.simulation.environment import Run
from airflow_provider_zeus.simulation.scenario import Scenario


class Log:
    """One column per figure, one entry per recurrence. Costs [J], energies [J], times [s], power limits [W].

    ``expected_cost`` replaces each run's cost by the mean over all runs that begin alike (same batch size, same bound):
    the same mean over seeds, with less of the luck of the draw in it.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.expected_cost: list[float] = []
        self.energy_j: list[float] = []
        self.time_s: list[float] = []
        self.batch_size: list[int] = []  # of the run that was kept
        self.limit_w: list[float] = []
        self.attempts: list[int] = []
        self.best_cost: list[float] = []  # C* of that moment
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
        """One recurrence; its last run is the one whose model is kept, unless ``kept`` says that none was.

        A recurrence that ends below target, or without a model, is charged one C* more: it has to be done again.
        ``final``: the recurrence would have ended with its last run whether or not that reached the target.
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
        """Cumulative regret after each recurrence, in units of C*."""
        return list(accumulate(c / best - 1 for c, best in zip(self.cost, self.best_cost, strict=True)))

    def expected_regret(self) -> list[float]:
        """The same of ``expected_cost``."""
        return list(accumulate(c / best - 1 for c, best in zip(self.expected_cost, self.best_cost, strict=True)))
