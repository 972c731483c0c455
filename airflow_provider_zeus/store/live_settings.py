"""Live settings of a job: Variable ``zeus-settings:<job>``, as ``{"eta": 0.8, "pause_exploration": true}``.

A training never fails because of them: a setting that cannot be used is named in a warning and ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model import job_checks as kinds
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import EXCLUDED, Trial
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.units import time_text

if TYPE_CHECKING:
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

log = guarded_log(__name__)

ReadText = Callable[[str], str | None]  # Variable key -> its text, None when there is none

SETTINGS = "zeus-settings"
CHANGED = "changed"  # beside the settings: who changed them last, what, and when; no setting
_CHANGES: dict[str, tuple[Any, str, str]] = {  # setting -> its type, how a new value and its removal are recorded
    "eta": (kinds.Eta, "eta set to {}", "eta removed"),
    "job_version": (kinds.Name, "job reset (job_version {})", "job_version removed"),
    "pause_exploration": (kinds.Flag, "exploration paused", "exploration resumed"),
    "pin_batch_size": (kinds.OneOrMore, "batch size pinned to {}", "batch size unpinned"),
    EXCLUDED: (kinds.TrialNumbers, "trials {} teach nothing", "all runs teach again"),
    "audit_after": (kinds.NoneOrMore, "default to be measured in the next run", "audit withdrawn"),
}

ZEUS_CHOOSES = {"pause_exploration": None, "pin_batch_size": None}  # the changes that end a pause and a pin


def variable_key(prefix: str, name: str) -> str:
    """Key of a Variable about ``name``: the name itself where Airflow accepts it everywhere, else its hash.

    A Variable's key has at most 250 characters and is not quoted in the path of the Execution API. A key with a word
    like ``token`` in it makes Airflow mask the whole value in each log line, so the log of a job must not have one;
    settings are short and written by people, so theirs may.
    """
    hidden = "(?i)key|token|secret|pass|auth|bearer|dsn|prox|account|webhook|connection_string"
    plain = patterns.fullmatch(r"[A-Za-z0-9._-]{1,160}", name)
    if plain and (prefix == SETTINGS or not patterns.search(hidden, name)):
        return f"{prefix}:{name}"
    return f"{prefix}:~{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:40]}"


def read_settings(
    read: ReadText | None, job_id: str, batch_sizes: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Usable settings of a job; None where Airflow does not give them. Raises nothing.

    :param batch_sizes: None: a pinned size is not compared with them.
    """
    if read is None:
        return {}
    key = variable_key(SETTINGS, job_id)
    try:
        found, problem = parsed(read(key))
    except Exception as error:  # of Airflow or of the network: settings must not fail a training
        log.warning("Live settings in Variable %r cannot be read: %s", key, error)
        return None
    if found is None:
        log.warning("Live settings in Variable %r are ignored: %s. Correct its text or delete it.", key, problem)
        return {}
    return _usable(found, key, batch_sizes)


def last_known(trials: Sequence[Trial], job_id: str, batch_sizes: Sequence[int], now_s: float) -> dict[str, Any]:
    """The settings that were read last, for a decision for which they could not be: a pin may stand in them.

    :param trials: the newest of the job.
    :param now_s: seconds since the epoch.
    """
    decided = [t for t in trials if t.decision.settings is not None]
    if not decided:
        log.warning("No live setting of %s is known from before; the run goes on without.", visible(job_id))
        return {}
    last = next(t for t in decided if t.key.ti_id == decided[-1].key.ti_id)  # the first attempt of that decision
    age = time_text(max(now_s - last.opened_at, 0.0))
    found = _usable(dict(last.decision.settings or {}), variable_key(SETTINGS, job_id), batch_sizes)
    held = ", ".join(f"{name} = {value}" for name, value in found.items()) or "none was set"
    log.warning("Zeus uses the live settings as trial %d knew them, %s ago: %s.", last.number, age, visible(held))
    return found if "pin_batch_size" not in found else {**found, "pinned_by": f"a live setting, as read {age} ago"}


def _usable(found: Mapping[str, Any], key: str, batch_sizes: Sequence[int] | None) -> dict[str, Any]:
    usable = {}
    for name, value in found.items():
        if name == CHANGED:
            continue
        if unusable := _problem(name, value, batch_sizes):
            shown = repr(value) if isinstance(value, int | float) else "..."  # a text may hold a password
            log.warning("Live setting %s = %s in Variable %r is ignored: %s", name, shown, key, unusable)
        else:
            usable[name] = value
    return usable


def last_change(text: str | None) -> dict[str, Any]:
    """The last recorded change of the settings: ``by``, ``at`` (ISO 8601, UTC), ``what``; empty where there is none."""
    found = (parsed(text)[0] or {}).get(CHANGED)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("by", "at", "what")):
        return {}
    return {name: truncated(found[name]) for name in ("by", "at", "what")}


def after_change(job_id: str, text: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The Variable of a job after ``changes`` (None removes a setting); anything else in it stays.

    Raises StoreError where the text is no JSON object: a person wrote it, so it is not overwritten.
    """
    found, problem = parsed(text)
    if found is None:
        raise StoreError(  # without the text, which may hold a password
            f"Variable {variable_key(SETTINGS, job_id)!r} is no JSON object ({problem}), so nothing in it is used and "
            "it is not overwritten. Correct it under Admin, Variables, or delete it; then try again."
        )
    others = {name: value for name, value in found.items() if name not in changes}
    return others | {name: value for name, value in changes.items() if value is not None}


def write_settings(variables: AirflowVariables, job_id: str, changes: Mapping[str, Any], *, by: str) -> dict[str, str]:
    """Change live settings of a job (None removes one) and record who did it, when, and what changed.

    Returns the record, as :func:`last_change` reads it. Raises StoreError: the Variable cannot be read, holds no JSON
    object, or does not keep the change.
    """
    key = variable_key(SETTINGS, job_id)
    what = ", ".join(_CHANGES[name][2 if value is None else 1].format(value) for name, value in changes.items())
    change = {"by": by, "at": datetime.now(UTC).isoformat(timespec="seconds"), "what": what}
    text = json.dumps(after_change(job_id, variables.get(key), {**changes, CHANGED: change}))
    variables.set(key, text)
    if variables.get(key) != text:
        raise StoreError(
            f"Variable {key!r} does not keep what is written to it: it is defined in the environment or in a secrets "
            "backend, or another user changed it at the same time. Change it there, or try again."
        )
    return change


def copy_settings(variables: AirflowVariables, old: str, new: str) -> bool:
    """Give the live settings of a job to another name too; return whether there was something to copy.

    Raises StoreError where the other name has settings of its own, or does not keep the copy.
    """
    key, other = variable_key(SETTINGS, old), variable_key(SETTINGS, new)
    text, there = variables.get(key), variables.get(other)
    if text is None or text == there or old == new:
        return False
    if there is not None:
        raise StoreError(
            f"Both {old!r} and {new!r} have live settings. Delete those that do not count: airflow variables delete "
            f"{key}, or airflow variables delete {other}; then try again."
        )
    variables.set(other, text)
    if variables.get(other) != text:
        raise StoreError(f"Variable {other!r} does not keep what is written to it. Try again.")
    return True


def parsed(text: str | None) -> tuple[dict[str, Any] | None, str]:
    """The JSON object of a Variable, or None and why it is none; an empty text is an empty object."""
    try:
        found = json.loads(text) if text and text.strip() else {}
    except RecursionError:
        return None, "it is nested too deeply"
    except ValueError as error:
        return None, str(error)
    return (found, "") if isinstance(found, dict) else (None, f"a {type(found).__name__} is not a JSON object")


def _problem(name: str, value: Any, batch_sizes: Sequence[int] | None) -> str | None:
    if name not in _CHANGES:
        return "no such setting; use eta, job_version, pause_exploration, pin_batch_size, audit_after or excluded"
    refusal = kinds.JobField.of(_CHANGES[name][0]).rule(value)
    if refusal is not None:
        return refusal[0]
    if name == "pin_batch_size" and batch_sizes is not None and value not in batch_sizes:
        return f"not in batch_sizes {list(batch_sizes)}"
    return None if name != "job_version" or truncated(value) == value else "not a text that a database takes"
