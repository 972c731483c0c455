"""The data routes of a DAG's tab. Loaded by the api-server alone."""

# No "from __future__ import annotations": FastAPI would take its dependencies for query parameters.
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query  # noqa: TID253 - see above
from fastapi.responses import StreamingResponse  # noqa: TID253

from airflow_provider_zeus.optimizer.trial import Trial
from airflow_provider_zeus.plugin import dag_export, dag_view, dag_what_if, prices, reading, words
from airflow_provider_zeus.plugin.auth import MAY_READ_RUNS
from airflow_provider_zeus.plugin.dag_known import Known, job_of
from airflow_provider_zeus.plugin.dag_models import DagAnswer, DagCharts, WhatIfAnswer
from airflow_provider_zeus.store.base import Store

router = APIRouter(prefix="/api/dags/{dag_id}", dependencies=[MAY_READ_RUNS])

Price = Annotated[float | None, Query(ge=0, le=dag_what_if.MOST_PRICE, allow_inf_nan=False)]
Eta = Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)]
Carbon = Annotated[float | None, Query(ge=0, le=dag_what_if.MOST_CARBON, allow_inf_nan=False)]


@router.get("/costs")
def dag_costs(
    dag_id: str,
    job_id: str | None = None,
    limit: int = Query(dag_view.RUNS, ge=1, le=reading.MOST_RUNS),
    skip: int = Query(0, ge=0, le=1_000_000),
) -> DagAnswer:
    """What runs of one Zeus job of a DAG cost, newest first; of its first job where none is named."""
    store, jobs, job_id, note = _which(dag_id, job_id)
    answer = DagAnswer(store=store.identity if store else "", jobs=jobs, note=note)
    if store is None or job_id is None:
        return answer
    trials = store.runs(dag_id, job_id, last=limit + 1, skip=skip)
    answer.left_out = words.left_out(store.unreadable)
    if not trials:
        return answer.model_copy(update={"note": answer.left_out or "There is no older run."})
    untold = reading.untold(trials)
    return dag_view.filled(answer, trials, store.settings(job_id), untold, limit=limit, skip=skip)


@router.get("/charts")
def dag_charts(dag_id: str, job_id: str | None = None) -> DagCharts:
    """What the newest runs say together: saved or lost, and the charts."""
    store, _, job_id, note = _which(dag_id, job_id)
    if store is None or job_id is None:
        return DagCharts(note=note)
    trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS)
    if not trials:
        return DagCharts(note=words.left_out(store.unreadable) or dag_view.NO_JOB)
    more = reading.has_older(store, dag_id, job_id)
    return dag_view.charts(trials, _known(store, dag_id, job_id, trials), prices.configured(), more=more)


@router.get("/what-if")
def dag_what_if_(
    dag_id: str,
    job_id: str | None = None,
    eta: Eta = None,
    price_per_kwh: Price = None,
    price_per_gpu_hour: Price = None,
    g_co2e_per_kwh: Carbon = None,
) -> WhatIfAnswer:
    """What the log says would be chosen and spent under other weights and prices. Nothing is trained or written."""
    store, _, job_id, note = _which(dag_id, job_id)
    if store is None or job_id is None:
        return WhatIfAnswer(note=note)
    trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS)
    if not trials:
        return WhatIfAnswer(note=words.left_out(store.unreadable) or dag_view.NO_JOB)
    wish = dag_what_if.Wish(
        eta=eta, price_per_kwh=price_per_kwh, price_per_gpu_hour=price_per_gpu_hour, g_co2e_per_kwh=g_co2e_per_kwh
    )
    return dag_what_if.answered(_known(store, dag_id, job_id, trials), wish, prices.configured())


@router.get("/export")
def dag_export_(
    dag_id: str,
    kind: Literal["csv", "json"],
    job_id: str | None = None,
    limit: int = Query(dag_export.MOST, ge=1, le=dag_export.MOST),
    skip: int = Query(0, ge=0, le=1_000_000),
) -> StreamingResponse:
    """The trials of the newest runs as the store holds them, as a file."""
    store, _, job_id, note = _which(dag_id, job_id)
    if store is None or job_id is None:
        raise HTTPException(404, note)
    trials = store.runs(dag_id, job_id, last=limit, skip=skip)
    more = bool(store.runs(dag_id, job_id, last=1, skip=skip + limit))
    name = dag_export.file_name(job_id, datetime.now(UTC).date(), kind)
    body = (
        dag_export.csv_of(trials)
        if kind == "csv"
        else dag_export.json_of(trials, job_id=job_id, store=store.identity, more=more)
    )
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(body, media_type=dag_export.TYPES[kind], headers=headers)


def _which(dag_id: str, job_id: str | None) -> tuple[Store | None, list[str], str | None, str | None]:
    """(store, jobs of the DAG, the one that is meant, else why there is none)."""
    store = reading.open_log()
    jobs = store.jobs(dag_id) if store else []
    if not jobs:
        return store, [], None, dag_view.NO_JOB
    if job_id is not None and job_id not in jobs:
        return store, jobs, None, f"This DAG has no trial of a job {job_id!r}."
    return store, jobs, job_id or jobs[0], None


def _known(store: Store, dag_id: str, job_id: str, trials: list[Trial]) -> Known:
    log, profiles = reading.folded(store, dag_id, job_of(trials, store.settings(job_id)), trials)
    return Known.of(trials, log, profiles)
