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
    """One condition that holds, of the runs of one DAG.

    :param since: number of the trial that showed it first, and ``run_id`` its run.
    """

    kind: str
    # An event is sent once, by this trial. None: no trial shows it, as a store that is away.
    since: int | None = None
    run_id: str = ""
    sentence: str
    remedy: str
    # For programs, which should have no sentence to parse; names end with their unit.
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

    number: int = 0  # a run that has not looked at its end may be tried again
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The result of a run's look at its job."""

    events: Mapping[str, Held]
    begun: Sequence[Event]  # only these are sent: nobody wants to hear the same twice
