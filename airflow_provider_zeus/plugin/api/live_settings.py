"""Reads and changes live settings of jobs for the cost page. A change is also a line in Airflow's audit log."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.plugin.views.overview_view import Live
from airflow_provider_zeus.store.live_settings import (
    SETTINGS,
    last_change,
    problem_of,
    read_settings,
    variable_key,
    write_settings,
)
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

log = logging.getLogger(__name__)

EVENT = "zeus settings"  # in Airflow's audit log


def of(job_id: str) -> Live:
    """Settings of a job with their last change, or the problem why none of them is used. Raises StoreError."""
    key = variable_key(SETTINGS, job_id)
    text = AirflowVariables().get(key)
    if problem := problem_of(text):
        remedy = f"No live setting is used: Variable {key!r} is no JSON object ({problem}). Correct it or delete it."
        return {}, {"problem": remedy}
    return read_settings(lambda _: text, job_id), last_change(text)


def of_all(job_ids: Collection[str]) -> dict[str, Live]:
    """:func:`of` for each job that has a Variable. Lists the Variables once, since most jobs have none."""
    try:
        keys = set(AirflowVariables().keys(f"{SETTINGS}:"))
        return {job: of(job) for job in job_ids if variable_key(SETTINGS, job) in keys}
    except StoreError as error:
        log.warning("Live settings cannot be read: %s", error)
        return {}


def change(job_id: str, changes: Mapping[str, Any], *, dag_id: str, by: str) -> None:
    """Change live settings of a job (None removes one) and add a line to Airflow's audit log.

    Raises StoreError: the Variable holds no JSON object, or does not keep the change. A failure of the audit log is
    only logged.
    """
    audit(job_id, write_settings(AirflowVariables(), job_id, changes, by=by)["what"], dag_id=dag_id, by=by)


def audit(job_id: str, what: str, *, dag_id: str, by: str) -> None:
    """Add a line to Airflow's audit log. A failure is only logged."""
    from airflow_provider_zeus.airflow_compat import Log, create_session

    try:
        with create_session() as session:
            session.add(Log(EVENT, owner=by, dag_id=dag_id, extra=json.dumps({"job_id": job_id, "what": what})))
    except Exception:
        log.exception("A change of the live settings of %r is missing in the audit log.", job_id)
