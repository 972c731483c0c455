"""From the store to an answer: which trials a page needs, read in a handful of queries however many runs there are."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import State, Trial, TrialKey
from airflow_provider_zeus.plugin import costs, figures, words
from airflow_provider_zeus.plugin.models import Answer
from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, embedded_path, open_store, store_url
from airflow_provider_zeus.store.untold import PREFIX, untold_key

RUNS = 200  # shown at once unless the reader asks for more
NO_JOB = (
    "This DAG has no Zeus job. A task decorated with @task.zeus(ZeusJob(...)) is one; what it costs is shown here "
    "from its first run on."
)
NO_TRIAL = "This run has no Zeus trial: none of its tasks with a Zeus job has begun."


def open_log() -> Store | None:
    """The trial log, never made or migrated here; None while there is none yet. Raises StoreError.

    Opened for each answer: what is expensive, the engine, is kept per URL, and a changed Connection counts at once.
    """
    try:
        return open_store(create=False)
    except StoreError:
        if store_url(DEFAULT_CONN_ID) == f"sqlite:///{embedded_path()}" and not embedded_path().exists():
            return None
        raise


def of_dag(store: Store, dag_id: str, job_id: str | None, limit: int) -> Answer:
    """The newest ``limit`` runs of one job of a DAG; of its first job where none is named. Raises StoreError."""
    jobs = store.jobs(dag_id)
    answer = Answer(store=store.identity, jobs=jobs)
    if not jobs:
        return answer.model_copy(update={"note": NO_JOB})
    if job_id is not None and job_id not in jobs:
        return answer.model_copy(update={"note": f"This DAG has no trial of a job {job_id!r}."})
    job_id = job_id or jobs[0]
    return _filled(answer, store, job_id, store.runs(dag_id, job_id, last=limit + 1), limit=limit)


def of_run(store: Store, dag_id: str, run_id: str, job_id: str | None) -> Answer:
    """The attempts of one run in one job, and the newest runs beside it. Raises StoreError."""
    own = store.recurrence(dag_id, run_id)
    jobs = sorted({t.job_id for t in own})
    answer = Answer(store=store.identity, jobs=jobs)
    if not jobs:
        return answer.model_copy(update={"note": NO_TRIAL})
    if job_id is not None and job_id not in jobs:
        return answer.model_copy(update={"note": f"This run has no trial of a job {job_id!r}."})
    job_id = job_id or jobs[0]
    own = [t for t in own if t.job_id == job_id]
    trials = {t.key: t for t in (*store.runs(dag_id, job_id, last=RUNS), *own)}  # an old run is not among the newest
    return _filled(answer, store, job_id, list(trials.values()), run_id=run_id)


def _filled(
    answer: Answer,
    store: Store,
    job_id: str,
    trials: Sequence[Trial],
    *,
    limit: int | None = None,
    run_id: str | None = None,
) -> Answer:
    newest = max(trials, key=lambda t: t.number)
    live = store.settings(job_id)
    job = ZeusJob.from_dict(newest.spec).with_settings(live)
    untold = _untold(trials)
    rows = costs.rows_of(trials, job, untold)
    answer.more = limit is not None and len({t.origin.run_id for t in trials}) > limit
    if answer.more:
        oldest = _dropped(trials)
        rows = [r for r in rows if r.run_id != oldest]
    measured = [t.observation for t in trials if t.observation.time_s is not None]
    answer.job_id = job_id
    answer.facts = words.facts(job, costs.weights_of(job, measured[-1]) if measured else None)
    answer.settings = words.settings(live)
    answer.chart = figures.cost_chart(rows, marked=run_id)
    answer.chart_legend = figures.LEGEND
    answer.chart_text, answer.left_out = figures.chart_text(rows), figures.left_out(rows)
    if run_id is None:
        answer.rows, answer.totals = rows, costs.totals_of(rows)
    else:
        answer.rows = [r for r in rows if r.run_id == run_id]
        answer.attempts = costs.details_of([t for t in trials if t.origin.run_id == run_id], job, untold)
    return answer


def _dropped(trials: Sequence[Trial]) -> str:
    """Of one run more than asked for, the one whose newest trial is the oldest."""
    newest = {t.origin.run_id: t.number for t in sorted(trials, key=lambda t: t.number)}
    return min(newest, key=newest.__getitem__)


def _untold(trials: Sequence[Trial]) -> set[TrialKey]:
    """Trials whose cost is kept in a Variable until the job's next run tells it."""
    waiting = [t.key for t in trials if t.state in (State.ABANDONED, State.RUNNING)]
    if not waiting:
        return set()
    try:
        kept = set(AirflowVariables().keys(f"{PREFIX}:"))
    except StoreError:
        return set()  # the table says "abandoned" then, which is true as well
    return {key for key in waiting if untold_key(key) in kept}
