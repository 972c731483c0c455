"""Until when the task of a run waits for a cheaper start, and why, by its XCom ``zeus_wait``. Pure.

Any task of a DAG may push such an XCom: what is not of its form is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from airflow_provider_zeus.model.size_bounds import truncated

MOST_WHY, MOST_NAME = 500, 250  # characters


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait, or that there was none."""

    until_s: float | None  # s since the epoch; None: it started at once
    why: str
    trains: str | None = None  # task that trains, where another one waits for it

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Read the value of an XCom; None where it is something else."""
        try:
            data = json.loads(value) if isinstance(value, str) else value
            if not isinstance(data, dict) or not isinstance(data.get("why"), str):
                return None
            until, trains = data.get("until"), data.get("trains")
            until_s = None if until is None else datetime.fromisoformat(until).astimezone(UTC).timestamp()
            trains = truncated(trains, MOST_NAME) if isinstance(trains, str) else None
            return cls(until_s, truncated(data["why"], MOST_WHY), trains)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return None

    def text(self, began_s: float | None) -> str:
        """In a sentence. ``began_s``: when the training began; None: it has not."""
        if self.until_s is None or began_s is None:
            return self.why
        until = f"{datetime.fromtimestamp(self.until_s, UTC):%Y-%m-%d %H:%M} UTC"
        began = f"{datetime.fromtimestamp(began_s, UTC):%Y-%m-%d %H:%M} UTC"
        return f"The start was planned for {until}; it began at {began}. {self.why}"


def waiting(waits: dict[tuple[str, int], Wait]) -> str:
    """What a run waits for, of which no task has begun; empty where none waits."""
    named = [
        f"{task_id}{'' if index < 0 else f' [{index}]'}: {wait.why}" for (task_id, index), wait in sorted(waits.items())
    ]
    return " ".join(named[:20]) + (f" … and {len(named) - 20} more." if len(named) > 20 else "")
