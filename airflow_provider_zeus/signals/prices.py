"""The cost and emission of a kilowatt hour and a GPU hour, by Airflow's configuration.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.groups import sum_of_known
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, counted

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The factors in force; None: not set, so figures that depend on it are not known.

    ``pue`` multiplies energy alone.
    """

    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    pue: float | None = None
    g_co2e_per_kwh: float | None = None
    currency: str = ""
    price_from: str = ""  # a bill is checked by its source; empty: the configuration
    g_co2e_from: str = ""
    unpriced: str = ""  # a page that lost its money has to say why

    @property
    def priced(self) -> bool:
        """Whether money is known."""
        # Sums in two currencies are no amount.
        if self.unpriced:
            return False
        return self.price_per_kwh is not None or self.price_per_gpu_hour is not None

    @property
    def paid_by(self) -> str:
        """The source of the prices of energy and time."""
        sources = []
        if self.price_per_gpu_hour is not None:
            sources.append("[zeus] price_per_gpu_hour")
        if self.price_per_kwh is not None:
            sources.append(self.price_from or "[zeus] price_per_kwh")
        return "; ".join(sources)

    @property
    def overhead(self) -> float:
        """``pue``, or 1 if it is not set: the energy of the site for each joule of a device."""
        return self.pue or 1.0

    @property
    def g_per_j(self) -> float:
        """Grams of CO2e of a joule; 0 if it is not set."""
        return (self.g_co2e_per_kwh or 0.0) * self.overhead / J_PER_KWH

    def per_j_and_s(self, gpus: int) -> tuple[float, float]:
        """Price of a joule, and of a second of so many GPUs; 0 if it is not set."""
        per_j = (self.price_per_kwh or 0.0) * self.overhead / J_PER_KWH
        return per_j, (self.price_per_gpu_hour or 0.0) * gpus / S_PER_H

    def money_of(self, energy_j: float | None, gpu_s: float | None) -> float | None:
        """The price of energy [J] and of the time of all GPUs [s]; None: no price is set, or a
        figure is not known.
        """
        if not self.priced:
            return None
        per_j, per_s = self.per_j_and_s(1)
        # With a price set, an unknown figure makes all unknown: a part would look like the whole.
        parts = []
        if self.price_per_kwh is not None:
            if energy_j is None:
                return None
            parts.append(energy_j * per_j)
        if self.price_per_gpu_hour is not None:
            if gpu_s is None:
                return None
            parts.append(gpu_s * per_s)
        return math.fsum(parts)

    def co2e_g_of(self, energy_j: float | None) -> float | None:
        """Grams of CO2e of energy [J]; None: no intensity is set, or the energy is not known."""
        if energy_j is None or self.g_co2e_per_kwh is None:
            return None
        return energy_j * self.g_per_j

    def at_the_time(self, observations: Iterable[Observation]) -> Self:
        """The factors of attempts whose hours were priced when they ended: means over their energy.

        An attempt whose hours were not priced counts with the factor that is set. Without one, or
        if currencies differ, the money of their sum is not known.
        """
        # An attempt that drew nothing has no hours whose price could count.
        drawn = [o for o in observations if o.energy_j]
        prices = self
        carbon = self._mean(drawn, "g_co2e")
        # None: no hour is known, and a factor that is set is better than none.
        if carbon is not None:
            prices = replace(prices, g_co2e_per_kwh=carbon.value, g_co2e_from=carbon.source)
        priced = [o for o in drawn if o.price_per_kwh is not None]
        if not priced:
            return prices
        currencies = {o.price_currency or "" for o in priced}
        unpriced = len(drawn) - len(priced)
        own_prices = [self.price_per_gpu_hour]
        if unpriced:
            own_prices.append(self.price_per_kwh)
        # What is priced by the configuration is in its currency, which others cannot be added to.
        if self.currency and own_prices.count(None) < len(own_prices):
            currencies.add(self.currency)
        if len(currencies) > 1:
            named = " and ".join(sorted(currency or "(none)" for currency in currencies))
            return replace(prices, unpriced=f"prices are in {named}, which cannot be added")
        price = self._mean(drawn, "price")
        if price is None:
            sources = {o.price_source or "" for o in priced}
            missing = f"the hours of {_others(sources, unpriced, len(drawn))} were not priced"
            return replace(prices, unpriced=f"{missing}, and [zeus] price_per_kwh is not set")
        return replace(
            prices,
            price_per_kwh=price.value,
            price_from=price.source,
            currency=currencies.pop(),
        )

    def _mean(self, drawn: Sequence[Observation], factor: str) -> _Mean | None:
        """The mean of a factor over the energy drawn.

        None if the hours of no attempt are known, or those of one are not and nothing is set for
        it.

        :param factor: ``"price"`` or ``"g_co2e"``: the names of its fields begin with it.
        """
        field = f"{factor}_per_kwh"
        of_configuration = getattr(self, field)
        sources = set()
        weighed = []
        unpriced = 0
        for observation in drawn:
            value = getattr(observation, field)
            if value is None:
                unpriced += 1
                value = of_configuration
            else:
                sources.add(getattr(observation, f"{factor}_source") or "")
            if value is None:
                return None
            # By energy, not by attempt: a long one pays more of the mean.
            weighed.append((observation.energy_j or 0.0) * value)
        if not sources:
            return None
        source = "mean of the hours in which it was drawn"
        names = sorted(sources - {""})
        if len(names) > 3:
            names[3:] = ["…"]
        if names:
            source += f" ({', '.join(names)})"
        if unpriced:
            source += f"; of {_others(sources, unpriced)} [zeus] {field}"
        total = sum_of_known(observation.energy_j for observation in drawn)
        return _Mean(math.fsum(weighed) / total, source)

    def start_saved(self, observations: Iterable[Observation]) -> tuple[float, float]:
        """The saving by waiting for a cheaper start of the energy drawn: (money, grams of CO2e);
        below 0: lost.
        """
        money = []
        grams = []
        for o in observations:
            # The meter of the site counts the cooling, too.
            kwh = (o.energy_j or 0.0) / J_PER_KWH * self.overhead
            money.append(kwh * _less(o.price_at_once, o.price_per_kwh))
            grams.append(kwh * _less(o.g_co2e_at_once, o.g_co2e_per_kwh))
        return math.fsum(money), math.fsum(grams)

    def at_once(self, observations: Sequence[Observation]) -> Self:
        """The factors of :meth:`at_the_time` had no run waited for a cheaper start."""
        prices = self.at_the_time(observations)
        kwh = sum_of_known(o.energy_j for o in observations) / J_PER_KWH * self.overhead
        # Nothing was drawn, so no start can have saved anything, and no share of it exists.
        if not kwh:
            return prices
        money, grams = self.start_saved(observations)
        if prices.price_per_kwh is not None:
            prices = replace(prices, price_per_kwh=prices.price_per_kwh + money / kwh)
        if prices.g_co2e_per_kwh is not None:
            prices = replace(prices, g_co2e_per_kwh=prices.g_co2e_per_kwh + grams / kwh)
        return prices


def _less(at_once: float | None, later: float | None) -> float:
    """By how much a later start lowered a factor; 0 if one of the two is not known."""
    # A run that did not wait saved nothing by its start.
    if at_once is None or later is None:
        return 0.0
    return at_once - later


class _Mean(NamedTuple):
    """A mean over the energy of attempts."""

    value: float
    source: str  # a mean of several services has to name them


# A lower value is a typing error: PUE is the energy of a site over that of its machines.
LEAST = {"price_per_kwh": 0.0, "price_per_gpu_hour": 0.0, "pue": 1.0, "g_co2e_per_kwh": 0.0}


def read(option: Callable[[str], str]) -> dict[str, Any]:
    """The fields of :class:`Prices`, option by option; one out of range is ignored with a
    warning that names it.
    """
    fields: dict[str, Any] = {"currency": option("currency").strip()[:12]}
    for name, least in LEAST.items():
        text = option(name)
        fields[name] = _number_of(text, least)
        if fields[name] is None and text.strip():
            log.warning(
                "[zeus] %s = %r is ignored: give a number of at least %g, or leave it empty.",
                name,
                text,
                least,
            )
    return fields


def _number_of(text: str, least: float) -> float | None:
    """The number that a text is; None if it is none, or not from ``least`` on, or infinite."""
    try:
        value = float(text)
    except ValueError:
        return None
    # NaN fails both comparisons, so it never becomes a price.
    return value if least <= value < math.inf else None


def of_airflow(name: str) -> str:
    """The text of an option of ``[zeus]``."""
    from airflow.sdk import conf

    return str(conf.get("zeus", name, fallback="") or "")


def in_force() -> Prices:
    """The prices of Airflow's configuration."""
    return Prices(**read(of_airflow))


def _others(sources: Set[str], others: int, of: int | None = None) -> str:
    """How many attempts were not priced by their hours.

    Sums of many attempts name no source: there it is a part.
    """
    if sources == {""}:
        return "a part of the energy"
    if of is None:
        return counted(others, "attempt")
    return f"{others} of {counted(of, 'attempt')}"
