"""An estimated figure: a value with its 90 % interval, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

Z = 1.6448536269514722  # 5 % of a standard normal lie above it, so 90 % lie within both signs
SURE = "90 % sure"  # one name for the interval in all texts


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with a 90 % interval, in the unit of the field that holds it.

    ``reason`` says why the value is None; if there is a value, why the interval is None.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    @classmethod
    def missing(cls, reason: str) -> Self:
        """An estimate without a value."""
        return cls(None, reason=reason)

    @classmethod
    def normal(cls, mean: float, sd: float) -> Self:
        """From a normal distribution.

        The interval is cut off at 0, since costs are not negative.
        """
        return cls(mean, max(mean - Z * sd, 0.0), mean + Z * sd)

    @classmethod
    def log_normal(cls, log_mean: float, log_sd: float) -> Self:
        """From a normal distribution of the logarithm; the value is the median."""
        return cls(
            math.exp(log_mean), math.exp(log_mean - Z * log_sd), math.exp(log_mean + Z * log_sd)
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; 0 to 0 if there is none."""
        return self.low or 0.0, self.high or 0.0

    @property
    def verdict(self) -> str | None:
        """Of a saving: "saved", "lost", or "undecided" if the interval holds both; None: not
        known.
        """
        if self.value is None:
            return None
        if self.low is None or self.high is None:
            return None
        # A saving that may be a loss must not be told as one or the other.
        if self.low < 0 < self.high or self.value == 0:
            return "undecided"
        if self.value > 0:
            return "saved"
        return "lost"

    def times(self, factor: float | None, why_not: str = "") -> Estimate:
        """Value and interval times a factor of at least 0; missing, by ``why_not``, if that is
        None.
        """
        if factor is not None:
            return self.mapped(lambda v: v * factor)
        # The first reason counts: it is why nothing else could be computed.
        own_reason = self.reason if self.value is None else None
        return Estimate.missing(own_reason or why_not)

    def plus(self, known: float) -> Estimate:
        """Value and interval plus a known amount."""
        return self.mapped(lambda v: v + known)

    def mapped(self, of: Callable[[float], float]) -> Estimate:
        """A non-decreasing function applied to value and interval."""

        def mapped(figure: float | None) -> float | None:
            if figure is None:
                return None
            return of(figure)

        return Estimate(
            value=mapped(self.value),
            low=mapped(self.low),
            high=mapped(self.high),
            reason=self.reason,
        )
