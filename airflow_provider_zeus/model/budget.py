"""Budgets of a job: energy, money or CO2e for each day, week or month (UTC). Standard library only.

``"50 kWh/month"``, ``"20 EUR/week"``, ``"3 kg CO2e/day"``. What is spent is a sum over the trial log, so whether a
budget is used up is a function of the log and of the time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.units import energy_text, money_text, share_text, three_digits

WARN_AT = 0.8  # share of a budget that is warned of; the other one is all of it
STOPS = {  # by on_budget, what a budget that is used up does until its next period begins
    "incumbent": "No other batch size is tried",
    "skip": "Runs are skipped",
    "fail": "Runs fail",
}

_FORM = re.compile(
    r"\s*(?P<amount>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*"
    r"(?P<unit>[A-Za-z]+)(?P<co2e>\s*CO2e)?\s*/\s*(?P<period>day|week|month)\s*"
)
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9}
_GRAMS = {"g": 1.0, "kg": 1e3, "t": 1e6}
_REMEDY = 'write it as "50 kWh/month", "20 EUR/week" or "3 kg CO2e/day"'


class Kind(StrEnum):
    """What a budget is of."""

    ENERGY = "energy"  # joules
    CARBON = "carbon"  # grams of CO2e
    MONEY = "money"  # in its currency


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount that the runs of a job may spend in each period. ``unit``: J, g, or the currency."""

    text: str
    kind: Kind
    amount: float
    unit: str
    period: str  # day | week | month

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse ``"50 kWh/month"``. Raises JobSpecError that names the forms."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise JobSpecError.of("budget", text, "cannot be read as amount, unit and period", _REMEDY)
        unit, amount, most = match["unit"], float(match["amount"]), 1e15
        if not 0 < amount <= most:
            raise JobSpecError.of("budget", text, f"its amount is not above 0 and up to {most:g}", _REMEDY)
        if match["co2e"] and unit not in _GRAMS:
            raise JobSpecError.of("budget", text, f"CO2e is given in {', '.join(_GRAMS)}, not in {unit!r}", _REMEDY)
        shown = f"{match['amount']} {unit}{' CO2e' if unit in _GRAMS else ''}/{match['period']}"
        if unit in _JOULES:
            return cls(shown, Kind.ENERGY, amount * _JOULES[unit], "J", match["period"])
        if unit in _GRAMS:
            return cls(shown, Kind.CARBON, amount * _GRAMS[unit], "g", match["period"])
        if not re.fullmatch("[A-Z]{3}", unit):
            units = ", ".join([*_JOULES, *_GRAMS])
            raise JobSpecError.of("budget", text, f"{unit!r} is no unit ({units}) and no currency (EUR)", _REMEDY)
        return cls(shown, Kind.MONEY, amount, unit, match["period"])

    def span(self, now_s: float) -> tuple[float, float]:
        """Begin and end of the period (UTC; weeks begin on Monday) in which a time [s since the epoch] lies."""
        now = datetime.fromtimestamp(now_s, UTC)
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period == "day":
            return day.timestamp(), (day + timedelta(days=1)).timestamp()
        if self.period == "week":
            monday = day - timedelta(days=day.weekday())
            return monday.timestamp(), (monday + timedelta(days=7)).timestamp()
        first = day.replace(day=1)
        return first.timestamp(), (first + timedelta(days=31)).replace(day=1).timestamp()

    def amount_text(self, amount: float) -> str:
        """An amount in the budget's unit, for people."""
        if self.kind is Kind.ENERGY:
            return energy_text(amount)
        if self.kind is Kind.CARBON:
            return f"{three_digits(amount / 1000)} kg CO2e" if amount >= 1000 else f"{three_digits(amount)} g CO2e"
        return money_text(amount, self.unit)

    @property
    def rate_text(self) -> str:
        """The budget beside amounts, in their unit."""
        return f"{self.amount_text(self.amount)}/{self.period}" if self.kind is Kind.ENERGY else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """A budget in one of its periods, and what a joule and a second of a GPU cost in its unit."""

    budget: Budget
    begin_s: float  # of the period [s since the epoch]
    end_s: float
    per_j: float
    per_gpu_s: float

    def of(self, energy_j: float | None, gpu_s: float) -> float | None:
        """What energy [J] and time of all GPUs [s] take of it, in its unit; None where the energy is not known."""
        if energy_j is None and self.per_j and gpu_s:
            return None
        return (energy_j or 0.0) * self.per_j + gpu_s * self.per_gpu_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """How much of a budget is used. ``committed``: what open runs are expected to take beyond what they reported."""

    allowance: Allowance
    spent: float
    committed: float

    @property
    def share(self) -> float:
        """The share that is spent or committed; 1 and more: used up."""
        return (self.spent + self.committed) / self.allowance.budget.amount

    @property
    def text(self) -> str:
        """A sentence for logs and pages."""
        budget, until = self.allowance.budget, datetime.fromtimestamp(self.allowance.end_s, UTC)
        share = share_text(self.share, "%")
        running = f", and open runs are expected to take {budget.amount_text(self.committed)}" if self.committed else ""
        return (
            f"{budget.amount_text(self.spent)} of the budget {budget.rate_text} are spent ({share}"
            f"{' with those' if self.committed else ''}{running}); a new period begins on {until:%Y-%m-%d} (UTC)"
        )


def use(
    allowance: Allowance,
    spent: tuple[float | None, float],
    open_runs: list[tuple[float | None, float]],
    usual: tuple[float | None, float],
) -> BudgetUse | None:
    """How much of a budget is used; None where a figure that it needs is not known.

    :param spent: energy [J] and time of all GPUs [s] of the period, with what open runs reported so far.
    :param open_runs: the same of each open run of the period, with all its attempts.
    :param usual: the same of a usual run: an open one is expected to take that, or what it has taken already.
    """
    done, whole = allowance.of(*spent), allowance.of(*usual)
    so_far = [allowance.of(*each) or 0.0 for each in open_runs]
    if done is None:
        return None
    committed = math.fsum(max((whole or 0.0) - each, 0.0) for each in so_far)
    return BudgetUse(allowance=allowance, spent=done, committed=committed)
