"""A series of prices or carbon intensities: steps in UTC, each with an end. Pure; standard library only.

A gap stays a gap, and what is no number is a gap, as is a negative carbon intensity: a mean over it is not known.
Prices may be negative.
"""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple, Self, TypeGuard

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError

CARBON, PRICE = "carbon", "price"
MOST_STEPS = 40_000  # over a year of quarters of an hour


class Unit(NamedTuple):
    """What the values of a series are. ``name``: g/kWh, or a currency per kWh."""

    goal: str  # carbon | price
    name: str
    factor: float  # by which values are multiplied to be in ``name``

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse ``"g/kWh"``, ``"kg/MWh"``, ``"lbs/MWh"``, ``"EUR/MWh"``, ``"ct/kWh"``, ``"p/kWh"`` and the like.

        Raises JobSpecError for any other unit, and where there is none.
        """
        grams = {"g/kWh": 1.0, "kg/MWh": 1.0, "lbs/MWh": 0.45359237, "t/MWh": 1000.0}
        if isinstance(text, str):
            if text in grams:
                return cls(CARBON, "g/kWh", grams[text])
            match = patterns.fullmatch("(ct|p|[A-Z]{3})/([kM])Wh", text)
            if match is not None:
                money, cents = match[1], {"ct": "EUR", "p": "GBP"}
                factor = (0.01 if money in cents else 1.0) / (1.0 if match[2] == "k" else 1000.0)
                return cls(PRICE, f"{cents.get(money, money)}/kWh", factor)
        raise JobSpecError.of(
            "unit", text, "no unit of a price or a carbon intensity", 'write it as "g/kWh", "EUR/MWh" or "ct/kWh"'
        )

    def can_have(self, value: float | None) -> bool:
        """Whether a value may be in this unit: services write -999 where they know no carbon intensity."""
        return is_number(value) and (self.goal != CARBON or value >= 0)


class Step(NamedTuple):
    """One value from ``start_s`` to ``end_s`` [s since the epoch, UTC]."""

    start_s: float
    end_s: float
    value: float
    estimated: bool = False  # by the service itself, or by ours from the days before


@dataclass(frozen=True, slots=True)
class Series:
    """Steps in order of time that do not overlap."""

    unit: Unit
    steps: tuple[Step, ...]
    source: str  # who says so
    zone: str  # of the grid or the market

    @classmethod
    def of(cls, unit: Unit, steps: Iterable[Step], *, source: str = "", zone: str = "") -> Self:
        """Make a series of steps in the series' own unit; of two that overlap the later one given counts.

        Steps without a value that the unit can have, or of no length, are left out. Raises JobSpecError above
        :data:`MOST_STEPS`.
        """
        kept: dict[float, Step] = {}
        for step in steps:
            if unit.can_have(step.value) and math.isfinite(step.start_s) and step.start_s < step.end_s < math.inf:
                kept[step.start_s] = step
            if len(kept) > MOST_STEPS:
                raise JobSpecError.of("series", f"over {MOST_STEPS} steps", "too long", "ask for a shorter span")
        ordered = sorted(kept.values())
        cut = [
            step if i + 1 == len(ordered) else step._replace(end_s=min(step.end_s, ordered[i + 1].start_s))
            for i, step in enumerate(ordered)
        ]
        return cls(unit, tuple(cut), source, zone)

    def mean(self, start_s: float, end_s: float, *, covered: float = 1.0) -> float | None:
        """The mean over time from ``start_s`` to ``end_s``; None where less of that than this share is covered."""
        if end_s <= start_s:
            step = self.at(start_s)
            return None if step is None else step.value
        total, covered_s = 0.0, 0.0
        for step in self._since(start_s):
            if step.start_s >= end_s:
                break
            overlap_s = min(step.end_s, end_s) - max(step.start_s, start_s)
            if overlap_s > 0:
                total, covered_s = total + overlap_s * step.value, covered_s + overlap_s
        return total / covered_s if covered_s >= covered * (end_s - start_s) * (1 - 1e-9) else None

    def _since(self, start_s: float) -> tuple[Step, ...]:
        """The step that holds at a time, or the last one before it, and all after it."""
        return self.steps[max(bisect_right(self.steps, (start_s, math.inf)) - 1, 0) :]

    def at(self, time_s: float) -> Step | None:
        """The step that holds at a time; None in a gap."""
        i = bisect_right(self.steps, (time_s, math.inf)) - 1
        return self.steps[i] if i >= 0 and time_s < self.steps[i].end_s else None

    def merged(self, newer: Series) -> Series:
        """This series with a newer one of the same unit: where both have a value the newer one counts.

        Raises JobSpecError: of another unit.
        """
        if newer.unit[:2] != self.unit[:2]:
            raise JobSpecError.of("unit", newer.unit.name, f"the series is in {self.unit.name}", "keep them apart")
        outside = [piece for step in self.steps for piece in newer.gaps(step)]
        return replace(newer, steps=tuple(sorted([*outside, *newer.steps])))

    def gaps(self, step: Step) -> list[Step]:
        """The parts of a step that this series does not cover."""
        found, at_s = [], step.start_s
        for own in self._since(step.start_s):
            if own.start_s >= step.end_s:
                break
            if own.end_s > at_s:
                if own.start_s > at_s:
                    found.append(step._replace(start_s=at_s, end_s=own.start_s))
                at_s = own.end_s
        if at_s < step.end_s:
            found.append(step._replace(start_s=at_s))
        return found

    def to_json(self) -> str:
        """Text to be kept; :meth:`from_json` reads it."""
        return json.dumps([self.unit.name, self.source, self.zone, self.steps], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises ValueError for anything else."""
        try:
            unit, source, zone, steps = json.loads(text)
            read = [Step(*step) for step in steps]
            if not all(is_number(v) for step in read for v in step[:3]):
                raise ValueError("a step without numbers")
            return cls.of(Unit.parse(unit), read, source=str(source), zone=str(zone))
        except (TypeError, ValueError, RecursionError):
            raise ValueError("not a series that was kept") from None

    def step_s(self) -> float | None:
        """Usual length of a step [s], the shorter one of two; None without any. Where series meet, pieces are left."""
        lengths = [s.end_s - s.start_s for s in self.steps]
        return median_low(lengths) if lengths else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number that a float can hold; JSON has integers of hundreds of digits, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
