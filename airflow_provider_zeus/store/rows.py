"""A trial as a flat row (SQL) and as plain JSON (Variables, untold costs): one place that knows both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from airflow_provider_zeus.optimizer.trial import (
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
from airflow_provider_zeus.store.base import Report

ORIGIN = tuple(f.name for f in fields(Origin))
OBSERVED = tuple(f.name for f in fields(Observation))
_AS_IS = ("job_id", "number", "reason", "asked_after_seq", "told_seq", "opened_at", "lease_until", "closed_at")


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
    """Read what :func:`to_row` wrote; columns that are not a trial's are ignored."""
    return Trial(
        **{name: row[name] for name in _AS_IS},
        key=TrialKey(row["ti_id"], row["attempt"]),
        origin=Origin(**{name: row[name] for name in ORIGIN}),
        spec=row["spec"],
        decision=Decision.from_dict(row["decision"]),
        planned=_attempt(row["planned"]),
        state=State(row["state"]),
        observation=Observation(**{name: row[name] for name in OBSERVED}),
    )


def trial_to_dict(trial: Trial) -> dict[str, Any]:
    """Plain JSON of a trial; what is None is left out."""
    return {name: value for name, value in to_row(trial).items() if value is not None}


def trial_from_dict(data: Mapping[str, Any]) -> Trial:
    """Read what :func:`trial_to_dict` wrote. Raises KeyError, TypeError or ValueError when it did not."""
    return from_row({**dict.fromkeys((*_AS_IS, *ORIGIN, *OBSERVED)), **data})


def report_to_dict(report: Report) -> dict[str, Any]:
    """Plain JSON of a report."""
    return {
        "observation": report.observation.to_dict(),
        "profile": [asdict(s) for s in report.profile],
        "points": [asdict(p) for p in report.points],
    }


def report_from_dict(data: Mapping[str, Any]) -> Report:
    """Read what :func:`report_to_dict` wrote. Raises KeyError or TypeError when it did not."""
    return Report(
        observation=Observation.from_dict(data["observation"]),
        profile=tuple(ProfileSample(**s) for s in data["profile"]),
        points=tuple(PowerPoint(**p) for p in data["points"]),
    )


def _attempt(data: Mapping[str, Any]) -> Attempt:
    return Attempt(**{**data, "phase": Phase(data["phase"])})
