"""Live settings of a job: Variable ``zeus-settings:<job>``, as ``{"eta": 0.8, "pause_exploration": true}``.

They are an aid, so nothing in them stops a training: what cannot be used is named in a warning and left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.errors import StoreError

log = logging.getLogger(__name__)

ReadText = Callable[[str], str | None]  # Variable key -> its text, None when there is none

SETTINGS = "zeus-settings"
CHANGED = "changed"  # beside the settings: who changed them last in the UI, what, and when; no setting

_SHOWN = 200  # characters of a text that is quoted

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,160}")
_HIDDEN = re.compile("key|token|secret|pass|auth|bearer|dsn|prox|account|webhook|connection_string", re.IGNORECASE)


def variable_key(prefix: str, name: str) -> str:
    """Key of a Variable about ``name``: as it is where Airflow takes it everywhere, else its hash.

    A Variable's key is at most 250 characters long and travels unquoted in the Execution API's path. A key with a
    word like ``token`` in it makes Airflow search every log line for the whole value, again for each new value, so a
    log of 500 trials must not have one; settings are short and written by people, so theirs may.
    """
    plain = _PLAIN.fullmatch(name) and (prefix == SETTINGS or not _HIDDEN.search(name))
    if plain:
        return f"{prefix}:{name}"
    return f"{prefix}:~{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:40]}"


def read_settings(read: ReadText | None, job_id: str, batch_sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """Settings of a job that can be used; raises nothing. ``batch_sizes`` None: a pin is not compared with them."""
    if read is None:
        return {}
    key = variable_key(SETTINGS, job_id)
    try:
        found, problem = _parsed(read(key))
    except Exception as error:  # of Airflow, of the network: a training must not fail over an aid
        log.warning("Live settings in Variable %r cannot be read and are ignored: %s", key, error)
        return {}
    if found is None:
        log.warning("Live settings in Variable %r are ignored: %s. Correct its text or delete it.", key, problem)
        return {}
    return {n: value for n, value in found.items() if n != CHANGED and _usable(key, n, value, batch_sizes)}


def last_change(text: str | None) -> dict[str, Any]:
    """Who changed the settings last in the UI: ``by``, ``at`` (ISO 8601, UTC), ``what``; empty where nobody did."""
    found = (_parsed(text)[0] or {}).get(CHANGED)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("by", "at", "what")):
        return {}
    return {name: found[name] for name in ("by", "at", "what")}


def after_change(job_id: str, text: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What the Variable of a job holds after ``changes`` (None removes a setting); what else stands in it stays.

    Raises StoreError where the text is no JSON object: a person wrote it, so it is not written over.
    """
    found, problem = _parsed(text)
    if found is None:
        raise StoreError(
            f"Variable {variable_key(SETTINGS, job_id)!r} is no JSON object ({problem}), so nothing in it is used and "
            f"it is not written over. It holds: {_shown(text)}. Correct it under Admin, Variables, or delete it; then "
            "try again."
        )
    kept = {name: value for name, value in found.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}


def problem_of(text: str | None) -> str:
    """Why no live setting in this text is used; empty where it is a JSON object, or there is none."""
    return _parsed(text)[1]


def _parsed(text: str | None) -> tuple[dict[str, Any] | None, str]:
    """What the Variable holds, or None and why it is no JSON object; an empty text holds nothing."""
    try:
        found = json.loads(text) if text and text.strip() else {}
    except RecursionError:
        return None, "it is nested too deeply"
    except ValueError as error:
        return None, str(error)
    return (found, "") if isinstance(found, dict) else (None, f"a {type(found).__name__} is not a JSON object")


def _shown(text: str | None) -> str:
    text = text or ""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _usable(key: str, name: str, value: Any, batch_sizes: Sequence[int] | None) -> bool:
    problem = _problem(name, value, batch_sizes)
    if problem:
        shown = repr(value) if isinstance(value, int | float) else "..."  # a text may be anything, a password too
        log.warning("Live setting %s = %s in Variable %r is ignored: %s", name, shown, key, problem)
    return problem is None


def _problem(name: str, value: Any, batch_sizes: Sequence[int] | None) -> str | None:
    if name == "eta":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and 0 <= value <= 1 else "not a number from 0 to 1"
    if name == "pause_exploration":
        return None if isinstance(value, bool) else "neither true nor false"
    if name == "pin_batch_size":
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            return "not a positive whole number"
        if batch_sizes is not None and value not in batch_sizes:
            return f"not in batch_sizes {list(batch_sizes)}"
        return None
    if name == "job_version":
        return None if isinstance(value, str) and value else "not a text of at least one character"
    return "no such setting; use eta, job_version, pause_exploration or pin_batch_size"
