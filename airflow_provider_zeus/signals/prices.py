"""What a kilowatt hour and a GPU hour cost, and emit, by Airflow's configuration. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, counted

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The factors in force; None: not set, what depends on it is not known. ``pue`` multiplies energy alone."""

    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    pue: float | None = None
    g_co2e_per_kwh: float | None = None
    currency: str = ""
    price_from: str = ""  # who priced the hours of the runs; empty: the configuration
    g_co2e_from: str = ""
    unpriced: str = ""  # why money is not known though hours are priced

    @property
    def priced(self) -> bool:
        """Whether money is known."""
        return not self.unpriced and (self.price_per_kwh is not None or self.price_per_gpu_hour is not None)

    @property
    def paid_by(self) -> str:
        """Who says what energy and time cost."""
        energy = None if self.price_per_kwh is None else self.price_from or "[zeus] price_per_kwh"
        time = None if self.price_per_gpu_hour is None else "[zeus] price_per_gpu_hour"
        return "; ".join(filter(None, (time, energy)))

    @property
    def g_per_j(self) -> float:
        """Grams of CO2e of a joule; 0 where it is not set."""
        return (self.g_co2e_per_kwh or 0.0) * (self.pue or 1.0) / J_PER_KWH

    def per_j_and_s(self, gpus: int) -> tuple[float, float]:
        """Price of a joule, and of a second of so many GPUs; 0 where it is not set."""
        per_j = (self.price_per_kwh or 0.0) * (self.pue or 1.0) / J_PER_KWH
        return per_j, (self.price_per_gpu_hour or 0.0) * gpus / S_PER_H

    def money_of(self, energy_j: float | None, gpu_s: float | None) -> float | None:
        """What energy [J] and the time of all GPUs [s] cost; None: no price is set, or a figure is not known."""
        if not self.priced or (energy_j is None and self.price_per_kwh is not None):
            return None
        if gpu_s is None and self.price_per_gpu_hour is not None:
            return None
        per_j, per_s = self.per_j_and_s(1)
        return math.fsum(((energy_j or 0.0) * per_j, (gpu_s or 0.0) * per_s))

    def co2e_g_of(self, energy_j: float | None) -> float | None:
        """Grams of CO2e of energy [J]; None: no intensity is set, or the energy is not known."""
        return None if energy_j is None or self.g_co2e_per_kwh is None else energy_j * self.g_per_j

    def at_the_time(self, seen: Iterable[Observation]) -> Self:
        """The factors of attempts whose hours were priced when they ended: means over their energy.

        An attempt whose hours were not priced counts with the factor that is set. Without one, or where currencies
        differ, money is not known of their sum.
        """
        drawn = [o for o in seen if o.energy_j]
        found = self
        if (carbon := self._mean(drawn, "g_co2e")) is not None:
            found = replace(found, g_co2e_per_kwh=carbon[0], g_co2e_from=carbon[1])
        priced = [o for o in drawn if o.price_per_kwh is not None]
        if not priced:
            return found
        currencies = {o.price_currency or "" for o in priced}
        is_set = len(priced) < len(drawn) and self.price_per_kwh is not None
        if self.currency and (is_set or self.price_per_gpu_hour is not None):
            currencies.add(self.currency)
        if len(currencies) > 1:
            named = " and ".join(sorted(c or "(none)" for c in currencies))
            return replace(found, unpriced=f"prices are in {named}, which cannot be added")
        price = self._mean(drawn, "price")
        if price is None:
            others = _others({o.price_source or "" for o in priced}, len(drawn) - len(priced), len(drawn))
            missing = f"the hours of {others} were not priced"
            return replace(found, unpriced=f"{missing}, and [zeus] price_per_kwh is not set")
        return replace(found, price_per_kwh=price[0], price_from=price[1], currency=currencies.pop())

    def _mean(self, drawn: Sequence[Observation], of: str) -> tuple[float, str] | None:
        """(Mean over the energy drawn, who says so: "mean of the hours ... (api.example.org); of 3 attempts ...").

        None where the hours of no attempt are known, or one's are not and nothing is set for it.

        :param of: ``"price"`` or ``"g_co2e"``: what an observation's and these fields' names begin with.
        """
        option, other = f"{of}_per_kwh", getattr(self, f"{of}_per_kwh")
        values = [getattr(o, option) for o in drawn]
        sources = {getattr(o, f"{of}_source") or "" for o in drawn if getattr(o, option) is not None}
        unknown = values.count(None)
        if not sources or (unknown and other is None):
            return None
        weighed = [(o.energy_j or 0.0) * (other if v is None else v) for o, v in zip(drawn, values, strict=True)]
        names = sorted(sources - {""})
        by = "mean of the hours in which it was drawn"
        if names:
            by += f" ({', '.join(names[:3])}{', …' * (len(names) > 3)})"
        if unknown:
            by += f"; of {_others(sources, unknown)} [zeus] {option}"
        return math.fsum(weighed) / math.fsum(o.energy_j or 0.0 for o in drawn), by

    def start_saved(self, seen: Iterable[Observation]) -> tuple[float, float]:
        """What waiting for a cheaper start saved of the energy drawn: (money, grams of CO2e); below 0: lost."""
        money, grams = [], []
        for o in seen:
            kwh = (o.energy_j or 0.0) / J_PER_KWH * (self.pue or 1.0)
            if o.price_at_once is not None and o.price_per_kwh is not None:
                money.append(kwh * (o.price_at_once - o.price_per_kwh))
            if o.g_co2e_at_once is not None and o.g_co2e_per_kwh is not None:
                grams.append(kwh * (o.g_co2e_at_once - o.g_co2e_per_kwh))
        return math.fsum(money), math.fsum(grams)

    def at_once(self, seen: Sequence[Observation]) -> Self:
        """The factors of :meth:`at_the_time` had no run waited for a cheaper start."""
        found, kwh = self.at_the_time(seen), math.fsum(o.energy_j or 0.0 for o in seen) / J_PER_KWH * (self.pue or 1.0)
        money, grams = self.start_saved(seen)
        if not kwh:
            return found
        price, intensity = found.price_per_kwh, found.g_co2e_per_kwh
        return replace(
            found,
            price_per_kwh=None if price is None else price + money / kwh,
            g_co2e_per_kwh=None if intensity is None else intensity + grams / kwh,
        )


def read(option: Callable[[str], str]) -> dict[str, Any]:
    """The fields of :class:`Prices`, option by option; one out of range is ignored with a warning that names it."""
    found: dict[str, Any] = {"currency": option("currency").strip()[:12]}
    for name, least in {"price_per_kwh": 0.0, "price_per_gpu_hour": 0.0, "pue": 1.0, "g_co2e_per_kwh": 0.0}.items():
        text, value = option(name), math.nan
        with suppress(ValueError):
            value = float(text)
        found[name] = value if least <= value < math.inf else None
        if found[name] is None and text.strip():
            log.warning(
                "[zeus] %s = %r is ignored: give a number of at least %g, or leave it empty.", name, text, least
            )
    return found


def of_airflow(name: str) -> str:
    """The text of an option of ``[zeus]``."""
    from airflow.sdk import conf

    return str(conf.get("zeus", name, fallback="") or "")


def in_force() -> Prices:
    """The prices of Airflow's configuration."""
    return Prices(**read(of_airflow))


def _others(sources: Set[str], others: int, of: int | None = None) -> str:
    """How many attempts were not priced by their hours. Sums of many attempts name no source: there it is a part."""
    if sources == {""}:
        return "a part of the energy"
    return f"{others} of {of} attempts" if of else counted(others, "attempt")
