"""The data routes of a DAG's tab. Loaded by the api-server alone."""

# No "from __future__ import annotations": FastAPI would take its dependencies for query parameters.
from fastapi import APIRouter, Query  # noqa: TID253 - see above

from airflow_provider_zeus.plugin import dag_view, reading
from airflow_provider_zeus.plugin.auth import MAY_READ_RUNS
from airflow_provider_zeus.plugin.dag_models import DagAnswer

router = APIRouter(prefix="/api/dags/{dag_id}", dependencies=[MAY_READ_RUNS])


@router.get("/costs")
def dag_costs(dag_id: str, job_id: str | None = None, limit: int = Query(dag_view.RUNS, ge=1, le=1000)) -> DagAnswer:
    """What the newest runs of one Zeus job of a DAG cost; of its first job where none is named."""
    store = reading.open_log()
    jobs = store.jobs(dag_id) if store else []
    if store is None or not jobs:
        return DagAnswer(store=store.identity if store else "", note=dag_view.NO_JOB)
    answer = DagAnswer(store=store.identity, jobs=jobs)
    if job_id is not None and job_id not in jobs:
        return answer.model_copy(update={"note": f"This DAG has no trial of a job {job_id!r}."})
    job_id = job_id or jobs[0]
    trials = store.runs(dag_id, job_id, last=limit + 1)
    return dag_view.filled(answer, trials, store.settings(job_id), reading.untold(trials), limit=limit)
