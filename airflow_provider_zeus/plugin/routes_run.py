"""The data routes of a run's tab. Loaded by the api-server alone."""

# No "from __future__ import annotations": FastAPI would take its dependencies for query parameters.
import random
from functools import partial

from fastapi import APIRouter, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.optimizer.run_saving import RunSaving, Yardstick
from airflow_provider_zeus.optimizer.trial import ProfileSample, State, Trial, TrialKey, Where
from airflow_provider_zeus.plugin import (
    answers,
    auth,
    costs,
    figures_run,
    figures_run_curve,
    figures_run_gpus,
    prices,
    reading,
    run_view,
    words,
)
from airflow_provider_zeus.plugin.run_models import RunAnswer, RunCharts
from airflow_provider_zeus.store.base import Store

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}", dependencies=[auth.MAY_READ_RUNS])


@router.get("/costs")
async def run_costs(user: auth.GetUserDep, dag_id: str, run_id: str, job_id: str | None = None) -> Response:
    """What one run of a DAG cost, attempt by attempt, in every Zeus job of it or in one."""
    return await answers.answer(user, partial(_costs, user, dag_id, run_id, job_id))


@router.get("/charts")
async def run_charts(
    user: auth.GetUserDep, dag_id: str, run_id: str, job_id: str, task_id: str, map_index: int = -1
) -> Response:
    """Power over time and power-limit curves of one part of a run."""
    return await answers.answer(user, partial(_charts, dag_id, run_id, (job_id, task_id, map_index)))


def _costs(user: BaseUser, dag_id: str, run_id: str, job_id: str | None) -> RunAnswer:
    store = reading.open_log()
    trials, kept = _trials(store, dag_id, run_id)
    jobs = sorted({t.job_id for t in trials})
    answer = RunAnswer(store=auth.store_name(user, store), jobs=jobs, job_id=job_id)
    if not trials:
        note = words.left_out(store.unreadable if store else []) or run_view.NO_TRIAL
        return answer.model_copy(update={"note": note, "refresh_s": reading.heartbeat_s()})
    if job_id is not None and job_id not in jobs:
        return answer.model_copy(update={"note": f"This run has no trial of a job {job_id!r}."})
    chosen = run_view.parts_of([t for t in trials if job_id in (None, t.job_id)])
    live = {job: store.settings(job) if store else {} for job, _, _ in chosen}
    compare = _Compare(store)
    factors = prices.configured()
    answer.parts = [
        run_view.part(own, live[job], kept, compare(own, live[job]), factors) for (job, _, _), own in chosen.items()
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
    drawn = [(t, store.points(t.key)) for t in own]
    source = words.badge([t.observation.energy_source for t in own if t.observation.time_s is not None])
    each = figures_run_gpus.gpus(own)
    answer = RunCharts(power=words.badged(figures_run.power(drawn), source), gpus=each and words.badged(each, source))
    seen = [t for t in own if t.observation.where is not None]
    if seen:
        job = run_view.job_of(own, store.settings(key[0]))
        weights = costs.weights_of(job, seen[-1].observation)
        samples = _profile(store, seen[-1])
        limits = {t.batch_size: t.observation.power_limit_w for t in seen}
        curves = [figures_run_curve.curve(samples, size, weights, ran_w) for size, ran_w in limits.items()]
        answer.curves = [
            words.badged(c, words.badge([seen[-1].observation.energy_source])) for c in reversed(curves) if c
        ]
    return answer


def _trials(store: Store | None, dag_id: str, run_id: str) -> tuple[list[Trial], dict[TrialKey, str]]:
    """A run's trials, those that the log does not hold included, and where costs are kept that are not yet told."""
    trials = store.recurrence(dag_id, run_id) if store else []
    kept = reading.untold(trials)
    known = {t.key for t in trials}
    for key, (trial, where) in reading.unlisted(dag_id, run_id).items():
        if key not in known:
            trials.append(trial)
            kept[key] = where
    return trials, kept


def _profile(store: Store, trial: Trial) -> list[ProfileSample]:
    where = trial.observation.where
    version = str(trial.spec.get("job_version", "1"))
    return [] if where is None else store.profile(trial.job_id, where, version)


class _Compare:
    """Savings of the parts of one answer; parts of one job, device and target share what they are compared with."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._made: dict[tuple[str, Where, str, str], Yardstick] = {}

    def __call__(self, own: list[Trial], live: dict[str, object]) -> RunSaving | None:
        measured = [t for t in own if t.observation.where is not None and t.observation.time_s is not None]
        if self._store is None or not measured or any(t.state is State.RUNNING for t in own):
            return None
        last = measured[-1]
        where = last.observation.where
        assert where is not None
        job = run_view.job_of(own, live)
        key = (last.job_id, where, job.target, job.job_version)
        if key not in self._made:
            complete = self._store.complete(last.job_id, job.default_batch_size, last=job.window)
            profiles = _profile(self._store, last)
            self._made[key] = Yardstick.of(complete, job, where, rng=random.Random(0), profiles=profiles)
        return self._made[key].saving(own)
