"""Figures of a trial as text for people. Pure."""

from __future__ import annotations

from airflow_provider_zeus import units


def energy_text(energy_j: float | None) -> str:
    """Energy [J] for people."""
    return "-" if energy_j is None else units.energy_text(energy_j)


def time_text(time_s: float | None) -> str:
    """Time [s] for people."""
    return "-" if time_s is None else units.time_text(time_s)


def number_text(value: float | None, unit: str = "") -> str:
    """A number as text, with at most one decimal."""
    return "-" if value is None else f"{value:.1f}".removesuffix(".0") + unit
