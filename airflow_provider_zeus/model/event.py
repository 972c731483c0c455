"""A condition of a job that its users should hear of, and which of them hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FAILING, DRIFTED, LOST, LIMITS, STORE = "failing", "drifted", "lost", "limit not set", "store away"
DEADLINE, NO_DATA, NO_METRIC, NO_TARGET = "deadline at risk", "no data", "no metric reported", "no target"
KINDS = (FAILING, DRIFTED, LOST, LIMITS, STORE, DEADLINE, NO_DATA, NO_METRIC, NO_TARGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One condition that holds, of the runs of one DAG."""

    kind: str
    since: int | None = None  # trial that showed it first; None: none did
    run_id: str = ""  # of that trial
    sentence: str
    remedy: str
    figures: Mapping[str, Any] = field(default_factory=dict)  # of the sentence, with their units in the names

    @property
    def name(self) -> str:
        """The same while it lasts. Each run has a deadline of its own."""
        return f"{self.kind} {self.run_id}" if self.kind == DEADLINE else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The events that hold in one DAG of a job, as its newest look found them."""

    number: int = 0  # of the newest trial whose run has looked at the job at its end
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a run's look at its job found."""

    held: Mapping[str, Held]  # by DAG: what holds now
    begun: Sequence[Event]  # what the DAG of the run did not hold before
