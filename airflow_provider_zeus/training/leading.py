"""Which optimizer of a training leads, and of which kind its steps are."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

LEAD_STEPS = 8  # of one optimizer, after which it leads


class Leading:
    """The optimizer that steps most: another one takes over once it has stepped so often while that one rested."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # steps of others since the leading one's
        self._counted_at = 0  # step of the leading one before which others were counted last
        self._led: WeakSet[Any] = WeakSet()  # optimizers that lead or led
        self._needed = LEAD_STEPS  # more once two of them take turns

    def overtakes(self, optimizer: Any, steps: int, *, led: bool) -> bool:
        """Count a step of an optimizer that does not lead; whether it does so from now on.

        :param steps: of the leading one, so far.
        :param led: whether there is a leading one.
        """
        if self._counted_at != steps:  # the leading one has stepped since
            self._counts.clear()
            self._counted_at = steps
        self._counts[optimizer] = count = self._counts.get(optimizer, 0) + 1
        if count < (self._needed if led else LEAD_STEPS):
            return False
        if optimizer in self._led:
            self._needed *= 2
        self._led.add(optimizer)
        self._counts.clear()
        return True


def of_all(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several models as one observation has them: of the kind that stepped most, with all its steps."""
    steps: Counter[int | None] = Counter()
    for model in models:
        steps[model["step_kind"]] += model["samples"]
    kind, samples = steps.most_common(1)[0]
    longest = max((model for model in models if model["step_kind"] == kind), key=lambda model: model["samples"])
    found = {**longest, "samples": samples}
    for name in ("excess_j", "excess_s"):  # all of them were paid for
        values = [model[name] for model in models]
        found[name] = None if None in values else sum(values)
    return found


def step_kind(optimizer: Any) -> int:
    """A number for the kind of step: the optimizer's class and how many parameters it trains."""
    count = 0
    for group in getattr(optimizer, "param_groups", None) or ():
        count += sum(int(parameter.numel()) for parameter in group["params"])
    return zlib.crc32(f"{type(optimizer).__name__} {count}".encode()) or 1
