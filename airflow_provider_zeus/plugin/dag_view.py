"""The tab of a DAG: from the trials of one job to the answers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.optimizer.belief_table import belief_table
from airflow_provider_zeus.optimizer.pareto import pareto
from airflow_provider_zeus.optimizer.trial import Trial, TrialKey
from airflow_provider_zeus.plugin import costs, dag_words, figures_dag, words
from airflow_provider_zeus.plugin.dag_known import Known, RunKey, job_of, left_out, run_key
from airflow_provider_zeus.plugin.dag_models import DagAnswer, DagCharts
from airflow_provider_zeus.plugin.figures_dag import Line
from airflow_provider_zeus.plugin.figures_dag_belief import belief_chart
from airflow_provider_zeus.plugin.figures_dag_front import front_chart
from airflow_provider_zeus.plugin.figures_dag_saved import saved_chart
from airflow_provider_zeus.plugin.models import Row
from airflow_provider_zeus.plugin.prices import Factors

RUNS = 200  # in the table at once unless the reader asks for more
NO_JOB = (
    "This DAG has no Zeus job. A task decorated with @task.zeus(ZeusJob(...)) is one; what it costs is shown here "
    "from its first run on."
)


def filled(
    answer: DagAnswer,
    trials: Sequence[Trial],
    live: Mapping[str, Any],
    untold: Collection[TrialKey],
    *,
    limit: int,
    skip: int = 0,
) -> DagAnswer:
    """``limit`` runs of a job; ``trials`` may hold one run more, which tells that there are older ones."""
    job = job_of(trials, live)
    rows = costs.rows_of(trials, job, untold)
    more = len({t.origin.run_id for t in trials}) > limit
    if more:
        oldest = _dropped(trials)
        rows = [r for r in rows if r.run_id != oldest]
    measured = [t.observation for t in trials if t.observation.time_s is not None]
    return answer.model_copy(
        update={
            "job_id": trials[0].job_id,
            "facts": words.facts(job, costs.weights_of(job, measured[-1]) if measured else None),
            "settings": words.settings(live),
            "rows": rows,
            "more": more,
            "skipped": skip,
            "totals": costs.totals_of(rows),
        }
    )


def charts(trials: Sequence[Trial], known: Known, factors: Factors, *, more: bool = False) -> DagCharts:
    """What the runs say together. ``more``: older ones than these are in the log."""
    log, saving = known.log, known.saving
    rows = costs.rows_of(trials, log.job)
    gaps = left_out(saving.left_out)
    if more:
        gaps = [
            "Charts and sums are of the newest runs alone; the log holds older ones, which the export has too.",
            *gaps,
        ]
    return DagCharts(
        verdict=dag_words.verdict(saving, all_of=not more),
        tiles=dag_words.tiles(saving, known.source, factors, log.where[1] if log.where else 1, all_of=not more),
        whose=known.whose,
        source=known.source,
        left_out=gaps,
        cost=words.badged(
            figures_dag.cost_chart(rows, lines(known, rows), known.marks),
            words.badge([row.source.name for row in figures_dag.charted(rows)]),
        ),
        saved=words.badged(saved_chart(saving, rows), known.source),
        belief=words.badged(belief_chart(belief_table(log, log.job, profiles=known.profiles)), known.source),
        front=words.badged(front_chart(pareto(log, log.job, profiles=known.profiles), known.weights), known.source),
    )


def lines(known: Known, rows: Sequence[Row]) -> list[Line]:
    """What each run would have cost with the default, and with the best batch size in hindsight."""
    shown = figures_dag.charted(rows)
    if not shown or shown[-1].unit != known.unit:
        return []
    steps = known.saving.steps
    default: dict[RunKey, float] = {
        run_key(s.run.trials[-1]): s.baseline.value for s in steps if s.baseline.value is not None and s.run.kept
    }
    found = [Line(f"default {known.saving.default_batch_size}, full power", default)]
    if known.best is not None:
        costs_of = [(run_key(s.run.trials[-1]), known.best.run(s.run.samples_per_epoch, known.weights)) for s in steps]
        at = "" if known.best.limit_w is None else f", {known.best.limit_w:,.0f} W"
        name = f"best fixed {known.best.batch_size}{at}"
        found.append(Line(name, {key: v for key, v in costs_of if v is not None}, dash="dotted"))
    return found


def _dropped(trials: Sequence[Trial]) -> str:
    """Of one run more than asked for, the one whose newest trial is the oldest."""
    newest = {t.origin.run_id: t.number for t in sorted(trials, key=lambda t: t.number)}
    return min(newest, key=newest.__getitem__)
