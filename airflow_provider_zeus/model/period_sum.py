"""The sums of the log over a period.

Energies [J], times [s], money in its currency, grams of CO2e.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.units import J_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSum:
    """Sums over the trials of one job in one DAG and of one energy source that began in one
    period.
    """

    dag_id: str
    job_id: str
    source: str | None
    period: int
    runs: int  # people count runs, not tries or attempts
    energy_j: float | None  # None: no trial measured it, and 0 would look like a free one
    time_s: float | None
    gpu_s: float | None  # a GPU hour is paid for each device
    unknown: int  # trials that reported nothing: no sum holds them, and pages say how many
    # These took energy that no sum holds, so a sum beside them is a lower bound.
    without_energy: int
    # without PUE, which an administrator may correct later; None: no hour was priced
    paid: float | None
    paid_j: float | None  # a mean price by all energy would be too low: some hours had no price
    currencies: tuple[str, ...]  # at most two: sums in two currencies are no amount already
    g_co2e: float | None
    g_co2e_j: float | None
    # What a cheaper start saved is no saving of the batch size: it is told apart. Below 0: lost.
    start_saved: float | None
    start_saved_g: float | None
    # A task measured from outside has no default to compare with: no saving is known.
    outside: bool = False

    def drawn(self) -> list[Observation]:
        """The energy as attempts: that whose hours were priced, and the rest."""
        price = _Factor.of(self.paid, self.paid_j, self.start_saved)
        grams = _Factor.of(self.g_co2e, self.g_co2e_j, self.start_saved_g)
        paid_j = self.paid_j or 0.0
        g_j = self.g_co2e_j or 0.0
        # Price and carbon of one hour mostly come together; what only one of them covers is the
        # rest.
        both_j = min(paid_j, g_j)
        rest_j = (self.energy_j or 0.0) - paid_j - g_j + both_j
        return [
            *self._attempts(both_j, price, grams),
            *self._attempts(paid_j - both_j, price, _Factor()),
            *self._attempts(g_j - both_j, _Factor(), grams),
            *self._attempts(max(rest_j, 0.0), _Factor(), _Factor()),
        ]

    def _attempts(self, energy_j: float, price: _Factor, grams: _Factor) -> Iterator[Observation]:
        """Energy [J] of hours with these factors, in equal parts for each currency."""
        if not energy_j:
            return
        currencies = self.currencies or (None,)
        # Two currencies make the sum no amount, which at_the_time() sees by these parts.
        for currency in currencies:
            yield Observation(
                energy_j=energy_j / len(currencies),
                price_per_kwh=price.per_kwh,
                price_at_once=price.at_once,
                price_currency=None if price.per_kwh is None else currency,
                g_co2e_per_kwh=grams.per_kwh,
                g_co2e_at_once=grams.at_once,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factor:
    """Money or grams of a kWh in mean, and those at the time of a start at once; None: not
    known.
    """

    per_kwh: float | None = None
    at_once: float | None = None

    @classmethod
    def of(cls, total: float | None, energy_j: float | None, saved: float | None) -> _Factor:
        """The mean over the energy that had a factor. ``saved``: by a later start."""
        if not energy_j:
            return cls()
        per_kwh = (total or 0.0) / energy_j * J_PER_KWH
        return cls(per_kwh=per_kwh, at_once=per_kwh + (saved or 0.0) / energy_j * J_PER_KWH)
