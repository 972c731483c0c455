"""Data routes of the page of all jobs. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import time
from functools import partial

from fastapi import APIRouter, HTTPException, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.plugin.api import auth, live_settings, reading, responses
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views import overview_state, overview_view
from airflow_provider_zeus.plugin.views.overview_models import JobsAnswer, JobSaved

router = APIRouter(prefix="/api/jobs")


@router.get("")
async def jobs(user: auth.GetUserDep) -> Response:
    """All jobs of the DAGs whose runs this user may read, with the state of their newest runs."""
    return await responses.answer(user, partial(_jobs, user))


@router.get("/{dag_id}/saved", dependencies=[auth.MAY_READ_RUNS])
async def saved(dag_id: str, job_id: str, user: auth.GetUserDep) -> Response:
    """Savings of a job in a DAG so far. A route of its own, since it reads all trials of the job."""
    return await responses.answer(user, partial(_saved, dag_id, job_id))


def _jobs(user: BaseUser) -> JobsAnswer:
    store = reading.open_log()
    missing = reading.missing_trials(lambda origin: True)
    trials = store.latest(last=overview_state.NEWEST) if store else []
    damages = store.unreadable if store else []
    of_dags = {t.origin.dag_id for t in (*trials, *(trial for trial, _ in missing.values()))}
    allowed = auth.with_readable_runs(user, of_dags | {damage.dag_id for damage in damages})
    in_log = {t.key for t in trials}
    missing = {k: kept for k, kept in missing.items() if kept[0].origin.dag_id in allowed and k not in in_log}
    if store is None:
        return JobsAnswer(store="", note=words.without_log(missing) or overview_view.NO_JOBS)
    live = live_settings.of_all({t.job_id for t in trials if t.origin.dag_id in allowed})
    rows = overview_view.rows(trials, allowed, live, time.time(), reading.about_dags(allowed))
    damaged = words.left_out([damage for damage in damages if damage.dag_id in allowed])
    left_out = " ".join(filter(None, (damaged, words.without_log(missing))))
    note = None if rows else left_out or overview_view.NO_JOBS
    return JobsAnswer(store=auth.store_name(user, store), note=note, left_out=left_out, jobs=rows)


def _saved(dag_id: str, job_id: str) -> JobSaved:
    store = reading.open_log()
    trials = store.runs(dag_id, job_id, last=reading.MOST_RUNS) if store and job_id in store.jobs(dag_id) else []
    if store is None or not trials:
        raise HTTPException(404, "This DAG has no such job.")
    job = overview_view.job_of(trials[-1], store.settings(job_id))
    if job is None:
        return overview_view.unreadable()
    dataset, profiles = reading.learned(store, dag_id, job, trials)
    return overview_view.saved(trials, dataset, profiles, all_of=not reading.has_older(store, dag_id, job_id))
