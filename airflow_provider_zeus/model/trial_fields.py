"""The stored fields of a trial: one table, of which each rendering is made.

Standard library only.

A rendering is flat: a row of the log, a document of a Variable, a pending result, a line of an
export. The trial itself is made of parts. The type of a field in its dataclass says which values it
can have (:mod:`.wire`), the end of its name the unit, and this table the place in which it is
stored. A new field of a part is in each rendering by itself; the log also needs a column for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from airflow_provider_zeus.model.trial import Lineage, Observation, Origin, Trial, TrialKey
from airflow_provider_zeus.model.wire import encode


class TrialField(NamedTuple):
    """A field as it is stored. ``part``: of the trial that has it, such as "origin"; "" if the
    trial itself has it.
    """

    name: str
    part: str = ""

    def of(self, trial: Trial) -> Any:
        """Its value in plain JSON."""
        part = getattr(trial, self.part) if self.part else trial
        return encode(getattr(part, self.name))


def _all(part: str, cls: Any) -> list[TrialField]:
    return [TrialField(field.name, part) for field in fields(cls)]


_REPORTED = _all("observation", Observation)
FIELDS = (
    *map(TrialField, ("job_id", "number", "reason", "asked_after_seq", "told_seq")),
    *map(TrialField, ("opened_at", "lease_until", "lease_s", "closed_at")),
    *_all("origin", Origin),
    *_all("lineage", Lineage),
    *_REPORTED,
    *_all("key", TrialKey),
    TrialField("state"),
    TrialField("batch_size", "planned"),  # once more beside ``planned``: statements select by it
    TrialField("phase", "planned"),
    *map(TrialField, ("planned", "decision", "spec")),
)
# An update writes these alone: the rest is the decision, which stays.
CHANGING = (
    *("state", "reason", "told_seq", "lease_until", "lease_s", "closed_at"),
    *(field.name for field in _REPORTED),
)
# Not "planned": it is stored whole, and its two columns only repeat parts of it.
_PARTS = ("origin", "lineage", "observation", "key")


def _names(part: str) -> tuple[str, ...]:
    return tuple(field.name for field in FIELDS if field.part == part)


_OWN = _names("")
_READ = {part: _names(part) for part in _PARTS}


def flat(trial: Trial) -> dict[str, Any]:
    """Each stored field of a trial as plain JSON."""
    return {field.name: field.of(trial) for field in FIELDS}


def nested(stored: Mapping[Any, Any]) -> dict[str, Any]:
    """The columns of :func:`flat`, as :func:`.wire.decode` reads a trial; any others are
    ignored.

    Raises KeyError if a field is missing.
    """
    trial: dict[str, Any] = {name: stored[name] for name in _OWN}
    for part, names in _READ.items():
        trial[part] = {name: stored[name] for name in names}
    return trial
