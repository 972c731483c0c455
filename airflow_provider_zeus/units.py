"""Energies, times and costs as text in the unit that fits, for the pages and the command line.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable

J_PER_KWH = 3.6e6
S_PER_H = 3600.0
UNKNOWN = "–"  # a dash: an unknown figure must not read as 0
# of energy that processor time alone tells: 78 loads of four processors lay between these
# (docs/power.md)
ESTIMATE = "estimate: half to twice this"
SHORT_TASKS = "Tasks under 1 s that [zeus] measure names leave no row, and are in no sum."


def energy_text(energy_j: float, beside_j: float | None = None) -> str:
    """Energy [J] in kWh as on a bill, or in Wh below a tenth of one, with three digits.

    :param beside_j: the energy that it stands beside, whose unit it has, so that the two compare.
    """
    wh = energy_j / 3600.0
    # Rounded, it would read "100 Wh", which is .1 kWh.
    in_kwh = abs(energy_j if beside_j is None else beside_j) >= 99.95 * 3600.0
    return f"{three_digits(wh / 1000)} kWh" if in_kwh else f"{three_digits(wh)} Wh"


def time_text(time_s: float) -> str:
    """Time [s] in seconds, in minutes and seconds, or in hours and minutes."""
    if time_s < 0:
        return f"-{time_text(-time_s)}"
    seconds = round(time_s)
    minutes = round(time_s / 60)
    # Rounded to three digits it would read "60 s", which is a minute.
    if time_s < 59.95:
        return f"{three_digits(time_s)} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def costs_as(unit: str) -> Callable[[float], str]:
    """The text of a cost: as energy (``unit`` "J"), so that the two compare; a time ("s") if
    time alone counts.
    """
    return time_text if unit == "s" else energy_text


def grams_text(grams: float) -> str:
    """Grams of CO2 equivalent, or kilograms."""
    return (
        f"{three_digits(grams / 1000)} kg CO₂e"
        if abs(grams) >= 1000
        else f"{three_digits(grams)} g CO₂e"
    )


def money_text(value: float, currency: str) -> str:
    """An amount of money with two decimals; one that is not 0 is never told as 0, and keeps its
    sign.

    :param currency: empty: none is set, and the text says so.
    """
    text = f"{value:,.2f}"
    # A cost that is told as 0 would be taken for free.
    if text in ("0.00", "-0.00"):
        text = "0.00" if value == 0 else "under 0.01" if value > 0 else "over -0.01"
    return f"{text} {currency or '(no currency set)'}"


def at_least(text: str) -> str:
    """An amount of which only a part is known."""
    return f"≥ {text.replace('under 0.01', '0.00')}"


def share_text(share: float, per_cent: str = " %") -> str:
    """A share in whole per cent; near 0 and 1 with a decimal: only all of it is 100 %, only
    nothing 0 %.
    """
    size = abs(100 * share)
    sign = "-" if share < 0 else ""
    whole = f"{size:.0f}"
    fine = f"{size:.1f}"
    # A saving that reads 0 % or 100 % would claim nothing, or all.
    if whole not in ("0", "100") or math.isclose(size, float(whole), rel_tol=1e-12):
        return f"{sign * (size > 0)}{whole}{per_cent}"
    if fine not in ("0.0", "100.0"):
        return f"{sign}{fine}{per_cent}"
    bound = "0.1" if size < 1 else "99.9" if size < 100 else "100"
    return f"{'under' if (size < 1) != (share < 0) else 'over'} {sign}{bound}{per_cent}"


def devices(model: str, count: int | None) -> str:
    """Number and model of devices, as "2 × V100"; the model alone of one, or if the number is
    not known.
    """
    return f"{count} × {model}" if model and (count or 1) > 1 else model


def counted(n: int, of: str) -> str:
    """ "1 run", "1,200 runs"."""
    return f"{n:,} {of}" if n == 1 else f"{n:,} {of}s"


def epochs_text(epochs: float) -> str:
    """Epochs with three digits: "1 epoch", "2.5 epochs"."""
    number = f"{epochs:.3g}"
    return "1 epoch" if number == "1" else f"{number} epochs"


def three_digits(value: float) -> str:
    """Three digits, never as a power of ten."""
    rounded = float(f"{value:.3g}")
    if abs(rounded) < 1e-12:  # less than any unit here tells
        return "0"
    # Below that Python would write a power of ten.
    if abs(rounded) >= 1e-4:
        return f"{rounded:,.9g}"
    return f"{rounded:.15f}".rstrip("0")
