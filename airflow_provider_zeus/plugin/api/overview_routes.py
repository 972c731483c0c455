"""Data routes of the page of all jobs. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser, GetUserDep
from airflow_provider_zeus.hooks.zeus import about_dags
from airflow_provider_zeus.hooks.zeus import month_saved as saved_of_job
from airflow_provider_zeus.plugin.api import auth, dag_routes, reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.api.responses import answered
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views import months_view, overview_state, overview_view, pages
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis
from airflow_provider_zeus.plugin.views.factors import configured
from airflow_provider_zeus.plugin.views.models import JobSaved
from airflow_provider_zeus.reports.months import PeriodSum, SavedDraws, month_bounds, month_of
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api")

WORK_S = 1.0  # that one request fits jobs
_savings: LruCache[SavedDraws | str] = LruCache(600)


@router.get("/jobs")
@answered
def jobs(user: GetUserDep) -> Any:
    """All jobs of the DAGs whose runs this user may read, with the state of their newest runs."""
    store = reading.open_log()
    missing = reading.missing_trials(lambda origin: True)
    trials = store.latest(last=overview_state.NEWEST) if store else []
    damages = store.unreadable if store else []
    of_dags = {t.origin.dag_id for t in (*trials, *(trial for trial, _ in missing.values()))}
    allowed = auth.with_readable_runs(user, of_dags | {damage.dag_id for damage in damages})
    in_log = {t.key for t in trials}
    missing = {k: kept for k, kept in missing.items() if kept[0].origin.dag_id in allowed and k not in in_log}
    answer = {"blocks": pages.layout("overview"), "store": auth.store_name(user, store), "left_out": "", "jobs": []}
    if store is None:
        return answer | {"note": words.without_log(missing) or overview_view.NO_JOBS}
    live = reading.live_settings_of({t.job_id for t in trials if t.origin.dag_id in allowed})
    rows = overview_view.rows(trials, allowed, live, time.time(), about_dags(allowed))
    damaged = words.left_out([damage for damage in damages if damage.dag_id in allowed])
    left_out = " ".join(filter(None, (damaged, words.without_log(missing))))
    note = None if rows else left_out or overview_view.NO_JOBS
    return answer | {"note": note, "left_out": left_out, "jobs": rows}


@router.get("/jobs/{dag_id}/saved", dependencies=[auth.MAY_READ_RUNS])
@answered
def job_saved(dag_id: str, job_id: str, user: GetUserDep) -> Any:
    """Savings of a job in a DAG so far, and its next run. A route of its own, since it reads all trials of the job."""
    store = reading.open_log()
    trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS) if store and job_id in store.jobs(dag_id) else []
    if store is None or not trials:
        raise HTTPException(404, "This DAG has no such job.")
    if overview_view.readable_job(trials[-1], store.settings(job_id)) is None:
        return JobSaved(word="Not known", text="no run of it can be read here")  # a newer version wrote it
    known = dag_routes.analysis(store, dag_id, job_id, trials)
    if isinstance(known, JobAnalysis):
        return overview_view.saved(trials, known, all_of=not reading.has_older(store, dag_id, job_id))
    return overview_view.measured(dag_routes.measured_log(store, trials, known))


@router.get("/months")
@answered
def month(user: GetUserDep, month: str | None = None) -> Any:
    """What all jobs of the DAGs whose runs this user may read spent in a calendar month (UTC), and by month before."""
    months, store = _months(month), reading.open_log()
    sums = _readable(user, store, month_bounds(months[-1], len(months))) if store else []
    about = about_dags({s.dag_id for s in sums if s.period == len(months) - 1})
    return months_view.month_answer(sums, months, configured(), about)


@router.get("/months/saved")
@answered
def month_saved(user: GetUserDep, month: str | None = None) -> Any:
    """What they saved in it; ask again until it is done.

    Fits jobs for :data:`WORK_S`; fits are kept while their sums stay as they are: the next request goes on.
    """
    month = _months(month)[-1]
    store, bounds = reading.open_log(), month_bounds(month, 1)
    sums = _readable(user, store, bounds) if store else []
    jobs = sorted({(s.dag_id, s.job_id) for s in sums})
    found, worked_s = list[SavedDraws | str](), 0.0
    _savings.hold(2 * len(jobs))  # two readers of two months; with fewer, each request would fit the same jobs again

    def fit(store: Store, dag_id: str, job_id: str) -> SavedDraws | str:
        nonlocal worked_s
        start_s = time.monotonic()
        try:
            known = partial(reading.beliefs.with_belief, (store.identity, dag_id, job_id))
            return saved_of_job(store, dag_id, job_id, bounds[0], bounds[-1], known)
        finally:
            worked_s += time.monotonic() - start_s

    for dag_id, job_id in jobs if store else ():
        if worked_s > WORK_S:
            break
        assert store is not None
        seen = tuple(s for s in sums if (s.dag_id, s.job_id) == (dag_id, job_id))
        found.append(_savings.get((store.identity, month, seen), partial(fit, store, dag_id, job_id)))
    return months_view.month_saved(found, sums, len(jobs), configured())


def _months(month: str | None) -> list[str]:
    """The months up to this one, "2026-11"; None: up to the present one. Raises HTTPException 422."""
    try:
        bounds = month_bounds(month or month_of(time.time()), 13)  # of the chart: a year and the same month before
    except ValueError:
        raise HTTPException(422, "Give the month as 2026-11.") from None
    return [month_of(begin_s) for begin_s in bounds[:-1]]


def _readable(user: BaseUser, store: Store, bounds: Sequence[float]) -> list[PeriodSum]:
    """The sums of the DAGs whose runs this user may see."""
    sums = store.sums(bounds)
    allowed = auth.with_readable_runs(user, (s.dag_id for s in sums))
    return [s for s in sums if s.dag_id in allowed]
