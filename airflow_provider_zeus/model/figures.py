"""Types of the fields that are read, written and reported: each says which values its field can have.

``Joules`` is a float with a rule, which :mod:`~airflow_provider_zeus.model.wire` reads once. Standard library only.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Any

_LEAST, _MOST = 1e-9, 1e15  # of a measured value in any unit: products of such values are finite and not 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Which numbers a field can have.

    A number beyond ``readable`` is refused where it is read. The other bounds are those of what can be measured: a
    training that reports another number gets None with a reason, since no decision could be computed with it.
    """

    low: float = -_MOST
    high: float = _MOST
    least: float = _LEAST  # of a number that is not 0, without its sign
    otherwise: str = "nothing measures"  # "5 was reported, which ..."
    rounded: bool = False  # a difference of measured values, so rounding may leave a tiny rest
    part_of: str = ""  # field of the sum that it is a part of
    readable: float = 2.0**64  # sums of such numbers are finite
    whole: bool = False  # a whole number that may be written as 5.0

    def problem(self, value: Any) -> str:
        """Why a number, or one of a tuple, cannot have been measured; empty where it can, and for anything else."""
        if isinstance(value, tuple):
            finite = all(isinstance(v, int | float) and not self.problem(v) for v in value)
            return "" if finite else "not a list of finite numbers"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        if not math.isfinite(value):
            return "not a finite number"
        if value < self.low == 0:
            return f"{value:g} was reported, which is below 0"
        fits = self.low <= value <= self.high and (value == 0 or abs(value) >= self.least)
        return "" if fits else f"{value:g} was reported, which {self.otherwise}"


@dataclass(frozen=True, slots=True)
class Text:
    """How long a text can be. A longer one is cut, or refused where it has to be stored unchanged (``exact``)."""

    most: int | None = None  # characters
    exact: bool = False


Amount = Annotated[float, Figure(low=0)]
Joules = Annotated[float, Figure(low=0)]
Seconds = Annotated[float, Figure(low=0)]
Watts = Annotated[float, Figure(low=0)]
Share = Annotated[float, Figure(low=0, high=1, least=0, otherwise="is no share")]
RestJ = Annotated[float, Figure(rounded=True, least=0, part_of="energy_j")]
RestS = Annotated[float, Figure(rounded=True, least=0, part_of="time_s")]
Difference = Annotated[float, Figure(rounded=True, least=0)]
AnyNumber = Annotated[  # a loss that diverges may be 1e300
    float, Figure(low=-math.inf, high=math.inf, least=0, readable=sys.float_info.max)
]
Devices = Annotated[int, Figure(low=1, high=10**6 - 1, otherwise="is no count of devices")]
Samples = Annotated[int, Figure(low=0, whole=True)]
Count = Annotated[int, Figure(readable=2**31 - 1)]  # of what a database holds in 32 bits
Name = Annotated[str, Text(exact=True)]
StartId = Annotated[str, Text(100, exact=True)]  # ours has 32 characters
LongText = Annotated[str, Text(1000)]
ShortText = Annotated[str, Text(200)]
Currency = Annotated[str, Text(12)]
GpuNames = Annotated[str, Text(10_000)]  # of all GPUs, joined
