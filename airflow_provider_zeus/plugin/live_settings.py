"""Live settings of jobs as the UI reads and changes them: in their Variables, with who and when."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.plugin.overview_view import Live
from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from airflow_provider_zeus.store.settings import (
    CHANGED,
    SETTINGS,
    after_change,
    last_change,
    problem_of,
    read_settings,
    variable_key,
)

log = logging.getLogger(__name__)

EVENT = "zeus settings"  # in Airflow's audit log


def of(job_id: str) -> Live:
    """Settings of one job, and who changed them last, or why none of them is used. Raises StoreError."""
    key = variable_key(SETTINGS, job_id)
    text = AirflowVariables().get(key)
    if problem := problem_of(text):
        said = f"No live setting is used: Variable {key!r} is no JSON object ({problem}). Correct it or delete it."
        return {}, {"problem": said}
    return read_settings(lambda _: text, job_id), last_change(text)


def of_all(job_ids: Collection[str]) -> dict[str, Live]:
    """The same of those that have any: one look for all, since most have none."""
    try:
        there = set(AirflowVariables().keys(f"{SETTINGS}:"))
        return {job: of(job) for job in job_ids if variable_key(SETTINGS, job) in there}
    except StoreError as error:
        log.warning("Live settings cannot be looked for: %s", error)
        return {}


def change(job_id: str, changes: Mapping[str, Any], *, dag_id: str, by: str, what: str) -> None:
    """Write a change, with who and when; None removes a setting.

    Raises StoreError where it did not take, or where the Variable holds what is no JSON object: that stays as it is.
    """
    variables, key = AirflowVariables(), variable_key(SETTINGS, job_id)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps(
        after_change(job_id, variables.get(key), {**changes, CHANGED: {"by": by, "at": at, "what": what}})
    )
    variables.set(key, text)
    if variables.get(key) != text:
        raise StoreError(
            f"Variable {key!r} holds something else after it was written: it is defined in the environment or in a "
            "secrets backend, or somebody changed it just now. Change it there, or try again."
        )
    _audit(job_id, dag_id, by, what)


def _audit(job_id: str, dag_id: str, by: str, what: str) -> None:
    """A line in Airflow's audit log beside the Variable's own record; the change stands without it."""
    from airflow_provider_zeus.airflow_compat import Log, create_session

    try:
        with create_session() as session:
            session.add(Log(EVENT, owner=by, dag_id=dag_id, extra=json.dumps({"job_id": job_id, "what": what})))
    except Exception:
        log.exception("A change of the live settings of %r is not in the audit log.", job_id)
