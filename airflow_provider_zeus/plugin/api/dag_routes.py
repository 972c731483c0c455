"""Data routes of a DAG's tab. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser, GetUserDep
from airflow_provider_zeus.model.event import Held
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial, newest_device
from airflow_provider_zeus.operators.config import next_of
from airflow_provider_zeus.plugin.answer_parts import AlertRow, short
from airflow_provider_zeus.plugin.api import auth, reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.api.responses import File, answered, file
from airflow_provider_zeus.plugin.text import run_notes, words
from airflow_provider_zeus.plugin.text.factors import Factors, configured
from airflow_provider_zeus.plugin.views import costs, pages, task_table
from airflow_provider_zeus.plugin.views.dag_view import NO_JOB, JobLog, JobRuns
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis, job_today
from airflow_provider_zeus.plugin.views.measured_view import MeasuredLog
from airflow_provider_zeus.reports import export_rows, job_remarks
from airflow_provider_zeus.reports.run_figures import MOST_RUNS
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api/dags/{dag_id}", dependencies=[auth.MAY_READ_RUNS])

Limit = Annotated[int, Query(ge=1, le=MOST_RUNS)]
Skip = Annotated[int, Query(ge=0, le=1_000_000)]

_charts: LruCache[Any] = LruCache(16)


@router.get("/costs")
@answered
def dag_costs(
    user: GetUserDep, dag_id: str, job_id: str | None = None, limit: Limit = 200, skip: Skip = 0
) -> Any:
    """The runs of a Zeus job of a DAG, newest first, by default of its first job: the quick blocks
    of the tab.
    """
    chosen = _job(user, dag_id, job_id)
    store = chosen.store
    if store is not None and chosen.is_all_tasks:
        return _all_tasks(user, store, dag_id, chosen.jobs)
    answer: dict[str, Any] = {
        "store": auth.store_name(user, store),
        "jobs": chosen.jobs,
        "job_id": None,
        "note": chosen.note,
        "left_out": "",
    }
    # A result that no store took in time still cost something: the tab names it.
    pending = reading.missing_trials(lambda origin: origin.dag_id == dag_id)
    if store is None or chosen.job_id is None:
        if not chosen.jobs:
            answer["note"] = words.without_log(pending) or chosen.note
        return answer
    job_id = chosen.job_id
    # One run more tells whether there are older ones, without counting them all.
    trials = store.runs(dag_id, job_id, last=limit + 1, skip=skip)
    for trial in trials:
        # Else a run that the log has by now would also be named as missing from it.
        pending.pop(trial.key, None)
    notes = (words.left_out(store.unreadable), words.without_log(pending))
    left_out = " ".join(filter(None, notes))
    answer["left_out"] = left_out
    if not trials:
        return answer | {"note": left_out or "There is no older run."}
    # Of all DAGs: a remark warns if another one uses the same job_id for another job.
    newest = store.trials(job_id, last=job_remarks.NEWEST)
    live = store.settings(job_id)
    job = job_today(trials, live)
    held_events = store.events(job_id).get(dag_id, Held())
    # Remarks quote names that a DAG file may have made of any length.
    remarks = [short(remark.text) for remark in job_remarks.remarks(newest, reader=dag_id)]
    runs = JobRuns(
        trials=trials,
        live=live,
        pending=reading.pending(trials),
        limit=limit,
        alerts=[
            AlertRow(sentence=event.sentence, remedy=event.remedy) for event in held_events.events
        ],
        remarks=[*remarks, *_renamed(user, store, newest)],
    )
    page = "measured"
    if job.chooses_size:
        page = "dag"
    answer["job_id"] = job_id
    answer |= pages.content(page, runs)
    return answer | {
        "more": runs.more,
        "skipped": skip,
        "totals": costs.totals_of(runs.rows),
        "blocks": pages.layout(page),
    }


def _all_tasks(user: BaseUser, store: Store, dag_id: str, jobs: list[str]) -> Any:
    """The tab of a DAG with several jobs before one of them is chosen: all its tasks together."""
    since_s = reading.since_s()
    sums = store.task_sums(dag_id, since_s)
    caption = run_notes.since(since_s)
    missing = reading.missing_trials(lambda origin: origin.dag_id == dag_id)
    return {
        "store": auth.store_name(user, store),
        "jobs": task_table.costliest(sums, jobs),
        "job_id": None,
        "note": None,
        "left_out": words.without_log(missing),
        "tasks": task_table.of_dag(sums, dag_id, configured(), caption),
        "blocks": pages.layout("tasks"),
    }


@router.get("/tasks")
@answered
def dag_tasks(user: GetUserDep, dag_id: str) -> Any:
    """The cost of each task of a DAG, the costliest first: the folded part of the page of all
    jobs.
    """
    store = reading.open_log()
    since_s = reading.since_s()
    outside = []
    if store is not None:
        outside = [part for part in store.task_sums(dag_id, since_s) if part.outside]
    return task_table.of_dag(outside, dag_id, configured(), caption=run_notes.since(since_s))


@router.get("/charts")
@answered
def dag_charts(user: GetUserDep, dag_id: str, job_id: str | None = None) -> Any:
    """Savings and charts of the newest runs: the slow blocks of the tab.

    The answer is kept until the log, the settings or the prices change.
    """
    chosen = _job(user, dag_id, job_id)
    store = chosen.store
    if store is None or chosen.job_id is None:
        return {"note": chosen.note}
    if chosen.is_all_tasks:  # charts are of one job; the quick answer shows the tasks
        return {"note": None}
    job = chosen.job_id
    factors = configured()
    named = auth.sees_connections(user)  # part of the key: an answer may name a Connection
    # A dict is no key of a cache.
    settings = json.dumps(store.settings(job), sort_keys=True)
    # Read before the trials: a version newer than them would keep an old answer alive.
    version = store.version(dag_id, job, last=MOST_RUNS)

    def make() -> Any:
        return _slow_blocks(store, dag_id, job, factors, named=named)

    # The Variable store cannot tell a change without reading all trials.
    if version is None:
        return make()
    return _charts.get((store.identity, dag_id, job, version, settings, factors, named), make)


def _slow_blocks(store: Store, dag_id: str, job_id: str, factors: Factors, *, named: bool) -> Any:
    """``named``: whether the user may see the ids of Connections."""
    trials = store.runs(dag_id, job_id, last=MOST_RUNS)
    if not trials:
        return {"note": words.left_out(store.unreadable) or NO_JOB}
    more = reading.has_older(store, dag_id, job_id)
    lessons = analysis(store, dag_id, job_id, trials=trials)
    # A job without batch sizes has no belief to fold, which is the slow part.
    if isinstance(lessons, ZeusJob):
        measured = measured_log(store, trials, lessons, factors, more=more)
        return {"note": None} | pages.content("measured", measured, slow=True)
    hours = reading.kept_signals(store, lessons.log.job, time.time(), named=named)
    job_log = JobLog(trials=trials, analysis=lessons, factors=factors, hours=hours, more=more)
    return {"note": None} | pages.content("dag", job_log, slow=True)


@router.get("/export")
async def dag_export_(
    request: Request,
    user: GetUserDep,
    dag_id: str,
    job_id: str | None = None,
) -> Response:
    """The trials of the newest runs as a CSV file, in the form of ``airflow zeus export``."""

    def make() -> File:
        chosen = _job(user, dag_id, job_id)
        if chosen.store is None or chosen.job_id is None:
            raise HTTPException(404, chosen.note)
        # In pieces: the file of a long log would not fit into the api-server's memory.
        pieces = chosen.store.pieces(dag_id, chosen.job_id, last=10_000)
        name = export_rows.file_name(chosen.job_id, datetime.now(UTC).date())
        return File(name, "text/csv; charset=utf-8", export_rows.csv_of(pieces, configured()))

    return await file(request, user, make)


@dataclass(frozen=True, slots=True)
class _ChosenJob:
    """The job that a request is about."""

    store: Store | None
    jobs: list[str]
    job_id: str | None = None
    note: str | None = None
    is_all_tasks: bool = False  # several jobs have no sum: their tasks are shown first


def _job(user: BaseUser, dag_id: str, job_id: str | None) -> _ChosenJob:
    """``job_id`` None: the first job of the DAG."""
    store = reading.open_log()
    jobs = list[str]()
    if store is not None:
        jobs = store.jobs(dag_id)
    if not jobs:
        note = NO_JOB + reading.elsewhere(dag_id, named=auth.sees_connections(user))
        return _ChosenJob(store, jobs, note=note)
    if job_id is None:
        return _ChosenJob(store, jobs, jobs[0], is_all_tasks=len(jobs) > 1)
    if job_id not in jobs:
        return _ChosenJob(store, jobs, note=f"This DAG has no run of a job {job_id!r}.")
    return _ChosenJob(store, jobs, job_id)


def _renamed(user: BaseUser, store: Store, newest: list[Trial]) -> list[str]:
    """That the job looks like an older one under a new name.

    Empty if it does not, or the user may not know that.
    """
    # A job with a history of its own was not renamed just now.
    if not newest or len(newest) > job_remarks.FEW:
        return []
    last = newest[-1]
    candidates = job_remarks.candidates(newest, store.latest(last=1))
    if not candidates:
        return []
    # A DAG that still runs has not lost its job to a new name.
    present = reading.present_dags({trial.origin.dag_id for trial in candidates})
    job_id = job_remarks.looks_like(candidates, last, present)
    if job_id is None:
        return []
    old = {trial.job_id: trial for trial in reversed(candidates)}[job_id]
    dags = {last.origin.dag_id, *auth.readable_dags(user)}
    # Whoever may edit Connections can read the whole log anyhow.
    if old.origin.dag_id in dags or auth.sees_addresses(user):
        return [run_notes.renamed(old, last)]
    return []


def measured_log(
    store: Store,
    trials: list[Trial],
    job: ZeusJob,
    factors: Factors | None = None,
    *,
    more: bool = False,
) -> MeasuredLog:
    """The newest runs of a job that chooses no batch size. ``more``: the log holds older ones."""
    profile = store.profile(trials[-1].job_id, newest_device(trials), job.job_version)
    return MeasuredLog(trials, job, factors or Factors(), more, profile)


def analysis(store: Store, dag_id: str, job_id: str, trials: list[Trial]) -> JobAnalysis | ZeusJob:
    """The lessons of the log; of a job that chooses no batch size, the job alone."""
    live = store.settings(job_id)
    job = job_today(trials, live)
    if not job.chooses_size:
        return job
    # [zeus] enabled may set the mode of the next run, which the belief depends on.
    job, switched = next_of(job)
    dataset, profiles = reading.learned(store, dag_id, job, trials=trials, live=live)
    return JobAnalysis.of(trials, dataset, profiles, {**live, **switched})
