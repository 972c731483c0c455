"""A trial as a flat row (SQL) and as plain JSON (Variables, untold costs): one place that knows both.

What a newer version wrote is read as far as it is known here: a state or a phase that is not keeps its name, is no
member of its class, is shown by it and teaches nothing (:func:`is_known`); a field of an attempt that is not known is
left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from airflow_provider_zeus.optimizer.bounds import bounded, brief
from airflow_provider_zeus.optimizer.trial import (
    UNSAID_LEASE_S,
    Attempt,
    Decision,
    Observation,
    Origin,
    Phase,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.typed import check_fields, check_trial
from airflow_provider_zeus.store.base import Report, Unreadable

K = TypeVar("K", bound=StrEnum)

log = logging.getLogger(__name__)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


_JSON = json.JSONDecoder(parse_constant=_refuse)
DAMAGED = object()
_OBJECTS = ("decision", "planned", "spec", "reasons")

ORIGIN = tuple(f.name for f in fields(Origin))
OBSERVED = tuple(f.name for f in fields(Observation))
_PLANNED = frozenset(f.name for f in fields(Attempt))
_STATES, _PHASES = frozenset(State), frozenset(Phase)
_TIMES = ("opened_at", "lease_until", "lease_s", "closed_at")
_AS_IS = ("job_id", "number", "reason", "asked_after_seq", "told_seq", *_TIMES)
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


def to_row(trial: Trial) -> dict[str, Any]:
    """Column values of a trial; JSON columns hold plain dicts and lists."""
    origin, seen = trial.origin, trial.observation
    return {
        **{name: getattr(trial, name) for name in _AS_IS},
        **{name: getattr(origin, name) for name in ORIGIN},
        **{name: getattr(seen, name) for name in OBSERVED},
        "ti_id": trial.key.ti_id,
        "attempt": trial.key.attempt,
        "state": trial.state.value,
        "batch_size": trial.batch_size,
        "phase": trial.planned.phase.value,
        "planned": asdict(trial.planned),
        "decision": trial.decision.to_dict(),
        "spec": dict(trial.spec),
        "reasons": dict(seen.reasons),
    }


def from_row(row: Mapping[Any, Any]) -> Trial:
    """Read what :func:`to_row` wrote; columns that are not a trial's are ignored, and long texts are cut."""
    each = row["gpu_energy_j"]
    seen = {name: row[name] for name in OBSERVED} | {"gpu_energy_j": None if each is None else tuple(each)}
    return Trial(
        **{name: row[name] for name in _AS_IS} | {"reason": row["reason"] and brief(row["reason"])},
        key=TrialKey(row["ti_id"], row["attempt"]),
        origin=Origin(**{name: row[name] for name in ORIGIN}),
        spec=row["spec"],
        decision=_decision(row["decision"]),
        planned=_attempt(row["planned"]),
        state=state_of(row["state"]),
        observation=bounded(Observation(**seen)),
    )


def read_json(text: Any) -> Any:
    """What a JSON column holds; :data:`DAMAGED` where that is no JSON, so that one damaged row hides no other."""
    try:
        return _JSON.decode(text)
    except (ValueError, TypeError, RecursionError):
        return DAMAGED


def read_row(row: Mapping[Any, Any]) -> Trial | Unreadable:
    """The trial of a row that may be damaged: of a file that was repaired, or changed by hand."""
    try:
        for name in _OBJECTS:
            if not isinstance(row[name], Mapping):
                raise ValueError(f"{name} holds no JSON object")
        trial = from_row(row)
        check_trial(trial)
    except DAMAGE as error:
        return unreadable(row, error)
    return trial


def unreadable(row: Mapping[Any, Any], error: Exception) -> Unreadable:
    """What is known of a row that cannot be read, and why it cannot."""
    job_id, number, dag_id = (row.get(name) for name in ("job_id", "number", "dag_id"))
    return Unreadable(
        job_id=job_id if isinstance(job_id, str) else "",
        number=number if isinstance(number, int) else None,
        dag_id=dag_id if isinstance(dag_id, str) else "",
        problem=f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}",
    )


def is_known(trial: Trial) -> bool:
    """Whether this version knows the trial's state and phase, so that it may teach something."""
    return trial.state in _STATES and trial.planned.phase in _PHASES


def state_of(text: str) -> State:
    """The state of this name; one that is no member of :class:`State` where a newer version has written it."""
    return _named(State, text)


def trial_to_dict(trial: Trial) -> dict[str, Any]:
    """Plain JSON of a trial; what is None is left out."""
    return {name: value for name, value in to_row(trial).items() if value is not None}


def trial_from_dict(data: Mapping[str, Any]) -> Trial:
    """Read what :func:`trial_to_dict` wrote. Raises KeyError, TypeError or ValueError when it did not."""
    trial = from_row({**dict.fromkeys((*_AS_IS, *ORIGIN, *OBSERVED)), "lease_s": UNSAID_LEASE_S, **data})
    check_trial(trial)
    return trial


def report_to_dict(report: Report) -> dict[str, Any]:
    """Plain JSON of a report."""
    return {
        "observation": report.observation.to_dict(),
        "profile": [asdict(s) for s in report.profile],
        "points": [asdict(p) for p in report.points],
        **({"unsure": [report_to_dict(beat) for beat in report.unsure]} if report.unsure else {}),
    }


def report_from_dict(data: Mapping[str, Any]) -> Report:
    """Read what :func:`report_to_dict` wrote. Raises KeyError, TypeError or ValueError when it did not."""
    report = Report(
        observation=Observation.from_dict(data["observation"]),
        profile=tuple(ProfileSample(**s) for s in data["profile"]),
        points=tuple(PowerPoint(**p) for p in data["points"]),
        unsure=tuple(report_from_dict(beat) for beat in data.get("unsure", ())),
    )
    check_fields(report.observation, *report.profile, *report.points)
    return report


def _decision(data: Mapping[str, Any]) -> Decision:
    try:
        return Decision.from_dict(data)
    except (TypeError, ValueError):  # of a newer version
        return Decision.from_dict(data, _attempt)


def _attempt(data: Mapping[str, Any]) -> Attempt:
    known = {name: value for name, value in data.items() if name in _PLANNED}
    return Attempt(**{**known, "phase": _named(Phase, data["phase"])})


def _named(kind: type[K], text: str) -> K:
    try:
        return kind(text)
    except ValueError:
        unknown: K = _unknown(kind, text)
        return unknown


@cache
def _unknown(kind: type[K], text: str) -> K:
    log.warning(
        "The trial log holds the %s %r, which this version does not know: such trials are shown and teach nothing. "
        "Upgrade airflow-provider-zeus on this machine.",
        kind.__name__.lower(),
        text,
    )
    unknown = str.__new__(kind, text)
    unknown._name_ = unknown._value_ = text
    return unknown
