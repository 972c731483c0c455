"""Data routes of a DAG's tab. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser, GetUserDep
from airflow_provider_zeus.model.event import Held
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial, newest_device
from airflow_provider_zeus.operators.config import next_of
from airflow_provider_zeus.plugin.api import auth, reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.api.responses import File, answered, file
from airflow_provider_zeus.plugin.text import run_notes, words
from airflow_provider_zeus.plugin.views import costs, pages
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis, job_today
from airflow_provider_zeus.plugin.views.dag_view import NO_JOB, JobLog, JobRuns
from airflow_provider_zeus.plugin.views.factors import Factors, configured
from airflow_provider_zeus.plugin.views.measured_view import MeasuredLog
from airflow_provider_zeus.plugin.views.models import AlertRow, short
from airflow_provider_zeus.reports import export_rows, job_remarks
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api/dags/{dag_id}", dependencies=[auth.MAY_READ_RUNS])

Limit = Annotated[int, Query(ge=1, le=reading.MOST_RUNS)]
Skip = Annotated[int, Query(ge=0, le=1_000_000)]  # so many newest runs are left out

_charts: LruCache[Any] = LruCache(16)


@router.get("/costs")
@answered
def dag_costs(user: GetUserDep, dag_id: str, job_id: str | None = None, limit: Limit = 200, skip: Skip = 0) -> Any:
    """The runs of a Zeus job of a DAG, newest first, by default of its first job: the quick blocks of the tab."""
    store, jobs, job_id, note = _job(user, dag_id, job_id)
    answer = {"store": auth.store_name(user, store), "jobs": jobs, "job_id": None, "note": note, "left_out": ""}
    missing = reading.missing_trials(lambda origin: origin.dag_id == dag_id)
    if store is None or job_id is None:
        return answer if jobs else answer | {"note": words.without_log(missing) or note}
    trials = store.runs(dag_id, job_id, last=limit + 1, skip=skip)
    found = {t.key for t in trials}
    missing = {key: kept for key, kept in missing.items() if key not in found}
    left_out = " ".join(filter(None, (words.left_out(store.unreadable), words.without_log(missing))))
    if not trials:
        return answer | {"left_out": left_out, "note": left_out or "There is no older run."}
    newest = store.trials(job_id, last=job_remarks.NEWEST)  # of all DAGs: runs of another one may be another job's
    live = store.settings(job_id)
    job = job_today(trials, live)
    held = store.events(job_id).get(dag_id, Held())
    runs = JobRuns(
        trials=trials,
        live=live,
        pending=reading.pending(trials),
        limit=limit,
        alerts=[AlertRow(sentence=event.sentence, remedy=event.remedy) for event in held.events],
        remarks=[
            *(short(remark.text) for remark in job_remarks.remarks(newest, reader=dag_id)),
            *_renamed(user, store, newest),
        ],
    )
    table = {"more": runs.more, "skipped": skip, "totals": costs.totals_of(runs.rows)}
    page = "dag" if job.chooses_size else "measured"
    shown = {**pages.content(page, runs), **table, "blocks": pages.layout(page)}
    return answer | shown | {"job_id": job_id, "left_out": left_out}


@router.get("/charts")
@answered
def dag_charts(user: GetUserDep, dag_id: str, job_id: str | None = None) -> Any:
    """Savings and charts of the newest runs: the slow blocks of the tab."""

    def make(store: Store, trials: list[Trial], analysis: JobAnalysis | ZeusJob, factors: Factors) -> Any:
        more = reading.has_older(store, dag_id, trials[0].job_id)
        if isinstance(analysis, ZeusJob):
            measured = measured_log(store, trials, analysis, factors, more=more)
            return {"note": None} | pages.content("measured", measured, slow=True)
        hours = reading.kept_signals(store, analysis.log.job, time.time(), named=auth.sees_connections(user))
        return {"note": None} | pages.content("dag", JobLog(trials, analysis, factors, hours, more), slow=True)

    return _of_newest(user, dag_id, job_id, make)


@router.get("/export")
async def dag_export_(
    request: Request,
    user: GetUserDep,
    dag_id: str,
    job_id: str | None = None,
) -> Response:
    """The trials of the newest runs as a CSV file, in the form of ``airflow zeus export``."""

    def make() -> File:
        store, _, job, note = _job(user, dag_id, job_id)
        if store is None or job is None:
            raise HTTPException(404, note)
        pieces = store.pieces(dag_id, job, last=10_000)
        name = export_rows.file_name(job, datetime.now(UTC).date())
        return File(name, "text/csv; charset=utf-8", export_rows.csv_of(pieces, configured()))

    return await file(request, user, make)


def _job(user: BaseUser, dag_id: str, job_id: str | None) -> tuple[Store | None, list[str], str | None, str | None]:
    """The store, the DAG's jobs, the chosen job or None, and why there is none."""
    store = reading.open_log()
    jobs = store.jobs(dag_id) if store else []
    if not jobs:
        return store, [], None, NO_JOB + reading.elsewhere(dag_id, named=auth.sees_connections(user))
    if job_id is not None and job_id not in jobs:
        return store, jobs, None, f"This DAG has no trial of a job {job_id!r}."
    return store, jobs, job_id or jobs[0], None


def _renamed(user: BaseUser, store: Store, newest: list[Trial]) -> list[str]:
    """That the job looks like an older one under a new name; empty where it does not, or the user may not know that."""
    if not newest or len(newest) > job_remarks.FEW:
        return []
    found = job_remarks.candidates(newest, store.latest(last=1))
    if not found:
        return []
    job_id = job_remarks.looks_like(found, newest[-1], reading.present_dags({t.origin.dag_id for t in found}))
    old = next((t for t in found if t.job_id == job_id), None)
    if old is None:
        return []
    same_dag = old.origin.dag_id == newest[-1].origin.dag_id
    known = same_dag or old.origin.dag_id in auth.readable_dags(user) or auth.sees_addresses(user)
    return [run_notes.renamed(old, newest[-1])] if known else []


def _of_newest(
    user: BaseUser,
    dag_id: str,
    job_id: str | None,
    make: Callable[[Store, list[Trial], JobAnalysis | ZeusJob, Factors], Any],
) -> Any:
    """An answer about the newest runs, kept until the log, the settings or the prices change."""
    store, _, job_id, note = _job(user, dag_id, job_id)
    if store is None or job_id is None:
        return {"note": note}
    factors, live = configured(), store.settings(job_id)
    version = store.version(dag_id, job_id, last=reading.MOST_RUNS)  # read before the trials, so never newer

    def made() -> Any:
        trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS)
        if not trials:
            return {"note": words.left_out(store.unreadable) or NO_JOB}
        return make(store, trials, analysis(store, dag_id, job_id, trials), factors)

    if version is None:
        return made()
    named = auth.sees_connections(user)  # the answer may name a Connection
    key = store.identity, dag_id, job_id, version, json.dumps(live, sort_keys=True), factors, named
    return _charts.get(key, made)


def measured_log(
    store: Store, trials: list[Trial], job: ZeusJob, factors: Factors | None = None, *, more: bool = False
) -> MeasuredLog:
    """The newest runs of a job that chooses no batch size. ``more``: the log holds older ones."""
    profile = store.profile(trials[-1].job_id, newest_device(trials), job.job_version)
    return MeasuredLog(trials, job, factors or Factors(), more, profile)


def analysis(store: Store, dag_id: str, job_id: str, trials: list[Trial]) -> JobAnalysis | ZeusJob:
    """What the log teaches; of a job that chooses no batch size, the job alone."""
    live = store.settings(job_id)
    if not (job := job_today(trials, live)).chooses_size:
        return job
    job, switched = next_of(job)
    dataset, profiles = reading.learned(store, dag_id, job, trials, live)
    return JobAnalysis.of(trials, dataset, profiles, {**live, **switched})
