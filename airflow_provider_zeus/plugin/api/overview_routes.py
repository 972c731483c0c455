"""Data routes of the page of all jobs. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser, GetUserDep
from airflow_provider_zeus.hooks.zeus import about_dags
from airflow_provider_zeus.hooks.zeus import month_saved as saved_of_job
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.model.wire import LATEST_S
from airflow_provider_zeus.plugin.answer_parts import JobSaved
from airflow_provider_zeus.plugin.api import auth, dag_routes, reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.api.responses import answered
from airflow_provider_zeus.plugin.text import run_notes, words
from airflow_provider_zeus.plugin.text.factors import configured
from airflow_provider_zeus.plugin.views import months_view, overview_state, overview_view, pages
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.reports.months import SavedDraws, month_bounds, month_of
from airflow_provider_zeus.reports.run_figures import MOST_RUNS
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api")

WORK_S = 1.0  # a request that takes longer holds up a thread that others wait for
_savings: LruCache[SavedDraws | str] = LruCache(600)


@router.get("/jobs")
@answered
def jobs(user: GetUserDep) -> Any:
    """All jobs of the DAGs whose runs this user may read, with the state of their newest runs."""
    store = reading.open_log()
    pending = reading.missing_trials(lambda origin: True)
    dag_ids = {trial.origin.dag_id for trial, _ in pending.values()}
    answer = {
        "blocks": pages.layout("overview"),
        "store": auth.store_name(user, store),
        "left_out": "",
        "jobs": [],
        "dags": None,
    }
    if store is None:
        allowed = auth.with_readable_runs(user, dag_ids)
        return answer | {"note": _without_log(pending, allowed) or overview_view.NO_JOBS}
    since_s = reading.since_s()
    trials = store.latest(last=overview_state.NEWEST)
    damages = store.unreadable
    outside = store.outside_sums([since_s, LATEST_S])
    for trial in trials:
        pending.pop(trial.key, None)
    dag_ids |= {trial.origin.dag_id for trial in trials}
    dag_ids |= {part.dag_id for part in outside}
    dag_ids |= {damage.dag_id for damage in damages}
    # Once for all parts of the page: Airflow may take a query for each DAG.
    allowed = auth.with_readable_runs(user, dag_ids)
    live = reading.live_settings_of({t.job_id for t in trials if t.origin.dag_id in allowed})
    about = about_dags(allowed)
    rows = overview_view.rows(trials, allowed, live, now=time.time(), about=about)
    readable = [part for part in outside if part.dag_id in allowed]
    caption = run_notes.since(since_s)
    dags = overview_view.dag_table(readable, about, configured(), caption=caption)
    damaged = words.left_out([damage for damage in damages if damage.dag_id in allowed])
    left_out = " ".join(filter(None, (damaged, _without_log(pending, allowed))))
    note = None
    if not rows and dags is None:
        note = left_out or overview_view.NO_JOBS
    return answer | {"note": note, "left_out": left_out, "jobs": rows, "dags": dags}


def _without_log(pending: Mapping[TrialKey, tuple[Trial, str]], allowed: Collection[str]) -> str:
    """A sentence about runs of the DAGs in ``allowed`` that could not use the log."""
    shown = {key: kept for key, kept in pending.items() if kept[0].origin.dag_id in allowed}
    return words.without_log(shown)


@router.get("/jobs/{dag_id}/saved", dependencies=[auth.MAY_READ_RUNS])
@answered
def job_saved(dag_id: str, job_id: str, user: GetUserDep) -> Any:
    """Savings of a job in a DAG so far, and its next run.

    A route of its own, since it reads all trials of the job.
    """
    store = reading.open_log()
    trials = []
    if store is not None and job_id in store.jobs(dag_id):
        trials = store.runs(dag_id, job_id, last=MOST_RUNS)
    if store is None or not trials:
        raise HTTPException(404, "This DAG has no such job.")
    # A job that a newer version wrote must not fail the rest of the page.
    if overview_view.readable_job(trials[-1], store.settings(job_id)) is None:
        return JobSaved(word="Not known", text="no run of it can be read here")
    analysis = dag_routes.analysis(store, dag_id, job_id, trials=trials)
    if isinstance(analysis, JobAnalysis):
        has_older = reading.has_older(store, dag_id, job_id)
        return overview_view.saved(trials, analysis, all_of=not has_older)
    return overview_view.measured(dag_routes.measured_log(store, trials, analysis))


@router.get("/months")
@answered
def month(user: GetUserDep, month: str | None = None) -> Any:
    """The costs of the jobs that this user may see in a calendar month (UTC), and by month
    before.
    """
    months = _months(month)
    store = reading.open_log()
    sums = list[PeriodSum]()
    if store is not None:
        sums = _readable(user, store, month_bounds(months[-1], len(months)))
    about = about_dags({s.dag_id for s in sums if s.period == len(months) - 1})
    return months_view.month_answer(sums, months, configured(), about)


@router.get("/months/saved")
@answered
def month_saved(user: GetUserDep, month: str | None = None) -> Any:
    """Their savings in it; ask again until it is done.

    Fits jobs for :data:`WORK_S`; fits are kept while their sums stay as they are: the next request
    goes on.
    """
    *_, newest = _months(month)
    begin_s, end_s = month_bounds(newest, 1)
    store = reading.open_log()
    if store is None:
        return months_view.month_saved([], [], 0, factors=configured())
    sums = _readable(user, store, (begin_s, end_s))
    of_job = grouped(sums, lambda part: (part.dag_id, part.job_id))
    jobs = sorted({(part.dag_id, part.job_id) for part in sums if not part.outside})
    draws = list[SavedDraws | str]()
    worked_s = 0.0
    # Two readers of two months: with fewer, each request would fit the same jobs again.
    _savings.hold(2 * len(jobs))

    def fit(dag_id: str, job_id: str) -> SavedDraws | str:
        nonlocal worked_s
        start_s = time.monotonic()
        try:
            belief_of = partial(reading.beliefs.with_belief, (store.identity, dag_id, job_id))
            return saved_of_job(
                store, dag_id, job_id, begin_s=begin_s, end_s=end_s, with_belief=belief_of
            )
        finally:
            worked_s += time.monotonic() - start_s

    # Jobs in a fixed order: each request goes on where the one before it stopped.
    for dag_id, job_id in jobs:
        # Another page waits for this thread: the browser asks again for the rest.
        if worked_s > WORK_S:
            break
        # Equal sums mean that no trial of the month has changed since the fit.
        key = (store.identity, newest, tuple(of_job[dag_id, job_id]))
        draws.append(_savings.get(key, partial(fit, dag_id, job_id)))
    return months_view.month_saved(draws, sums, len(jobs), factors=configured())


def _months(month: str | None) -> list[str]:
    """The months up to this one, "2026-11"; None: up to the present one.

    Raises HTTPException 422.
    """
    try:
        # 13, so that the chart shows a month beside the same one a year before.
        bounds = month_bounds(month or month_of(time.time()), 13)
    except ValueError:
        raise HTTPException(422, "Give the month as 2026-11.") from None
    return [month_of(begin_s) for begin_s in bounds[:-1]]


def _readable(user: BaseUser, store: Store, bounds: Sequence[float]) -> list[PeriodSum]:
    """The sums of the DAGs whose runs this user may see."""
    sums = store.sums(bounds)
    allowed = auth.with_readable_runs(user, (s.dag_id for s in sums))
    return [s for s in sums if s.dag_id in allowed]
