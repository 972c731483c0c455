"""The tab of a DAG: from the trials of one job to the answers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.plugin.charts import dag_charts
from airflow_provider_zeus.plugin.charts.dag_belief import belief_chart
from airflow_provider_zeus.plugin.charts.dag_charts import ComparisonCurve
from airflow_provider_zeus.plugin.charts.dag_front import front_chart
from airflow_provider_zeus.plugin.charts.dag_saved import saved_chart
from airflow_provider_zeus.plugin.text import headline, run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.lever_text import Priced, lever_table
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis, job_of, left_out, run_key
from airflow_provider_zeus.plugin.views.dag_models import DagAnswer, DagCharts
from airflow_provider_zeus.plugin.views.models import RunRow
from airflow_provider_zeus.plugin.views.prices import Factors
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.schedule_shift import schedule_shift
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.tariff import TARIFF, Tariff
from airflow_provider_zeus.units import grams_text

NO_HOURS: Mapping[str, Series] = {}
RUNS = 200  # in the table at once unless the reader asks for more
NO_JOB = (
    "This DAG has no Zeus job in the log of Connection zeus_default. A task decorated with @task.zeus(ZeusJob(...)) is "
    "one; what it costs is shown here from its first run on."
)


def filled(
    answer: DagAnswer,
    trials: Sequence[Trial],
    live: Mapping[str, Any],
    pending: Collection[TrialKey],
    *,
    limit: int,
    skip: int = 0,
) -> DagAnswer:
    """Fill the table with ``limit`` runs of a job; ``trials`` may hold one run more: then older ones were left out."""
    job = job_of(trials, live)
    rows = costs.rows_of(trials, job, pending)
    more = len({t.origin.run_id for t in trials}) > limit
    if more:
        newest = {t.origin.run_id: t.number for t in sorted(trials, key=lambda t: t.number)}
        oldest = min(newest, key=newest.__getitem__)  # the run whose newest trial is the oldest
        rows = [r for r in rows if r.run_id != oldest]
    measured = [t.observation for t in trials if t.observation.time_s is not None]
    return answer.model_copy(
        update={
            "job_id": trials[0].job_id,
            "facts": words.facts(job, weights_of(job, measured[-1]) if measured else None),
            "settings": words.settings(live),
            "rows": rows,
            "more": more,
            "skipped": skip,
            "totals": costs.totals_of(rows),
        }
    )


def charts(
    trials: Sequence[Trial],
    known: JobAnalysis,
    factors: Factors,
    hours: Mapping[str, Series] = NO_HOURS,
    *,
    more: bool = False,
) -> DagCharts:
    """Verdict, tiles and charts of the runs.

    :param hours: prices and carbon intensities of the newest days, by Connection.
    :param more: the log holds older runs than these.
    """
    log, saving = known.log, known.saving
    rows = costs.rows_of(trials, log.job)
    notes = [run_notes.bypassed(trials), run_notes.shared_job(trials), run_notes.untaught(trials, log.job.learn_from)]
    gaps = [*filter(None, notes), *left_out(saving.left_out)]
    if more:
        gaps = [
            "Charts and sums are of the newest runs alone; the export has the older ones too.",
            *gaps,
        ]
    return DagCharts(
        headline=headline.of_job(saving, known.next_run, known.source, factors, all_of=not more),
        shift=shifts(log.of_target().here(), factors, hours),
        verdict=saved_text.job_verdict(saving, all_of=not more),
        tiles=saved_text.job_tiles(saving, known.source, all_of=not more),
        levers=lever_table(
            known.levers,
            {"energy": saving.energy.saved, "time": saving.time.saved, "cost": saving.cost.saved},
            saving.cost.unit,
            priced_levers(known, factors),
        ),
        whose=known.device,
        source=known.source,
        left_out=gaps,
        cost=words.badged(
            dag_charts.cost_chart(rows, lines(known, rows), known.marks),
            words.badge([row.source.name for row in dag_charts.charted(rows) if not dag_charts.is_idle(row)]),
        ),
        saved=words.badged(saved_chart(saving, rows), known.source),
        belief=words.badged(
            belief_chart(
                belief_table(log, log.job, profiles=known.profiles, hardness=known.hardness, decided=known.decided)
            ),
            known.source,
        ),
        front=words.badged(
            front_chart(known.front(), known.weights, known.decided.settled.batch_size, known.limit_w), known.source
        ),
    )


def shifts(trials: Iterable[Trial], factors: Factors, hours: Mapping[str, Series]) -> str:
    """What another hour of the day would have cost and emitted, in sentences: by ``[zeus] tariff``, else ``hours``."""
    runs, by = list(trials), dict[str, Tariff | Series](hours)
    if factors.tariff:  # it counts where no service prices the hours
        by = {name: s for name, s in hours.items() if s.source != TARIFF}
        if all(s.unit.goal != PRICE for s in by.values()):
            by = {"[zeus] tariff": factors.tariff, **by}
    found = (headline.shift(schedule_shift(runs, s, factors.pue or 1.0), s, name) for name, s in by.items())
    return " ".join(filter(None, found))


def priced_levers(known: JobAnalysis, factors: Factors) -> list[Priced]:
    """What each lever saved in money and CO2e, where prices are known."""
    runs = [step.run for step in known.saving.steps]
    seen = headline.seen_in(runs)
    at_once, (money, grams) = factors.at_once(seen), factors.start_saved(seen)
    per_j, per_s = at_once.per_j_and_s(known.saving.where[1] if known.saving.where else 1)
    found = []
    total = headline.saved_money(known.saving.base, runs, at_once, known.saving.where[1] if known.saving.where else 1)
    if total is not None:
        levers = known.levers_by(Weights(per_j / (per_j + per_s), 1.0))
        by = [replace(lever, saved=lever.saved.times(per_j + per_s)) for lever in levers]
        whole = headline.more(total, money).saved
        found.append(Priced(name="Money", levers=by, start=money, total=whole, text=at_once.amount))
    if at_once.g_co2e_per_kwh is not None:
        by = [replace(lever, saved=lever.saved.times(at_once.g_per_j)) for lever in known.levers["energy"]]
        whole = headline.more(known.saving.energy.times(at_once.g_per_j), grams).saved
        found.append(Priced(name="CO₂e", levers=by, start=grams, total=whole, text=grams_text))
    return found


def lines(known: JobAnalysis, rows: Sequence[RunRow]) -> list[ComparisonCurve]:
    """What each run would have cost with the default, and with the batch size that runs now."""
    shown = dag_charts.charted(rows)
    if not shown or shown[-1].unit != known.unit:
        return []
    steps = known.saving.steps
    default = {run_key(s.run.trials[-1]): s.baseline for s in steps if s.baseline.value is not None and s.run.kept}
    found = [ComparisonCurve(f"default {known.saving.default_batch_size}, full power", default)]
    if known.best is not None:
        runs = [s.run for s in steps]
        cost_of = [known.best.run(r.trials[0].recurrence, r.samples_per_epoch, known.weights) for r in runs]
        costs_of = [(run_key(r.trials[-1]), Estimate(v)) for r, v in zip(runs, cost_of, strict=True) if v is not None]
        at = "" if known.best.limit_w is None else f", {known.best.limit_w:,.0f} W"
        name = f"always {known.best.batch_size}{at}"
        found.append(ComparisonCurve(name, dict(costs_of), dash="dotted"))
    return found
