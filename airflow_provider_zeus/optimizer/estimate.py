"""A figure that was worked out and not read: its value with an interval, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

Z = 1.6448536269514722  # standard normal at 95 %


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` in the unit that the field's name tells, and where 90 % of the belief lies.

    ``reason`` says why the value is None, or, where it is there, why its interval is None.
    """

    value: float | None
    low: float | None = None  # 5 %
    high: float | None = None  # 95 %
    reason: str | None = None

    @classmethod
    def missing(cls, reason: str) -> Self:
        """No value, and why."""
        return cls(None, reason=reason)

    @classmethod
    def normal(cls, mean: float, sd: float) -> Self:
        """Of a Gaussian belief; what it says of values below 0 is cut off, since a cost has none."""
        return cls(mean, max(mean - Z * sd, 0.0), mean + Z * sd)

    @classmethod
    def log_normal(cls, log_mean: float, log_sd: float) -> Self:
        """Of a Gaussian belief about the logarithm; the value is its middle."""
        return cls(math.exp(log_mean), math.exp(log_mean - Z * log_sd), math.exp(log_mean + Z * log_sd))

    @classmethod
    def bootstrap(cls, value: float, draws: Sequence[float]) -> Self:
        """``value`` with the 5 % and 95 % quantiles of its bootstrap draws (at least one)."""
        ordered, last = sorted(draws), len(draws) - 1
        return cls(value, ordered[round(0.05 * last)], ordered[round(0.95 * last)])

    def times(self, factor: float | None, why_not: str = "") -> Estimate:
        """The same in another unit: value and interval times a factor of at least 0; missing where that is None."""
        if factor is None:
            return Estimate.missing(self.reason if self.value is None and self.reason else why_not)
        return self.mapped(lambda v: v * factor)

    def plus(self, known: float) -> Estimate:
        """Value and interval moved by a known amount."""
        return self.mapped(lambda v: v + known)

    def mapped(self, of: Callable[[float], float]) -> Estimate:
        """A function that does not fall, of value and interval."""
        value, low, high = (None if v is None else of(v) for v in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.reason)

    def without_interval(self, reason: str) -> Estimate:
        """The value alone, and why."""
        return self if self.value is None else replace(self, low=None, high=None, reason=reason)
