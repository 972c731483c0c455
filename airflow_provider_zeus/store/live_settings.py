"""Live settings of a job: Variable ``zeus-settings:<job>``, as ``{"eta": 0.8, "pause_exploration":
true}``.

A training never fails because of them: a setting that cannot be used is named in a warning and
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model import job_checks as kinds
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import EXCLUDED, Trial
from airflow_provider_zeus.model.wire import without_none
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.store.variables.airflow import SETTINGS, AirflowVariables, variable_key
from airflow_provider_zeus.units import time_text

log = guarded_log(__name__)

ReadText = Callable[[str], str | None]

CHANGED = "changed"  # no setting: a person may want to ask who changed one


class _Setting(NamedTuple):
    """A live setting: its type, and how a new value and its removal are recorded."""

    kind: Any
    changed: str
    removed: str


_CHANGES = {
    "eta": _Setting(kinds.Eta, "eta set to {}", "eta removed"),
    "job_version": _Setting(kinds.Name, "job reset (job_version {})", "job_version removed"),
    "pause_exploration": _Setting(kinds.Flag, "exploration paused", "exploration resumed"),
    "pin_batch_size": _Setting(kinds.OneOrMore, "batch size pinned to {}", "batch size unpinned"),
    EXCLUDED: _Setting(kinds.TrialNumbers, "other runs teach nothing", "all runs teach again"),
    "audit_after": _Setting(
        kinds.NoneOrMore, "default to be measured in the next run", "audit withdrawn"
    ),
}

# Together: with the other of the two left in place Zeus still would not choose.
ZEUS_CHOOSES = {"pause_exploration": None, "pin_batch_size": None}


def read_settings(
    read_text: ReadText | None, job_id: str, batch_sizes: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Usable settings of a job; None if Airflow does not give them. Raises nothing.

    :param batch_sizes: None: a pinned size is not compared with them.
    """
    if read_text is None:
        return {}
    key = variable_key(SETTINGS, job_id)
    try:
        settings, problem = parsed(read_text(key))
    except Exception as error:  # of Airflow or of the network: settings must not fail a training
        log.warning("Live settings in Variable %r cannot be read: %s", key, error)
        return None
    # A setting that is half understood could pin a size that nobody meant: none is used.
    if settings is None:
        log.warning(
            "Live settings in Variable %r are ignored: %s. Correct its text or delete it.",
            key,
            problem,
        )
        return {}
    return _usable(settings, key, batch_sizes)


def last_known(
    trials: Sequence[Trial], job_id: str, batch_sizes: Sequence[int], now_s: float
) -> dict[str, Any]:
    """The settings that were read last, for a decision for which they could not be: a pin may stand
    in them.

    :param trials: the newest of the job.
    :param now_s: seconds since the epoch.
    """
    decided = [trial for trial in trials if trial.decision.settings is not None]
    if not decided:
        log.warning(
            "No live setting of %s is known from before; the run goes on without.", visible(job_id)
        )
        return {}
    *_, newest = decided
    # The age counts from the reading, and later attempts of that decision opened after it.
    first, *_ = (trial for trial in decided if trial.key.ti_id == newest.key.ti_id)
    age = time_text(max(now_s - first.opened_at, 0.0))
    stored = dict(first.decision.settings or {})
    settings = _usable(stored, variable_key(SETTINGS, job_id), batch_sizes)
    shown = ", ".join(f"{name} = {value}" for name, value in settings.items())
    log.warning(
        "Zeus uses the live settings as the run before knew them, %s ago: %s.",
        age,
        visible(shown or "none was set"),
    )
    if "pin_batch_size" in settings:
        settings["pinned_by"] = f"a live setting, as read {age} ago"
    return settings


def _usable(
    found: Mapping[str, Any], key: str, batch_sizes: Sequence[int] | None
) -> dict[str, Any]:
    usable = {}
    for name, value in found.items():
        if name == CHANGED:
            continue
        problem = _problem(name, value, batch_sizes)
        if problem is None:
            usable[name] = value
            continue
        # A text may hold a password, and a log is read by many.
        shown = repr(value) if isinstance(value, int | float) else "..."
        log.warning("Live setting %s = %s in Variable %r is ignored: %s", name, shown, key, problem)
    return usable


def last_change(text: str | None) -> dict[str, Any]:
    """The last recorded change of the settings: ``by``, ``at`` (ISO 8601, UTC), ``what``; else
    empty.
    """
    settings, _ = parsed(text)
    change = (settings or {}).get(CHANGED)
    if not isinstance(change, dict):
        return {}
    names = ("by", "at", "what")
    if not all(isinstance(change.get(name), str) for name in names):
        return {}
    return {name: truncated(change[name]) for name in names}


def after_change(job_id: str, text: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The Variable of a job after ``changes`` (None removes a setting); anything else in it stays.

    Raises StoreError if the text is no JSON object: a person wrote it, so it is not overwritten.
    """
    before, problem = parsed(text)
    if before is None:
        raise StoreError(  # without the text, which may hold a password
            f"Variable {variable_key(SETTINGS, job_id)!r} is no JSON object ({problem}), so "
            "nothing "
            "in it is used and it is not overwritten. Correct it under Admin, Variables, or delete "
            "it; then try again."
        )
    others = {name: value for name, value in before.items() if name not in changes}
    return others | without_none(changes)


def write_settings(
    variables: AirflowVariables, job_id: str, changes: Mapping[str, Any], *, by: str
) -> dict[str, str]:
    """Change live settings of a job (None removes one) and record who changed what, and when.

    Returns the record, as :func:`last_change` reads it. Raises StoreError: the Variable cannot be
    read, holds no JSON object, or does not keep the change.
    """
    key = variable_key(SETTINGS, job_id)
    texts = []
    for name, value in changes.items():
        setting = _CHANGES[name]
        texts.append(setting.removed if value is None else setting.changed.format(value))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    change = {"by": by, "at": now, "what": ", ".join(texts)}
    text = json.dumps(after_change(job_id, variables.get(key), {**changes, CHANGED: change}))
    variables.set(key, text)
    if variables.get(key) != text:
        raise StoreError(
            f"Variable {key!r} does not keep what is written to it: it is defined in the "
            "environment "
            "or in a secrets backend, or another user changed it at the same time. Change it "
            "there, "
            "or try again."
        )
    return change


def copy_settings(variables: AirflowVariables, old: str, new: str) -> bool:
    """Give the live settings of a job to another name too; return whether there was something to
    copy.

    Raises StoreError if the other name has settings of its own, or does not keep the copy.
    """
    key = variable_key(SETTINGS, old)
    other = variable_key(SETTINGS, new)
    text = variables.get(key)
    there = variables.get(other)
    if old == new or text in (None, there):
        return False
    if there is not None:
        raise StoreError(
            f"Both {old!r} and {new!r} have live settings. Delete those that do not count: airflow "
            f"variables delete {key}, or airflow variables delete {other}; then try again."
        )
    variables.set(other, text)
    if variables.get(other) != text:
        raise StoreError(f"Variable {other!r} does not keep what is written to it. Try again.")
    return True


def parsed(text: str | None) -> tuple[dict[str, Any] | None, str]:
    """The JSON object of a Variable, or None and why it is none; an empty text is an empty
    object.
    """
    if text is None or not text.strip():
        return {}, ""
    try:
        value = json.loads(text)
    except RecursionError:
        return None, "it is nested too deeply"
    except ValueError as error:
        return None, str(error)
    if not isinstance(value, dict):
        return None, f"a {type(value).__name__} is not a JSON object"
    return value, ""


def _problem(name: str, value: Any, batch_sizes: Sequence[int] | None) -> str | None:
    if name not in _CHANGES:
        return (
            "no such setting; use eta, job_version, pause_exploration, pin_batch_size, audit_after "
            "or excluded"
        )
    refusal = kinds.JobField.of(_CHANGES[name].kind).rule(value)
    if refusal is not None:
        problem, _ = refusal
        return problem
    if name == "pin_batch_size" and batch_sizes is not None:
        if value in batch_sizes:
            return None
        return f"not in batch_sizes {list(batch_sizes)}"
    if name == "job_version" and truncated(value) != value:
        return "not a text that a database takes"
    return None
