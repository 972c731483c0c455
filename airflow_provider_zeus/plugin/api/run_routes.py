"""Data routes of a run's tab. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import GetUserDep
from airflow_provider_zeus.model.trial import ProfileSample, Trial, TrialKey
from airflow_provider_zeus.plugin.api import auth, reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.api.responses import answered
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.run_notes import waiting
from airflow_provider_zeus.plugin.views import pages, run_view
from airflow_provider_zeus.plugin.views.factors import configured
from airflow_provider_zeus.reports.run_figures import RunSaving, Yardstick, last_measured
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api")

_yardsticks: LruCache[Yardstick] = LruCache(4)  # of 1,000 runs: 33 MB each


@router.get("/dags/{dag_id}/runs/{run_id}/costs", dependencies=[auth.MAY_READ_RUNS])
@answered
def run_costs(user: GetUserDep, dag_id: str, run_id: str, job_id: str | None = None) -> Any:
    """Costs of a run of a DAG by attempt, of all its Zeus jobs or of one: the quick blocks of each part of the tab."""
    store = reading.open_log()
    trials, pending = _trials(store, dag_id, run_id)
    jobs = sorted({t.job_id for t in trials})
    answer = {"store": auth.store_name(user, store), "jobs": jobs, "job_id": job_id, "note": None}
    answer |= {"parts": [], "refresh_s": None}  # the page asks again after so many seconds; None: nothing will change
    named = auth.sees_connections(user)
    waits = reading.waits(dag_id, run_id, named=named)
    if not trials:
        note = words.left_out(store.unreadable if store else []) or waiting(waits)
        note = note or run_view.NO_TRIAL + reading.elsewhere(dag_id, named=named)
        return answer | {"note": note, "refresh_s": reading.heartbeat_s()}
    if job_id is not None and job_id not in jobs:
        return answer | {"note": f"This run has no trial of a job {job_id!r}."}
    chosen = run_view.parts_of([t for t in trials if job_id in (None, t.job_id)])
    live = {job: store.settings(job) if store else {} for job, _, _ in chosen}
    newest = {job: store.runs(dag_id, job, last=1)[-1:] if store else [] for job in live}
    factors, parts = configured(), []
    for key, own in chosen.items():
        saving = saving_of(store, own, live[key[0]], pending)
        shared = run_view.shared_job(chosen, key)
        sized = own[-1].batch_size is not None
        profile = [] if sized or store is None else _profile(store, own[-1])
        part = run_view.RunPart(own, live[key[0]], pending, saving, factors, shared, waits.get(key[1:]), profile)
        is_newest = {t.origin.run_id for t in newest[key[0]]} <= {run_id}
        parts.append(part.head | {"newest": is_newest} | pages.content("run", part))
    refresh_s = reading.heartbeat_s() if any(part["live"] for part in parts) else None
    summary = run_view.summary(parts)
    return answer | {"parts": parts, "summary": summary, "refresh_s": refresh_s, "blocks": pages.layout("run")}


@router.get("/dags/{dag_id}/runs/{run_id}/charts", dependencies=[auth.MAY_READ_RUNS])
@answered
def run_charts(user: GetUserDep, dag_id: str, run_id: str, job_id: str, task_id: str, map_index: int = -1) -> Any:
    """The charts of one task of a run: the slow blocks of a part of the tab."""
    store = reading.open_log()
    own = run_view.parts_of(store.recurrence(dag_id, run_id) if store else []).get((job_id, task_id, map_index))
    if store is None or not own:
        return {"note": run_view.NO_TRIAL}
    measured = [t for t in own if t.observation.where is not None]
    traces = run_view.RunTraces(
        drawn=[(t, store.points(t.key)) for t in own],
        profile=_profile(store, measured[-1]) if measured else [],
        job=run_view.job_of_run(own, store.settings(job_id)),
    )
    return {"note": None} | pages.content("run", traces, slow=True)


def _trials(store: Store | None, dag_id: str, run_id: str) -> tuple[list[Trial], dict[TrialKey, str]]:
    """A run's trials, also those that the log does not hold yet, and the places of their pending results."""
    trials = store.recurrence(dag_id, run_id) if store else []
    pending = reading.pending(trials)
    in_log = {t.key for t in trials}
    for key, (trial, place) in reading.missing_trials(lambda o: (o.dag_id, o.run_id) == (dag_id, run_id)).items():
        if key not in in_log:
            trials.append(trial)
            pending[key] = place
    return trials, pending


def _profile(store: Store, trial: Trial) -> list[ProfileSample]:
    return store.profile(trial.job_id, trial.observation.where, trial.spec["job_version"])


def saving_of(
    store: Store | None, own: list[Trial], live: dict[str, object], pending: Collection[TrialKey] = ()
) -> RunSaving | None:
    """What one task of a run saved; None while that is not known. All runs of a job share one fit."""
    last = last_measured(own)
    if store is None or last is None or any(t.key in pending for t in own):
        return None
    job = run_view.job_of_run(own, live)
    if not job.chooses_size:
        return None
    dag_id, job_id, where = last.origin.dag_id, last.job_id, last.observation.where
    assert where is not None
    version = store.version(dag_id, job_id, last=reading.MOST_RUNS)  # read before the trials, so never newer

    def made() -> Yardstick:
        log, _ = reading.learned(store, dag_id, job, store.runs(dag_id, job_id, last=reading.MOST_RUNS), live)
        return Yardstick.of(log, where, profiles=_profile(store, last))

    key = (store.identity, version, dag_id, job_id, where, json.dumps([job.to_dict(), live], sort_keys=True))
    return (made() if version is None else _yardsticks.get(key, made)).saving(own)
