"""A trial as a flat row (SQL) and as plain JSON (Variables, pending results).

Rows of a newer version can be read: unknown fields are ignored, and an unknown state or phase keeps its name. Pages
show such a trial by that name, and the policy learns nothing from it (:func:`is_known`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.job import job_fields
from airflow_provider_zeus.model.job_checks import Rule
from airflow_provider_zeus.model.size_bounds import truncated, truncated_observation
from airflow_provider_zeus.model.trial import (
    Lineage,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    PowerPoint,
    State,
    Trial,
)
from airflow_provider_zeus.model.wire import Figure, decode, encode, refuse_constant, rules
from airflow_provider_zeus.store.base import Unreadable

_JSON = json.JSONDecoder(parse_constant=refuse_constant)
DAMAGED = object()

ORIGIN = tuple(f.name for f in fields(Origin))
LINEAGE = tuple(f.name for f in fields(Lineage))
OBSERVED = tuple(f.name for f in fields(Observation))
_STATES, _PHASES = frozenset(State), frozenset(Phase)
_AS_IS = (
    *("job_id", "number", "reason", "asked_after_seq", "told_seq"),
    *("opened_at", "lease_until", "lease_s", "closed_at"),
)
_OWN = (*_AS_IS, "state", "planned", "decision", "spec")
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """What a decision reads of the job of an earlier trial."""

    batch_sizes: tuple[int, ...]
    default_batch_size: wire.Size
    target: str | None
    job_version: wire.Name
    policy: str = ""
    eta: float = 0.0
    window: int = 0


def to_row(trial: Trial) -> dict[str, Any]:
    """Column values of a trial; JSON columns are plain dicts and lists."""
    origin, seen = trial.origin, trial.observation
    return {
        **{name: getattr(trial, name) for name in _AS_IS},
        **{name: getattr(origin, name) for name in ORIGIN},
        **{name: encode(getattr(trial.lineage, name)) for name in LINEAGE},
        **{name: getattr(seen, name) for name in OBSERVED},
        "start": encode(seen.start),
        "ti_id": trial.key.ti_id,
        "attempt": trial.key.attempt,
        "state": trial.state.value,
        "batch_size": trial.batch_size,
        "phase": trial.planned.phase.value,
        "planned": encode(trial.planned),
        "decision": encode(trial.decision),
        "spec": dict(trial.spec),
        "reasons": dict(seen.reasons),
    }


def from_row(row: Mapping[Any, Any]) -> Trial:
    """Read what :func:`to_row` wrote; other columns are ignored, and long texts are cut.

    Raises an error of :data:`DAMAGE` where no decision can be computed with a value.
    """
    parts = {name: row[name] for name in _OWN}
    # what no answer can hold: half of a character, or a number such as 1e999
    json.dumps([row["planned"], row["decision"], row["spec"]], ensure_ascii=False, allow_nan=False).encode()
    parts["key"] = {"ti_id": row["ti_id"], "attempt": row["attempt"]}
    parts["origin"] = {name: row[name] for name in ORIGIN}
    parts["lineage"] = {name: row[name] for name in LINEAGE}
    parts["observation"] = {name: row[name] for name in OBSERVED}
    trial = decode(Trial, parts, newer=True)
    seen, reason = truncated_observation(trial.observation), trial.reason and truncated(trial.reason)
    if seen is not trial.observation or reason != trial.reason:
        trial = replace(trial, observation=seen, reason=reason)
    spec = decode(_Spec, trial.spec, newer=True)
    is_measured = trial.planned.phase is Phase.MEASURED
    for planned in (trial.planned, *trial.decision.in_order):
        if is_measured != (planned.batch_size is None):
            raise ValueError(f"batch_size = {planned.batch_size} of an attempt in phase {planned.phase.value}")
    if not is_measured and (spec.target is None or spec.default_batch_size is None):
        raise ValueError("target or default_batch_size is missing")
    lowest = min([*spec.batch_sizes, 1 if is_measured else trial.batch_size], default=1)
    if lowest <= 0:
        raise ValueError(f"batch_size = {lowest} is not above 0")
    for name, rule in _job_numbers():
        value = trial.spec.get(name)
        if isinstance(value, int | float) and (refusal := rule(value)):
            raise ValueError(f"{name} = {value!r} is {refusal[0]}")
    for part in (trial, trial.observation, trial.lineage, trial.planned, *trial.decision.in_order):
        _check(part)
        if isinstance(part, PlannedAttempt) and part.in_time is not None:
            _check(part.in_time)
    return trial


def _check(part: Any) -> None:
    """Raise ValueError where a number of a row cannot be: no decision, date or text can be made with it."""
    for name, rule in _figures(part.__class__):
        value = getattr(part, name)
        if value is not None and (problem := rule.problem(value)):
            raise ValueError(f"{name} = {str(value)[:80]}: {problem}")


@cache
def _figures(cls: Any) -> list[tuple[str, Figure]]:
    return [(name, rule) for name, rule in rules(cls).items() if isinstance(rule, Figure)]


@cache
def _job_numbers() -> list[tuple[str, Rule]]:
    """The rules of a job's fields that are numbers."""
    return [(name, of.rule) for name, of in job_fields().items() if of.kind in (int, float) and not of.is_list]


def read_json(text: Any) -> Any:
    """The value of a JSON column; :data:`DAMAGED` where it is no JSON, so that one damaged row hides no other."""
    try:
        return _JSON.decode(text)
    except (ValueError, TypeError, RecursionError):
        return DAMAGED


def read_row(row: Mapping[Any, Any]) -> Trial | Unreadable:
    """The trial of a row; of a damaged one, such as one changed by hand, its identity and why it cannot be read."""
    try:
        for name, value in row.items():
            if value is DAMAGED:
                raise ValueError(f"{name} holds no JSON object")
        return from_row(row)
    except DAMAGE as error:
        job_id, number, dag_id = (row.get(name) for name in ("job_id", "number", "dag_id"))
        return Unreadable(
            job_id=job_id if isinstance(job_id, str) else "",
            number=number if isinstance(number, int) else None,
            dag_id=dag_id if isinstance(dag_id, str) else "",
            problem=f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}",
        )


def is_known(trial: Trial) -> bool:
    """Whether this version knows the trial's state and phase, so that the policy may learn from it."""
    return trial.state in _STATES and trial.planned.phase in _PHASES


def trial_to_dict(trial: Trial) -> dict[str, Any]:
    """Plain JSON of a trial without values that are None."""
    return {name: value for name, value in to_row(trial).items() if value is not None}


def trial_from_dict(data: Mapping[str, Any]) -> Trial:
    """Read what :func:`trial_to_dict` wrote. Raises an error of :data:`DAMAGE`."""
    return from_row({**dict.fromkeys((*_OWN, *ORIGIN, *LINEAGE, *OBSERVED)), **data})


def points_to_lists(points: Iterable[PowerPoint]) -> list[list[Any]]:
    """Each power point as the list of its values."""
    return [[p.t_s, p.power_w, p.limit_w, p.phase] for p in points]


def points_from_lists(stored: Any) -> list[PowerPoint]:
    """Read what :func:`points_to_lists` wrote; points that cannot be read are left out."""
    points, names = [], [f.name for f in fields(PowerPoint)]
    for values in stored if isinstance(stored, list) else ():
        with suppress(TypeError, ValueError):
            points.append(decode(PowerPoint, dict(zip(names, values, strict=True))))
    return points
