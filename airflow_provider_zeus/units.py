"""Energies, times and costs as text in the unit that fits, for the pages and the command line. Pure."""

from __future__ import annotations

_ENERGY = ((3.6e6, 3.6e6, "kWh"), (1e6, 3600.0, "Wh"), (1e3, 1e3, "kJ"))  # from this many joules on, size, unit


def energy_text(energy_j: float) -> str:
    """Energy [J] in J, kJ, Wh or kWh, with three digits."""
    size, unit = next(((size, unit) for least, size, unit in _ENERGY if abs(energy_j) >= 0.9995 * least), (1.0, "J"))
    return f"{three_digits(energy_j / size)} {unit}"


def time_text(time_s: float) -> str:
    """Time [s] in seconds, in minutes and seconds, or in hours and minutes."""
    seconds, minutes = round(time_s), round(time_s / 60)
    if time_s < 59.95:
        return f"{three_digits(time_s)} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def cost_text(cost: float, unit: str) -> str:
    """A cost as energy (``unit`` "J"), or as time ("s") where time alone counts."""
    return time_text(cost) if unit == "s" else energy_text(cost)


def three_digits(value: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{float(f'{value:.3g}'):,.9g}"
