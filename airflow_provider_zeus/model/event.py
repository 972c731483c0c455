"""A condition of a job that its users should hear of, and which of them hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FAILING = "failing"
DRIFTED = "drifted"
LOST = "lost"
LIMITS = "limit not set"
STORE = "store away"
DEADLINE = "deadline at risk"
NO_DATA = "no data"
NO_METRIC = "no metric reported"
NO_TARGET = "no target"
KINDS = (FAILING, DRIFTED, LOST, LIMITS, STORE, DEADLINE, NO_DATA, NO_METRIC, NO_TARGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One condition that holds, of the runs of one DAG."""

    kind: str
    since: int | None = None  # trial that showed it first; None: none did
    run_id: str = ""  # of that trial
    sentence: str
    remedy: str
    # of the sentence, with their units in the names
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The same while it lasts. Each run has a deadline of its own."""
        if self.kind == DEADLINE:
            return f"{self.kind} {self.run_id}"
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The events that hold in one DAG of a job, as its newest look found them."""

    number: int = 0  # of the newest trial whose run has looked at the job at its end
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The result of a run's look at its job."""

    events: Mapping[str, Held]  # by DAG: what holds now
    begun: Sequence[Event]  # what the DAG of the run did not hold before
