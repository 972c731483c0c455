"""The data routes of a run's tab. Loaded by the api-server alone."""

# No "from __future__ import annotations": FastAPI would take its dependencies for query parameters.
from fastapi import APIRouter  # noqa: TID253 - see above

from airflow_provider_zeus.plugin import reading, run_view
from airflow_provider_zeus.plugin.auth import MAY_READ_RUNS
from airflow_provider_zeus.plugin.run_models import RunAnswer

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}", dependencies=[MAY_READ_RUNS])


@router.get("/costs")
def run_costs(dag_id: str, run_id: str, job_id: str | None = None) -> RunAnswer:
    """What one run of a DAG cost, attempt by attempt, in every Zeus job of it or in one."""
    store = reading.open_log()
    trials = store.recurrence(dag_id, run_id) if store else []
    if store is None or not trials:
        return RunAnswer(store=store.identity if store else "", note=run_view.NO_TRIAL)
    jobs = sorted({t.job_id for t in trials})
    answer = RunAnswer(store=store.identity, jobs=jobs, job_id=job_id)
    if job_id is not None and job_id not in jobs:
        return answer.model_copy(update={"note": f"This run has no trial of a job {job_id!r}."})
    chosen = run_view.parts_of([t for t in trials if job_id in (None, t.job_id)])
    live = {job: store.settings(job) for job, _, _ in chosen}
    untold = reading.untold(trials)
    parts = [run_view.part(own, live[job], untold) for (job, _, _), own in chosen.items()]
    return answer.model_copy(update={"parts": parts})
