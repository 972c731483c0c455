"""The source of the energy of a training, and its kind. Pure."""

from __future__ import annotations

MEASURED = "measured"
ESTIMATED = "estimated"
SIMULATED = "simulated"
TIME_ALONE = "time alone"

_KINDS = {"estimate": ESTIMATED, "rapl_share": ESTIMATED, "simulated": SIMULATED}


def kind_of(source: str | None) -> str:
    """The kind of an energy source: figures of different kinds are never added."""
    if source is None:
        return TIME_ALONE
    return _KINDS.get(source, MEASURED)
