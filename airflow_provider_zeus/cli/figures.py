"""Figures of a trial as numbers and as text for people. Pure."""

from __future__ import annotations

from airflow_provider_zeus import units
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.trial import DeviceInfo, Trial

_NONE = "-"


def device_of(trial: Trial) -> DeviceInfo | None:
    """The device of a trial; None where the trial ended before it reported one."""
    seen = trial.observation
    if seen.device_model is None:
        return None
    return DeviceInfo(
        model=seen.device_model,
        count=seen.device_count or 1,
        max_power_w=seen.max_power_w,
        energy_source=seen.energy_source,
    )


def weights_of(trial: Trial, fallback: DeviceInfo | None = None) -> Weights | None:
    """Weights of energy and time of the trial's job on its device; None where its spec cannot be read.

    :param fallback: the device of a trial that reported none.
    """
    try:
        return Weights.of(trial.job, device_of(trial) or fallback)
    except JobSpecError:  # another version wrote it
        return None


def cost_of(trial: Trial) -> tuple[float | None, str | None]:
    """Cost of a trial and its unit: "J", or "s" where time alone is weighed; (None, None) where it is not known."""
    weights = weights_of(trial)
    cost = None if weights is None else observed_cost(trial.observation, weights)
    return (None, None) if weights is None or cost is None else (cost, "s" if weights.time_alone else "J")


def cost_text(trial: Trial) -> str:
    """Cost of a trial as text."""
    cost, unit = cost_of(trial)
    if cost is None or unit is None:
        return _NONE
    return units.cost_text(cost, unit)


def energy_text(energy_j: float | None) -> str:
    """Energy [J] for people."""
    return _NONE if energy_j is None else units.energy_text(energy_j)


def time_text(time_s: float | None) -> str:
    """Time [s] for people."""
    return _NONE if time_s is None else units.time_text(time_s)


def number_text(value: float | None, unit: str = "") -> str:
    """A number as text, with at most one decimal."""
    return _NONE if value is None else f"{value:.1f}".removesuffix(".0") + unit
