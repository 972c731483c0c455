"""Money and carbon: joules and seconds converted by the factors of ``[zeus]``, for the pages alone.

What is converted is never stored, compared or learned from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.plugin.views.models import Figure
from airflow_provider_zeus.signals.prices import Prices, of_airflow, read
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, grams_text, money_text

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors(Prices):
    """The prices in force, and figures made with them."""

    tariff: Tariff | None = None  # prices by the hour of the day, to compare schedules

    def money(self, energy_j: float | None, gpu_s: float | None) -> Figure | None:
        """Price of the energy [J] and of the time of all GPUs [s]. None: no price is set."""
        if self.unpriced:
            return Figure(exact=self.unpriced)
        if not self.priced:
            return None
        value = self.money_of(energy_j, gpu_s)
        if value is None:
            unknown = "energy" if energy_j is None and self.price_per_kwh is not None else "time"
            return Figure(exact=f"its {unknown} is not known")
        sums: list[str] = []
        if self.price_per_kwh is not None:
            sums.append(f"{self._kwh(energy_j or 0.0)} at {self.price_per_kwh:.6g}{_by(self.price_from)}")
        if self.price_per_gpu_hour is not None:
            sums.append(f"{(gpu_s or 0.0) / S_PER_H:,.6g} GPU-hours at {self.price_per_gpu_hour:g}")
        return Figure(
            value=value,
            text=self.amount(value),
            exact=f"{value:,.8g} {self.currency}".strip() + f" = {' + '.join(sums)}",
        )

    def carbon(self, energy_j: float | None) -> Figure | None:
        """Grams of CO2 equivalent of the energy [J]. None: no carbon intensity is set."""
        if self.g_co2e_per_kwh is None:
            return None
        if energy_j is None:
            return Figure(exact="its energy is not known")
        grams, by = self.co2e_g_of(energy_j) or 0.0, f"{self.g_co2e_per_kwh:.6g} g/kWh{_by(self.g_co2e_from)}"
        return Figure(value=grams, text=grams_text(grams), exact=f"{grams:,.8g} g = {self._kwh(energy_j)} at {by}")

    def paid(self, value: float) -> Figure:
        """An amount of money."""
        return Figure(value=value, text=self.amount(value), exact=f"{value:,.8g} {self.currency}".strip())

    def amount(self, value: float) -> str:
        """An amount of money, in words."""
        return money_text(value, self.currency or "(no currency set)")

    def _kwh(self, energy_j: float) -> str:
        """Kilowatt hours that are paid for."""
        return f"{energy_j / J_PER_KWH * (self.pue or 1.0):,.6g} kWh{f' (PUE {self.pue:g})' if self.pue else ''}"


def grams_of(grams: float) -> Figure:
    """An amount of CO2 equivalent."""
    return Figure(value=grams, text=grams_text(grams), exact=f"{grams:,.8g} g")


def _by(source: str) -> str:
    return f", {source}" if source else ""


def factors(option: Callable[[str], str]) -> Factors:
    """Read the factors, option by option; a value out of range is ignored with a warning that names it."""
    text, tariff = option("tariff"), None
    try:
        tariff = Tariff.parse(json.loads(text)) if text.strip() else None
    except (ValueError, RecursionError) as error:  # JobSpecError is a ValueError
        log.warning("[zeus] tariff is ignored: %s", error)
    return Factors(**read(option), tariff=tariff)


def configured() -> Factors:
    """The factors of Airflow's configuration."""
    return factors(of_airflow)
