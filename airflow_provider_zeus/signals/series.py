"""A series of prices or carbon intensities: steps in UTC, each with an end.

Pure; standard library only.

A gap stays a gap, and a text that is no number is a gap, as is a negative carbon intensity: a mean
over it is not known. Prices may be negative.
"""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple, Self, TypeGuard

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError

CARBON = "carbon"
PRICE = "price"
MOST_STEPS = 40_000  # over a year of quarters of an hour; more would fill the memory of a page


class Unit(NamedTuple):
    """The unit of the values of a series. ``name``: g/kWh, or a currency per kWh."""

    goal: str
    name: str
    factor: float  # services have units of their own, and figures one

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse ``"g/kWh"``, ``"kg/MWh"``, ``"lbs/MWh"``, ``"EUR/MWh"``, ``"ct/kWh"``, ``"p/kWh"``
        and the like.

        Raises JobSpecError for any other unit, and if there is none.
        """
        grams = {"g/kWh": 1.0, "kg/MWh": 1.0, "lbs/MWh": 0.45359237, "t/MWh": 1000.0}
        name = text if isinstance(text, str) else ""
        if name in grams:
            return cls(CARBON, "g/kWh", grams[name])
        match = patterns.fullmatch("(ct|p|[A-Z]{3})/([kM])Wh", name)
        if match is None:
            problem = "no unit of a price or a carbon intensity"
            remedy = 'write it as "g/kWh", "EUR/MWh" or "ct/kWh"'
            raise JobSpecError.of("unit", text, problem, remedy)
        money, prefix = match.groups()
        per_kwh = {"k": 1.0, "M": 0.001}
        cents = {"ct": ("EUR", 0.01), "p": ("GBP", 0.01)}
        currency, part = cents.get(money, (money, 1.0))
        return cls(PRICE, f"{currency}/kWh", per_kwh[prefix] * part)

    def is_like(self, other: Unit) -> bool:
        """Whether values in both mean the same, once each is multiplied by its factor."""
        return self.goal == other.goal and self.name == other.name

    def can_have(self, value: float | None) -> bool:
        """Whether a value may be in this unit: services write -999 if they know no carbon
        intensity.
        """
        if not is_number(value):
            return False
        return self.goal != CARBON or value >= 0


class Step(NamedTuple):
    """One value from ``start_s`` to ``end_s`` [s since the epoch, UTC]."""

    start_s: float
    end_s: float
    value: float
    estimated: bool = False  # estimates are no measurement, and pages say so


@dataclass(frozen=True, slots=True)
class Series:
    """Steps in order of time that do not overlap."""

    unit: Unit
    steps: tuple[Step, ...]
    source: str  # pages name it, so that a figure can be checked
    zone: str  # the same service has other values for another grid or market

    @classmethod
    def of(cls, unit: Unit, steps: Iterable[Step], *, source: str = "", zone: str = "") -> Self:
        """Make a series of steps in the series' own unit; of two that overlap the later one given
        counts.

        Steps without a value that the unit can have, or of no length, are left out. Raises
        JobSpecError above
        :data:`MOST_STEPS`.
        """
        by_start: dict[float, Step] = {}
        for step in steps:
            has_length = -math.inf < step.start_s < step.end_s < math.inf
            # A step without length would divide a mean by 0.
            if has_length and unit.can_have(step.value):
                by_start[step.start_s] = step
            if len(by_start) > MOST_STEPS:
                raise JobSpecError.of(
                    "series", f"over {MOST_STEPS} steps", "too long", "ask for a shorter span"
                )
        # Services publish corrections out of order, and the cut below needs each next one.
        ordered = sorted(by_start.values())
        for i, (step, next_step) in enumerate(pairwise(ordered)):
            if step.end_s > next_step.start_s:
                ordered[i] = step._replace(end_s=next_step.start_s)
        return cls(unit, tuple(ordered), source, zone)

    def mean(self, start_s: float, end_s: float, *, covered: float = 1.0) -> float | None:
        """The mean over time from ``start_s`` to ``end_s``; None if less of that than this share
        is covered.
        """
        if end_s <= start_s:
            now = self.at(start_s)
            return None if now is None else now.value
        total = 0.0
        covered_s = 0.0
        for step in self._between(start_s, end_s):
            overlap_s = min(step.end_s, end_s) - max(step.start_s, start_s)
            if overlap_s > 0:
                total = total + overlap_s * step.value
                covered_s = covered_s + overlap_s
        # Sums of many steps may lack a part of a second.
        rounding = 1 - 1e-9
        if covered_s < covered * (end_s - start_s) * rounding:
            return None
        return total / covered_s

    def _between(self, start_s: float, end_s: float) -> Sequence[Step]:
        """The step that holds at a time, or the last one before it, and all after it that begin
        before an end.
        """
        first = bisect_right(self.steps, (start_s, math.inf)) - 1
        return self.steps[max(first, 0) : bisect_left(self.steps, (end_s,))]

    def at(self, time_s: float) -> Step | None:
        """The step that holds at a time; None in a gap."""
        i = bisect_right(self.steps, (time_s, math.inf)) - 1
        if i < 0 or time_s >= self.steps[i].end_s:
            return None
        return self.steps[i]

    def merged(self, newer: Series) -> Series:
        """This series with a newer one of the same unit: if both have a value the newer one counts.

        Raises JobSpecError: of another unit.
        """
        # A service that changed its unit must not be mixed with what it gave before.
        if not newer.unit.is_like(self.unit):
            raise JobSpecError.of(
                "unit", newer.unit.name, f"the series is in {self.unit.name}", "keep them apart"
            )
        # A newer answer corrects the older one but may cover less: outside it the older one counts.
        outside = [piece for step in self.steps for piece in newer.gaps(step)]
        return replace(newer, steps=tuple(sorted([*outside, *newer.steps])))

    def gaps(self, step: Step) -> list[Step]:
        """The parts of a step that this series does not cover."""
        pieces = []
        covered_until_s = step.start_s
        for own in self._between(step.start_s, step.end_s):
            if own.start_s > covered_until_s:
                pieces.append(step._replace(start_s=covered_until_s, end_s=own.start_s))
            covered_until_s = max(covered_until_s, own.end_s)
        if covered_until_s < step.end_s:
            pieces.append(step._replace(start_s=covered_until_s))
        return pieces

    def to_json(self) -> str:
        """Text to be kept; :meth:`from_json` reads it."""
        return json.dumps(
            [self.unit.name, self.source, self.zone, self.steps], separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of :meth:`to_json`. Raises ValueError for anything else."""
        try:
            unit, source, zone, steps = json.loads(text)
            kept_steps = [Step(*step) for step in steps]
            # A row may be damaged, or written by hand: an infinite step would make all means
            # infinite.
            for step in kept_steps:
                if not all(map(is_number, (step.start_s, step.end_s, step.value))):
                    raise ValueError("a step without numbers")
            return cls.of(Unit.parse(unit), kept_steps, source=str(source), zone=str(zone))
        except (TypeError, ValueError, RecursionError):
            raise ValueError("not a series that was kept") from None

    def step_s(self) -> float | None:
        """Usual length of a step [s], the shorter one of two; None without any step.

        The median: there are pieces of steps at the place at which two series meet.
        """
        lengths_s = [step.end_s - step.start_s for step in self.steps]
        return median_low(lengths_s) if lengths_s else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number that a float can hold; JSON has integers of hundreds of
    digits, too.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max
