"""Data routes of a run's tab. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
from collections.abc import Collection
from typing import Any, NamedTuple, Self

from fastapi import APIRouter  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import GetUserDep
from airflow_provider_zeus.model.trial import Origin, ProfileSample, Trial, TrialKey
from airflow_provider_zeus.plugin.api import auth, reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.api.responses import answered
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.factors import configured
from airflow_provider_zeus.plugin.text.run_notes import waiting
from airflow_provider_zeus.plugin.views import pages, run_view, task_table
from airflow_provider_zeus.reports.run_figures import MOST_RUNS, RunSaving, Yardstick, last_measured
from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api")

_yardsticks: LruCache[Yardstick] = LruCache(4)  # few: one of 1,000 runs takes 33 MB


@router.get("/dags/{dag_id}/runs/{run_id}/costs", dependencies=[auth.MAY_READ_RUNS])
@answered
def run_costs(user: GetUserDep, dag_id: str, run_id: str, job_id: str | None = None) -> Any:
    """Costs of a run of a DAG by attempt, of all its Zeus jobs or of one: the quick blocks of each
    part of the tab.
    """
    store = reading.open_log()
    trials, pending = _trials(store, dag_id, run_id)
    jobs = sorted({trial.job_id for trial in trials})
    answer: dict[str, Any] = {
        "store": auth.store_name(user, store),
        "jobs": jobs,
        "job_id": job_id,
        "note": None,
        "parts": [],
        # None: nothing will change, so a page that asked again would load the server for nothing.
        "refresh_s": None,
    }
    named = auth.sees_connections(user)
    waits = reading.waits(dag_id, run_id, named=named)
    if not trials:
        note = waiting(waits)
        if store is not None and store.unreadable:
            note = words.left_out(store.unreadable)
        if not note:
            note = run_view.NO_TRIAL + reading.elsewhere(dag_id, named=named)
        return answer | {"note": note, "refresh_s": reading.heartbeat_s()}
    if job_id is not None and job_id not in jobs:
        return answer | {"note": f"This run has no attempt of a job {job_id!r}."}
    # Tasks that ran at the same time have no order of their own: that of the graph reads best.
    order = reading.task_order(dag_id)
    factors = configured()
    if job_id is None:
        answer["tasks"] = task_table.of_run(trials, order, factors)
    else:
        answer["tasks"] = None
        trials = [trial for trial in trials if trial.job_id == job_id]
    run_parts = run_view.parts_of(trials, order)
    # Map indexes of one task share a job: its settings and newest run are read once.
    heads = {job: _JobHead.of(store, dag_id, job) for job in {key.job_id for key in run_parts}}
    parts = []
    for key, own in run_parts.items():
        head = heads[key.job_id]
        part = run_view.RunPart(
            trials=own,
            live=head.live,
            pending=pending,
            saving=saving_of(store, own, head.live, pending=pending),
            prices=factors,
            shared=run_view.shared_job(run_parts, key),
            wait=waits.get((key.task_id, key.map_index)),
            profile=_profile_without_size(store, own[-1]),
        )
        is_newest = head.newest_run in (None, run_id)
        parts.append(part.head | {"newest": is_newest} | pages.content("run", part))
    if any(part["live"] for part in parts):
        answer["refresh_s"] = reading.heartbeat_s()
    return answer | {"parts": parts, "blocks": pages.layout("run")}


class _JobHead(NamedTuple):
    """Live settings of a job, and the id of its newest run in a DAG."""

    live: dict[str, Any]
    newest_run: str | None

    @classmethod
    def of(cls, store: Store | None, dag_id: str, job_id: str) -> Self:
        if store is None:
            return cls({}, None)
        newest_run = None
        for trial in store.runs(dag_id, job_id, last=1):
            newest_run = trial.origin.run_id
        return cls(store.settings(job_id), newest_run)


@router.get("/dags/{dag_id}/runs/{run_id}/charts", dependencies=[auth.MAY_READ_RUNS])
@answered
def run_charts(
    user: GetUserDep, dag_id: str, run_id: str, job_id: str, task_id: str, map_index: int = -1
) -> Any:
    """The charts of one task of a run: the slow blocks of a part of the tab."""
    store = reading.open_log()
    if store is None:
        return {"note": run_view.NO_TRIAL}
    parts = run_view.parts_of(store.recurrence(dag_id, run_id))
    # The row may have been pruned since the page was drawn.
    own = parts.get(run_view.PartKey(job_id, task_id, map_index))
    if own is None:
        return {"note": run_view.NO_TRIAL}
    profile = list[ProfileSample]()
    measured = [trial for trial in own if trial.observation.where is not None]
    if measured:
        profile = _profile(store, measured[-1])
    traces = run_view.RunTraces(
        drawn=[(trial, store.points(trial.key)) for trial in own],
        profile=profile,
        job=run_view.job_of_run(own, store.settings(job_id)),
    )
    return {"note": None} | pages.content("run", traces, slow=True)


def _trials(
    store: Store | None, dag_id: str, run_id: str
) -> tuple[list[Trial], dict[TrialKey, str]]:
    """A run's trials, also those that the log lacks yet, and the places of pending results."""
    trials = list[Trial]()
    if store is not None:
        trials = store.recurrence(dag_id, run_id)
    pending = reading.pending(trials)
    in_log = {trial.key for trial in trials}

    def is_of_run(origin: Origin) -> bool:
        return origin.dag_id == dag_id and origin.run_id == run_id

    for key, (trial, place) in reading.missing_trials(is_of_run).items():
        # The log's row is newer than the file: a heartbeat may have come later.
        if key not in in_log:
            trials.append(trial)
            pending[key] = place
    return trials, pending


def _profile(store: Store, trial: Trial) -> list[ProfileSample]:
    return store.profile(trial.job_id, trial.observation.where, trial.job_version)


def _profile_without_size(store: Store | None, newest: Trial) -> list[ProfileSample]:
    """The profile of a run without a batch size; empty for any other."""
    if store is None or newest.batch_size is not None:
        return []
    return _profile(store, newest)


def saving_of(
    store: Store | None,
    own: list[Trial],
    live: dict[str, object],
    pending: Collection[TrialKey] = (),
) -> RunSaving | None:
    """The saving of one task of a run; None while it is not known.

    All runs of a job share one fit.
    """
    last = last_measured(own)
    if store is None or last is None:
        return None
    # Its result will change the saving as soon as the next run stores it.
    if any(trial.key in pending for trial in own):
        return None
    job = run_view.job_of_run(own, live)
    if not job.chooses_size:
        return None
    dag_id = last.origin.dag_id
    job_id = last.job_id
    where = last.observation.where
    assert where is not None
    # Read before the trials: a version newer than them would keep an old answer alive.
    version = store.version(dag_id, job_id, last=MOST_RUNS)

    def made() -> Yardstick:
        runs = store.runs(dag_id, job_id, last=MOST_RUNS)
        log, _ = reading.learned(store, dag_id, job, trials=runs, live=live)
        return Yardstick.of(log, where, profiles=_profile(store, last))

    if version is None:
        return made().saving(own)
    settings = json.dumps([job.to_dict(), live], sort_keys=True)
    key = (store.identity, version, dag_id, job_id, where, settings)
    return _yardsticks.get(key, made).saving(own)
