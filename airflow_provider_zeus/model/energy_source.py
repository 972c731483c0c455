"""The source of the energy of a training, and its kind. Pure."""

from __future__ import annotations

MEASURED = "measured"
ESTIMATED = "estimated"
SIMULATED = "simulated"
TIME_ALONE = "time alone"
NOT_MEASURED = "energy not measured"

# rapl_share splits what the processors drew by the time of tasks: no meter tells it for a task.
_KINDS = {"estimate": ESTIMATED, "rapl_share": ESTIMATED, "simulated": SIMULATED}


def kind_of(source: str | None) -> str:
    """The kind of an energy source: figures of different kinds are never added."""
    if source is None:
        return TIME_ALONE
    return _KINDS.get(source, MEASURED)


def kind_text(kind: str) -> str:
    """A kind as people read it; records keep its own name."""
    if kind == TIME_ALONE:
        return NOT_MEASURED
    return kind
