"""Data routes of the page of all jobs about a calendar month. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import random
import time
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, HTTPException, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.plugin.api import auth, reading, responses
from airflow_provider_zeus.plugin.api.caches import LruCache
from airflow_provider_zeus.plugin.views import months_view, overview_view, prices
from airflow_provider_zeus.plugin.views.month_models import MonthAnswer, MonthSaved
from airflow_provider_zeus.reports.months import SavedDraws, month_bounds, month_of, saved_between
from airflow_provider_zeus.store.base import PeriodSum
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api/months")

WORK_S = 1.0  # that one request fits jobs
_savings: LruCache[SavedDraws | str] = LruCache(600)


@router.get("")
async def month(user: auth.GetUserDep, month: str | None = None) -> Response:
    """What all jobs of the DAGs whose runs this user may read spent in a calendar month (UTC), and by month before."""
    return await responses.answer(user, partial(_spent, user, _months(month)))


@router.get("/saved")
async def saved(user: auth.GetUserDep, month: str | None = None) -> Response:
    """What they saved in it; ask again until it is done."""
    return await responses.answer(user, partial(_saved, user, _months(month)[-1]))


def _months(month: str | None) -> list[str]:
    """The months up to this one, "2026-11"; None: up to the present one. Raises HTTPException 422."""
    try:
        bounds = month_bounds(month or month_of(time.time()), months_view.MONTHS)
    except ValueError:
        raise HTTPException(422, "Give the month as 2026-11.") from None
    return [month_of(begin_s) for begin_s in bounds[:-1]]


def _spent(user: BaseUser, months: Sequence[str]) -> MonthAnswer:
    store = reading.open_log()
    sums = _readable(user, store, month_bounds(months[-1], len(months))) if store else []
    return months_view.month_answer(sums, months, prices.configured())


def _readable(user: BaseUser, store: Store, bounds: Sequence[float]) -> list[PeriodSum]:
    """The sums of the DAGs whose runs this user may see."""
    sums = store.sums(bounds)
    allowed = auth.with_readable_runs(user, (s.dag_id for s in sums))
    return [s for s in sums if s.dag_id in allowed]


def _saved(user: BaseUser, month: str) -> MonthSaved:
    """Fit jobs for :data:`WORK_S`; fits are kept while their sums stay as they are: the next request goes on."""
    store, bounds = reading.open_log(), month_bounds(month, 1)
    sums = _readable(user, store, bounds) if store else []
    jobs = sorted({(s.dag_id, s.job_id) for s in sums})
    found, worked_s = list[SavedDraws | str](), 0.0
    _savings.hold(2 * len(jobs))  # two readers of two months; with fewer, each request would fit the same jobs again

    def fit(store: Store, dag_id: str, job_id: str) -> SavedDraws | str:
        nonlocal worked_s
        start_s = time.monotonic()
        try:
            return _of_job(store, dag_id, job_id, bounds)
        finally:
            worked_s += time.monotonic() - start_s

    for dag_id, job_id in jobs if store else ():
        if worked_s > WORK_S:
            break
        assert store is not None
        seen = tuple(s for s in sums if (s.dag_id, s.job_id) == (dag_id, job_id))
        found.append(_savings.get((store.identity, month, seen), partial(fit, store, dag_id, job_id)))
    return months_view.month_saved(found, sums, len(jobs), prices.configured())


def _of_job(store: Store, dag_id: str, job_id: str, bounds: Sequence[float]) -> SavedDraws | str:
    trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS)
    job = overview_view.job_of(trials[-1], store.settings(job_id)) if trials else None
    if job is None:
        return "no run of it can be read here"
    dataset, profiles = reading.learned(store, dag_id, job, trials)
    return saved_between(dataset, profiles, bounds[0], bounds[-1], random.Random(f"{dag_id} {job_id}"))
