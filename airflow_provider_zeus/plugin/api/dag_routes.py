"""Data routes of a DAG's tab. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
import time
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, HTTPException, Query, Request, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.config import next_of
from airflow_provider_zeus.plugin.api import alert_routes, auth, reading, responses
from airflow_provider_zeus.plugin.api.caches import LruCache
from airflow_provider_zeus.plugin.text import run_notes, words
from airflow_provider_zeus.plugin.text.budget_text import budget_answers
from airflow_provider_zeus.plugin.views import dag_export, dag_view, dag_what_if, prices
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis, job_of
from airflow_provider_zeus.plugin.views.dag_models import DagAnswer, DagCharts, WhatIfAnswer
from airflow_provider_zeus.reports import job_remarks, renamed
from airflow_provider_zeus.reports.budget_figures import budget_spent, trials_of_periods
from airflow_provider_zeus.store.sql.store import Store

DAY_S = 86400.0  # periods of budgets begin at midnight (UTC)

router = APIRouter(prefix="/api/dags/{dag_id}", dependencies=[auth.MAY_READ_RUNS])

Price = Annotated[float | None, Query(ge=0, le=dag_what_if.MOST_PRICE, allow_inf_nan=False)]
Eta = Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)]
Carbon = Annotated[float | None, Query(ge=0, le=dag_what_if.MOST_CARBON, allow_inf_nan=False)]

_what_ifs: LruCache[WhatIfAnswer] = LruCache(64)
_chart_sets: LruCache[DagCharts] = LruCache(16)


class _Page(NamedTuple):
    """``limit`` runs, after the ``skip`` newest ones."""

    limit: int
    skip: int


@router.get("/costs")
async def dag_costs(
    user: auth.GetUserDep,
    dag_id: str,
    job_id: str | None = None,
    limit: int = Query(dag_view.RUNS, ge=1, le=reading.MOST_RUNS),
    skip: int = Query(0, ge=0, le=1_000_000),
) -> Response:
    """Costs of the runs of a Zeus job of a DAG, newest first; by default of its first job."""
    return await responses.answer(user, partial(_costs, user, dag_id, job_id, _Page(limit, skip)))


@router.get("/charts")
async def dag_charts(user: auth.GetUserDep, dag_id: str, job_id: str | None = None) -> Response:
    """Savings and charts of the newest runs."""
    return await responses.answer(user, partial(_charts, dag_id, job_id))


@router.get("/what-if")
async def dag_what_if_(
    user: auth.GetUserDep,
    dag_id: str,
    job_id: str | None = None,
    eta: Eta = None,
    price_per_kwh: Price = None,
    price_per_gpu_hour: Price = None,
    g_co2e_per_kwh: Carbon = None,
) -> Response:
    """Choice and cost that the log predicts for other weights and prices. Trains and writes nothing."""
    wish = dag_what_if.Wish(
        eta=eta, price_per_kwh=price_per_kwh, price_per_gpu_hour=price_per_gpu_hour, g_co2e_per_kwh=g_co2e_per_kwh
    )
    return await responses.answer(user, partial(_what_if, dag_id, job_id, wish))


@router.get("/export")
async def dag_export_(
    request: Request,
    user: auth.GetUserDep,
    dag_id: str,
    kind: Literal["csv", "json"],
    job_id: str | None = None,
    limit: int = Query(dag_export.MOST, ge=1, le=dag_export.MOST),
    skip: int = Query(0, ge=0, le=1_000_000),
) -> Response:
    """The trials of the newest runs, as a CSV or JSON file."""
    return await responses.file(request, user, partial(_export, user, dag_id, job_id, kind, _Page(limit, skip)))


def _costs(user: BaseUser, dag_id: str, job_id: str | None, page: _Page) -> DagAnswer:
    store, jobs, job_id, note = _job(dag_id, job_id)
    answer = DagAnswer(store=auth.store_name(user, store), jobs=jobs, note=note)
    missing = reading.missing_trials(lambda origin: origin.dag_id == dag_id)
    if store is None or job_id is None:
        return answer if jobs else answer.model_copy(update={"note": words.without_log(missing) or note})
    trials = store.runs(dag_id, job_id, last=page.limit + 1, skip=page.skip)
    found = {t.key for t in trials}
    missing = {key: kept for key, kept in missing.items() if key not in found}
    answer.left_out = " ".join(filter(None, (words.left_out(store.unreadable), words.without_log(missing))))
    if not trials:
        return answer.model_copy(update={"note": answer.left_out or "There is no older run."})
    newest = store.trials(job_id, last=job_remarks.NEWEST)  # of all DAGs: runs of another one may be another job's
    answer.remarks = [remark.text for remark in job_remarks.remarks(newest, reader=dag_id)]
    answer.remarks += _renamed(user, store, newest)
    may_edit = {t.origin.dag_id for t in newest} <= auth.editable_dags(user)
    answer.alerts = alert_routes.of_job(job_id, dag_id, may_edit=may_edit)
    pending, live = reading.pending(trials), store.settings(job_id)
    job = job_of(trials, live)
    if job.budget:
        now_s = time.time()
        of_job = trials_of_periods(lambda last: store.trials(job_id, last=last), job, now_s)
        answer.budgets = budget_answers(of_job, job, prices.configured(), now_s, reader=dag_id)
    return dag_view.filled(answer, trials, live, pending, limit=page.limit, skip=page.skip)


def _renamed(user: BaseUser, store: Store, newest: list[Trial]) -> list[str]:
    """That the job looks like an older one under a new name; empty where it does not, or the user may not know that."""
    if not newest or len(newest) > renamed.FEW:
        return []
    found = renamed.candidates(newest, store.latest(last=1))
    if not found:
        return []
    job_id = renamed.looks_like(found, newest[-1], reading.present_dags({t.origin.dag_id for t in found}))
    old = next((t for t in found if t.job_id == job_id), None)
    if old is None:
        return []
    same_dag = old.origin.dag_id == newest[-1].origin.dag_id
    known = same_dag or old.origin.dag_id in auth.readable_dags(user) or auth.sees_addresses(user)
    return [run_notes.renamed(old, newest[-1])] if known else []


def _charts(dag_id: str, job_id: str | None) -> DagCharts:
    store, _, job_id, note = _job(dag_id, job_id)
    if store is None or job_id is None:
        return DagCharts(note=note)
    factors = prices.configured()
    version = store.version(dag_id, job_id, last=reading.MOST_RUNS)  # read before the trials, so never newer

    def make() -> DagCharts:
        trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS)
        if not trials:
            return DagCharts(note=words.left_out(store.unreadable) or dag_view.NO_JOB)
        more, analysis = reading.has_older(store, dag_id, job_id), _analysis(store, dag_id, job_id, trials)
        hours = reading.kept_signals(store, analysis.log.job, time.time())
        return dag_view.charts(trials, analysis, factors, hours, more=more)

    if version is None:
        return make()
    live, today = json.dumps(store.settings(job_id), sort_keys=True), time.time() // DAY_S
    return _chart_sets.get((store.identity, dag_id, job_id, version, live, today, factors), make)


def _what_if(dag_id: str, job_id: str | None, wish: dag_what_if.Wish) -> WhatIfAnswer:
    store, _, job_id, note = _job(dag_id, job_id)
    if store is None or job_id is None:
        return WhatIfAnswer(note=note)
    factors = prices.configured()
    version = store.version(dag_id, job_id, last=reading.MOST_RUNS)  # read before the trials, so never newer

    def make() -> WhatIfAnswer:
        trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS)
        if not trials:
            return WhatIfAnswer(note=words.left_out(store.unreadable) or dag_view.NO_JOB)
        return dag_what_if.answered(_analysis(store, dag_id, job_id, trials), wish, factors)

    if version is None:
        return make()
    live, today = json.dumps(store.settings(job_id), sort_keys=True), time.time() // DAY_S
    return _what_ifs.get((store.identity, dag_id, job_id, version, live, today, wish, factors), make)


def _export(
    user: BaseUser, dag_id: str, job_id: str | None, kind: Literal["csv", "json"], page: _Page
) -> responses.File:
    store, _, job_id, note = _job(dag_id, job_id)
    if store is None or job_id is None:
        raise HTTPException(404, note)
    pieces = store.pieces(dag_id, job_id, last=page.limit, skip=page.skip)
    more = bool(store.runs(dag_id, job_id, last=1, skip=page.skip + page.limit))
    name = dag_export.file_name(job_id, datetime.now(UTC).date(), kind)
    text = (
        dag_export.csv_of(pieces)
        if kind == "csv"
        else dag_export.json_of(pieces, job_id=job_id, store=auth.store_name(user, store), more=more)
    )
    return responses.File(name, dag_export.TYPES[kind], text)


def _job(dag_id: str, job_id: str | None) -> tuple[Store | None, list[str], str | None, str | None]:
    """The store, the DAG's jobs, the chosen job or None, and why there is none."""
    store = reading.open_log()
    jobs = store.jobs(dag_id) if store else []
    if not jobs:
        return store, [], None, dag_view.NO_JOB
    if job_id is not None and job_id not in jobs:
        return store, jobs, None, f"This DAG has no trial of a job {job_id!r}."
    return store, jobs, job_id or jobs[0], None


def _analysis(store: Store, dag_id: str, job_id: str, trials: list[Trial]) -> JobAnalysis:
    live = store.settings(job_id)
    job, switched = next_of(job_of(trials, live))
    dataset, profiles = reading.learned(store, dag_id, job, trials)
    spent = budget_spent(lambda last: store.trials(job_id, last=last), job, prices.configured(), time.time())
    return JobAnalysis.of(trials, dataset, profiles, {**live, **spent, **switched})
