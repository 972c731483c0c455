"""Figures of a trial, as numbers with their unit in the name and as text for people. Pure."""

from __future__ import annotations

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.cost import Weights, observed_cost
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Trial

_NONE = "-"
_JOULES = Weights(1.0, 1.0)


def device_of(trial: Trial) -> DeviceInfo | None:
    """The device that a trial ran on; None where it ended before it could name one."""
    seen = trial.observation
    if seen.device_model is None:
        return None
    return DeviceInfo(
        model=seen.device_model,
        count=seen.device_count or 1,
        max_power_w=seen.max_power_w,
        energy_source=seen.energy_source,
    )


def weights_of(trial: Trial, otherwise: DeviceInfo | None = None) -> Weights | None:
    """How the trial's job weighed energy and time on its device; None where its spec cannot be read.

    :param otherwise: the device of a trial that named none.
    """
    try:
        return Weights.of(ZeusJob.from_dict(trial.spec), device_of(trial) or otherwise)
    except JobSpecError:  # of a log that another version wrote
        return None


def cost_of(trial: Trial) -> tuple[float | None, str | None]:
    """What a trial cost its user and the unit: "J", or "s" where time alone is weighed; (None, None) if unknown."""
    weights = weights_of(trial)
    cost = None if weights is None else observed_cost(trial.observation, weights)
    return (None, None) if weights is None or cost is None else (cost, "s" if weights.time_alone else "J")


def cost_text(trial: Trial) -> str:
    """A trial's cost for people."""
    cost, unit = cost_of(trial)
    if cost is None:
        return _NONE
    return _JOULES.text(cost) if unit == "J" else time_text(cost)  # no watt hours: a cost is no energy


def energy_text(energy_j: float | None) -> str:
    """Joules for people, from J to GJ; from a tenth of a kilowatt hour on in watt hours too."""
    if energy_j is None:
        return _NONE
    text = _JOULES.text(energy_j)
    return text if abs(energy_j) < 360e3 else f"{text} ({_watt_hours(energy_j / 3600)})"


def time_text(time_s: float | None) -> str:
    """Seconds for people: s, min or h."""
    if time_s is None:
        return _NONE
    if time_s < 99.5:
        return f"{time_s:.3g} s"
    return f"{time_s / 60:.1f} min" if time_s < 5940 else f"{time_s / 3600:.1f} h"


def number_text(value: float | None, unit: str = "") -> str:
    """A number with at most one decimal."""
    return _NONE if value is None else f"{value:.1f}".removesuffix(".0") + unit


def _watt_hours(energy_wh: float) -> str:
    return f"{energy_wh:.0f} Wh" if energy_wh < 1000 else f"{energy_wh / 1000:.3g} kWh"
