"""Money and carbon: joules and seconds converted by the factors of ``[zeus]``, for the pages alone.

A converted figure is never stored, compared or learned from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.plugin.answer_parts import Figure
from airflow_provider_zeus.signals.prices import Prices, of_airflow, read
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, grams_text, money_text

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors(Prices):
    """The prices in force, and figures made with them."""

    tariff: Tariff | None = None  # only a tariff tells the price of hours to come

    def money(self, energy_j: float | None, gpu_s: float | None) -> Figure | None:
        """Price of the energy [J] and of the time of all GPUs [s]. None: no price is set."""
        # Sums of two currencies would be wrong, so the reason stands in place of the money.
        if self.unpriced:
            return Figure(exact=self.unpriced)
        if not self.priced:
            return None
        parts = []
        if self.price_per_kwh is not None:
            if energy_j is None:
                return Figure(exact="its energy is not known")
            by = _by(self.price_from)
            parts.append(f"{self._kwh(energy_j)} at {self.price_per_kwh:.6g}{by}")
        if self.price_per_gpu_hour is not None:
            # A price without one of its parts would be too low.
            if gpu_s is None:
                return Figure(exact="its time is not known")
            parts.append(f"{gpu_s / S_PER_H:,.6g} GPU-hours at {self.price_per_gpu_hour:g}")
        value = self.money_of(energy_j, gpu_s)
        assert value is not None
        exact = f"{self._exactly(value)} = {' + '.join(parts)}"
        return Figure(value=value, text=self.amount(value), exact=exact)

    def carbon(self, energy_j: float | None) -> Figure | None:
        """Grams of CO2 equivalent of the energy [J]. None: no carbon intensity is set."""
        if self.g_co2e_per_kwh is None:
            return None
        if energy_j is None:
            return Figure(exact="its energy is not known")
        grams = self.co2e_g_of(energy_j)
        assert grams is not None
        by = f"{self.g_co2e_per_kwh:.6g} g/kWh{_by(self.g_co2e_from)}"
        exact = f"{grams:,.8g} g = {self._kwh(energy_j)} at {by}"
        return Figure(value=grams, text=grams_text(grams), exact=exact)

    def paid(self, value: float) -> Figure:
        """An amount of money."""
        return Figure(value=value, text=self.amount(value), exact=self._exactly(value))

    def amount(self, value: float) -> str:
        """An amount of money, in words."""
        return money_text(value, self.currency)

    def _exactly(self, value: float) -> str:
        return f"{value:,.8g} {self.currency}".strip()

    def _kwh(self, energy_j: float) -> str:
        """Kilowatt hours that are paid for."""
        if not self.pue:
            return f"{energy_j / J_PER_KWH:,.6g} kWh"
        return f"{energy_j / J_PER_KWH * self.pue:,.6g} kWh (PUE {self.pue:g})"


def grams_of(grams: float) -> Figure:
    """An amount of CO2 equivalent."""
    return Figure(value=grams, text=grams_text(grams), exact=f"{grams:,.8g} g")


def _by(source: str) -> str:
    if not source:
        return ""
    return f", {source}"


def factors(option: Callable[[str], str]) -> Factors:
    """Read the factors, option by option.

    A value out of range is ignored with a warning that names it.
    """
    text = option("tariff")
    tariff = None
    try:
        if text.strip():
            tariff = Tariff.parse(json.loads(text))
    # A mistake in one option must not take the page away; the log names it.
    except (ValueError, RecursionError) as error:  # JobSpecError is a ValueError
        log.warning("[zeus] tariff is ignored: %s", error)
    return Factors(**read(option), tariff=tariff)


def configured() -> Factors:
    """The factors of Airflow's configuration."""
    return factors(of_airflow)
