"""What the energy of an attempt cost and emitted by the hours in which it was drawn. Pure.

The power is taken as even over the attempt, so the mean of the series over its time is that of its energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series

NAMES = {PRICE: "price_per_kwh", CARBON: "g_co2e_per_kwh"}  # signal -> field of an observation
_FIELDS = (*NAMES.values(), "price_currency", "price_source", "price_at_once", "g_co2e_source", "g_co2e_at_once")
NO_VALUE = "the signal has no value for a part of its hours"


def unpriced(seen: Observation) -> Observation:
    """The observation without prices: those that a training reports itself count for nothing."""
    reasons = {name: why for name, why in seen.reasons.items() if name not in _FIELDS}
    if reasons == seen.reasons and all(getattr(seen, name) is None for name in _FIELDS):
        return seen
    none: dict[str, Any] = dict.fromkeys(_FIELDS)
    return replace(seen, reasons=reasons, **none)


def span(seen: Observation, *, began_s: float, earlier_s: float, ended_s: float | None) -> tuple[float, float] | None:
    """When the energy of an attempt was drawn: (start, end) [s since the epoch]; None where that is not known.

    The time of a simulated device runs on its own, so its attempt takes its time from the start of the run on.

    :param began_s: when the first attempt of the run was opened.
    :param earlier_s: what the attempts before it took.
    :param ended_s: when the attempt ended.
    """
    if seen.time_s is None:
        return None
    if seen.energy_source == "simulated":
        return began_s + earlier_s, began_s + earlier_s + seen.time_s
    return None if ended_s is None else (max(ended_s - seen.time_s, min(began_s, ended_s)), ended_s)


def priced(
    seen: Observation, found: Mapping[str, Series | str], at: tuple[float, float], waited_s: float = 0.0
) -> Observation:
    """The observation with the means over its hours.

    :param found: by :data:`PRICE` and :data:`CARBON` the series, or why there is none; a signal that is not set up is
        left out.
    :param at: see :func:`span`.
    :param waited_s: by how much later the run began since it waited for a cheaper start; 0: it did not wait.
    """
    values: dict[str, Any] = {}
    reasons = dict(seen.reasons)
    for signal, series in found.items():
        field = NAMES[signal]
        if isinstance(series, str):
            reasons[field] = series
            continue
        mean = series.mean(*at) if series.unit.goal == signal else None
        if mean is None:
            reasons[field] = NO_VALUE if series.unit.goal == signal else f"the signal is in {series.unit.name}"
            continue
        short = field.removesuffix("_per_kwh")
        values |= {field: mean, f"{short}_source": _source(series, at)}
        if signal == PRICE:
            values["price_currency"] = series.unit.name.partition("/")[0]
        if waited_s > 0:
            values[f"{short}_at_once"] = series.mean(at[0] - waited_s, at[1] - waited_s)
    return replace(seen, reasons=reasons, **values)


def _source(series: Series, at: tuple[float, float]) -> str:
    """Who says so, and of which zone; whether a part is an estimate of the service."""
    estimated = any(step.estimated for step in series.steps if step.start_s < at[1] and step.end_s > at[0])
    return ", ".join(filter(None, (series.source, series.zone, "estimated" if estimated else "")))
