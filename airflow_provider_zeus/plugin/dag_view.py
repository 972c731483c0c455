"""The tab of a DAG: from the trials of one job to the answer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import Trial, TrialKey
from airflow_provider_zeus.plugin import costs, figures_dag, words
from airflow_provider_zeus.plugin.dag_models import DagAnswer

RUNS = 200  # shown at once unless the reader asks for more
NO_JOB = (
    "This DAG has no Zeus job. A task decorated with @task.zeus(ZeusJob(...)) is one; what it costs is shown here "
    "from its first run on."
)


def filled(
    answer: DagAnswer, trials: Sequence[Trial], live: Mapping[str, Any], untold: Collection[TrialKey], *, limit: int
) -> DagAnswer:
    """The newest ``limit`` runs of a job; ``trials`` may hold one run more, which tells that there are older ones."""
    newest = max(trials, key=lambda t: t.number)
    job = ZeusJob.from_dict(newest.spec).with_settings(live)
    rows = costs.rows_of(trials, job, untold)
    more = len({t.origin.run_id for t in trials}) > limit
    if more:
        oldest = _dropped(trials)
        rows = [r for r in rows if r.run_id != oldest]
    measured = [t.observation for t in trials if t.observation.time_s is not None]
    return answer.model_copy(
        update={
            "job_id": newest.job_id,
            "facts": words.facts(job, costs.weights_of(job, measured[-1]) if measured else None),
            "settings": words.settings(live),
            "rows": rows,
            "more": more,
            "totals": costs.totals_of(rows),
            "chart": figures_dag.cost_chart(rows),
            "chart_legend": figures_dag.LEGEND,
            "chart_text": figures_dag.chart_text(rows),
            "left_out": figures_dag.left_out(rows),
        }
    )


def _dropped(trials: Sequence[Trial]) -> str:
    """Of one run more than asked for, the one whose newest trial is the oldest."""
    newest = {t.origin.run_id: t.number for t in sorted(trials, key=lambda t: t.number)}
    return min(newest, key=newest.__getitem__)
