"""What a kilowatt hour and a GPU hour cost, and emit, by Airflow's configuration. Standard library only."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.model.budget import Allowance, Budget, Kind

log = logging.getLogger(__name__)

J_PER_KWH, S_PER_H = 3.6e6, 3600.0
OPTIONS = ("price_per_kwh", "price_per_gpu_hour", "pue", "g_co2e_per_kwh")
MOST_CURRENCY = 12  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The factors in force; None: not set, what depends on it is not known. ``pue`` multiplies energy alone."""

    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    pue: float | None = None
    g_co2e_per_kwh: float | None = None
    currency: str = ""

    @property
    def priced(self) -> bool:
        """Whether money is known."""
        return self.price_per_kwh is not None or self.price_per_gpu_hour is not None

    def per_j_and_s(self, gpus: int) -> tuple[float, float]:
        """Price of a joule, and of a second of so many GPUs; 0 where it is not set."""
        per_j = (self.price_per_kwh or 0.0) * (self.pue or 1.0) / J_PER_KWH
        return per_j, (self.price_per_gpu_hour or 0.0) * gpus / S_PER_H

    def allowance(self, budget: Budget, now_s: float) -> Allowance | str:
        """The budget in the period of a time [s since the epoch]; where it cannot be converted, why."""
        begin_s, end_s = budget.span(now_s)
        per_j, per_gpu_s = 1.0, 0.0
        if budget.kind is Kind.CARBON:
            if self.g_co2e_per_kwh is None:
                return f"budget {budget.text}: set [zeus] g_co2e_per_kwh, which says what a kilowatt hour emits"
            per_j = self.g_co2e_per_kwh * (self.pue or 1.0) / J_PER_KWH
        elif budget.kind is Kind.MONEY:
            if not self.priced or self.currency != budget.unit:
                known = f"they are in {self.currency}" if self.priced and self.currency else "none is set"
                return f"budget {budget.text}: set [zeus] price_per_kwh and currency = {budget.unit} ({known})"
            per_j, per_gpu_s = self.per_j_and_s(1)
        return Allowance(budget=budget, begin_s=begin_s, end_s=end_s, per_j=per_j, per_gpu_s=per_gpu_s)


def read(option: Callable[[str], str]) -> dict[str, Any]:
    """The fields of :class:`Prices`, option by option; one out of range is ignored with a warning that names it."""
    found: dict[str, Any] = {name: _number(name, option(name)) for name in OPTIONS}
    return {**found, "currency": option("currency").strip()[:MOST_CURRENCY]}


def of_airflow(name: str) -> str:
    """The text of an option of ``[zeus]``."""
    from airflow.sdk import conf

    return str(conf.get("zeus", name, fallback="") or "")


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    least = 1.0 if name == "pue" else 0.0
    try:
        value = float(text)
        if least <= value < math.inf:
            return value
    except ValueError:
        pass
    log.warning("[zeus] %s = %r is ignored: give a number of at least %g, or leave it empty.", name, text, least)
    return None
