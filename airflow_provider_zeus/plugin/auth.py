"""Who may see what: all of Airflow's security that our pages use. The same names exist on Airflow 3.2 and 3.3."""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_authenticated
from fastapi import Depends, HTTPException, Request  # noqa: TID253 - loaded by the api-server alone

LONGEST_ID = 250  # characters that Airflow's tables hold


def _real_ids(request: Request) -> None:
    """404 for what can be no id of Airflow's: too long, with control characters, or ``~``.

    Airflow's check takes ``~`` for "any DAG", and PostgreSQL's driver raises on a null byte.
    """
    for value in request.path_params.values():
        if value == "~" or not 0 < len(value) <= LONGEST_ID or not value.isprintable():
            raise HTTPException(404, "No such address.")


EVERYWHERE = [Depends(requires_authenticated()), Depends(_real_ids)]  # Airflow itself lets anybody in
MAY_READ_RUNS = Depends(requires_access_dag("GET", DagAccessEntity.RUN))  # of the DAG named in the path
