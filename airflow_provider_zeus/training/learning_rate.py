"""How a learning rate follows the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable

from airflow_provider_zeus.errors import JobSpecError

_RULES: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "linear": float, "none": lambda _: 1.0}


def scaled(lr: float, rule: str, ratio: float) -> float:
    """``lr`` for a batch size ``ratio`` times the one it suits, by the square root, the linear or no rule.

    Raises JobSpecError for a rule that is not known.
    """
    if rule not in _RULES:
        raise JobSpecError.of("run.scale_lr(): rule", rule, "not known", f"use one of {', '.join(_RULES)}")
    return lr * _RULES[rule](ratio)
