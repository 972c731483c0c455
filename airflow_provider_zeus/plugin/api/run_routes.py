"""Data routes of a run's tab. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
import random
from collections.abc import Collection
from functools import partial

from fastapi import APIRouter, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.model.cost import weights_of
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.plugin.api import auth, reading, responses
from airflow_provider_zeus.plugin.api.caches import LruCache
from airflow_provider_zeus.plugin.charts import metric_chart, run_curve, run_gpus
from airflow_provider_zeus.plugin.charts import run_charts as power_charts
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.waits import waiting
from airflow_provider_zeus.plugin.views import prices, run_view
from airflow_provider_zeus.plugin.views.run_models import RunAnswer, RunCharts
from airflow_provider_zeus.reports.run_savings import RunSaving, Yardstick
from airflow_provider_zeus.store.sql.store import Store

_yardsticks: LruCache[Yardstick] = LruCache(4)  # of 1,000 runs: 33 MB each

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}", dependencies=[auth.MAY_READ_RUNS])


@router.get("/costs")
async def run_costs(user: auth.GetUserDep, dag_id: str, run_id: str, job_id: str | None = None) -> Response:
    """Costs of a run of a DAG by attempt, of all its Zeus jobs or of one."""
    return await responses.answer(user, partial(_costs, user, dag_id, run_id, job_id))


@router.get("/charts")
async def run_charts(
    user: auth.GetUserDep, dag_id: str, run_id: str, job_id: str, task_id: str, map_index: int = -1
) -> Response:
    """Power over time, metric by epoch, energy per GPU and power-limit curves of one task of a run."""
    return await responses.answer(user, partial(_charts, dag_id, run_id, (job_id, task_id, map_index)))


def _costs(user: BaseUser, dag_id: str, run_id: str, job_id: str | None) -> RunAnswer:
    store = reading.open_log()
    trials, pending = _trials(store, dag_id, run_id)
    jobs = sorted({t.job_id for t in trials})
    answer = RunAnswer(store=auth.store_name(user, store), jobs=jobs, job_id=job_id)
    if not trials:
        waits = waiting(reading.waits(dag_id, run_id))
        note = words.left_out(store.unreadable if store else []) or waits or run_view.NO_TRIAL
        return answer.model_copy(update={"note": note, "refresh_s": reading.heartbeat_s()})
    if job_id is not None and job_id not in jobs:
        return answer.model_copy(update={"note": f"This run has no trial of a job {job_id!r}."})
    chosen = run_view.parts_of([t for t in trials if job_id in (None, t.job_id)])
    live = {job: store.settings(job) if store else {} for job, _, _ in chosen}
    factors, waits_of = prices.configured(), reading.waits(dag_id, run_id)
    answer.parts = [
        run_view.part(
            own,
            live[key[0]],
            pending,
            saving_of(store, own, live[key[0]], pending),
            factors,
            shared=run_view.shared_job(chosen, key),
            wait=waits_of.get(key[1:]),
        )
        for key, own in chosen.items()
    ]
    if any(part.live for part in answer.parts):
        answer.refresh_s = reading.heartbeat_s()
    return answer


def _charts(dag_id: str, run_id: str, key: run_view.PartKey) -> RunCharts:
    store = reading.open_log()
    trials = store.recurrence(dag_id, run_id) if store else []
    own = run_view.parts_of(trials).get(key)
    if store is None or not own:
        return RunCharts(note=run_view.NO_TRIAL)
    power = power_charts.power([(t, store.points(t.key)) for t in own])
    source = words.badge([t.observation.energy_source for t in own if t.observation.time_s is not None])
    gpus = run_gpus.gpus(own)
    answer = RunCharts(
        power=words.badged(power, source),
        metric=metric_chart.attempts(own),
        gpus=gpus and words.badged(gpus, source),
    )
    measured = [t for t in own if t.observation.where is not None]
    if measured:
        job = run_view.job_of(own, store.settings(key[0]))
        weights = weights_of(job, measured[-1].observation)
        samples = _profile(store, measured[-1])
        limits = {t.batch_size: t.observation.power_limit_w for t in measured}
        curves = [run_curve.curve(samples, size, weights, limit_w) for size, limit_w in limits.items()]
        badge = words.badge([measured[-1].observation.energy_source])
        answer.curves = [words.badged(curve, badge) for curve in reversed(curves) if curve]
    return answer


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
    where = trial.observation.where
    return [] if where is None else store.profile(trial.job_id, where, trial.spec["job_version"])


def saving_of(
    store: Store | None, own: list[Trial], live: dict[str, object], pending: Collection[TrialKey] = ()
) -> RunSaving | None:
    """What one task of a run saved; None while that is not known. All runs of a job share one fit."""
    measured = [t for t in own if t.observation.where is not None and t.observation.time_s is not None]
    if store is None or not measured or any(t.state is State.RUNNING or t.key in pending for t in own):
        return None
    last, job = measured[-1], run_view.job_of(own, live)
    dag_id, job_id, where = last.origin.dag_id, last.job_id, last.observation.where
    assert where is not None
    version = store.version(dag_id, job_id, last=reading.MOST_RUNS)  # read before the trials, so never newer

    def made() -> Yardstick:
        log, _ = reading.learned(store, dag_id, job, store.runs(dag_id, job_id, last=reading.MOST_RUNS))
        return Yardstick.of(log, where, rng=random.Random(0), profiles=_profile(store, last))

    key = (store.identity, version, dag_id, job_id, where, json.dumps(job.to_dict(), sort_keys=True))
    return (made() if version is None else _yardsticks.get(key, made)).saving(own)
