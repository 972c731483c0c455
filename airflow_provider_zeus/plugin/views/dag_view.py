"""The tab of a DAG: the runs of one job, and the lessons of its log. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial, TrialKey, timed
from airflow_provider_zeus.plugin.answer_parts import (
    AlertRow,
    Answer,
    Chart,
    RunRow,
    Sentence,
    Table,
)
from airflow_provider_zeus.plugin.charts import dag_charts
from airflow_provider_zeus.plugin.charts.dag_belief import belief_chart, service
from airflow_provider_zeus.plugin.charts.dag_charts import ComparisonCurve
from airflow_provider_zeus.plugin.charts.dag_front import front_chart
from airflow_provider_zeus.plugin.charts.dag_saved import saved_chart
from airflow_provider_zeus.plugin.charts.run_axis import run_key
from airflow_provider_zeus.plugin.text import headline, run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.text.saved_text import Outcome, ShownSaving
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis, job_today
from airflow_provider_zeus.reports.baseline import BestFixed
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.job_remarks import bypassed
from airflow_provider_zeus.reports.levers import Lever
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.reports.schedule_shift import schedule_shift
from airflow_provider_zeus.reports.worth import worth
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import counted

NO_JOB = (
    "This DAG has no Zeus job in the log of Connection zeus_default. A task decorated with "
    "@task.zeus(ZeusJob(...)) is one; what it costs is shown here from its first run on."
)


@dataclass(frozen=True)
class JobRuns:
    """The quick blocks of the tab.

    :param trials: of the newest runs: of one more than ``limit`` if there are older ones than the
        table shows.
    :param pending: trials whose cost is not yet stored.
    :param alerts: the events of the DAG that hold.
    :param remarks: changes of the job, in sentences.
    """

    trials: Sequence[Trial]
    live: Mapping[str, Any]
    pending: Collection[TrialKey]
    limit: int
    alerts: Sequence[AlertRow]
    remarks: Sequence[str]

    @cached_property
    def job(self) -> ZeusJob:
        """The job with its live settings."""
        return job_today(self.trials, self.live)

    @property
    def facts(self) -> str:
        """Target and weights of the job, in a line."""
        measured = [trial.observation for trial in timed(self.trials)]
        weights = weights_of(self.job, measured[-1]) if measured else None
        return words.facts(self.job, weights)

    @property
    def settings(self) -> list[str]:
        """Live settings, a text for each."""
        return words.live_settings(self.live)

    @property
    def more(self) -> bool:
        """Whether older runs were left out."""
        return len({t.origin.run_id for t in self.trials}) > self.limit

    @cached_property
    def rows(self) -> list[RunRow]:
        """The runs of the table, newest first."""
        # Costed with today's eta, so that old runs compare with new ones.
        rows = costs.rows_of(self.trials, self.job, self.pending)
        # The whole history is there: nothing is left to drop.
        if not self.more:
            return rows
        # The run that was read only to know that there are older ones has no row.
        runs = grouped(self.trials, lambda trial: trial.origin.run_id)
        # Which run is the oldest is decided as the store decides it: by its newest trial.
        oldest_run = min(runs, key=lambda run_id: max(trial.number for trial in runs[run_id]))
        return [row for row in rows if row.run_id != oldest_run]


@dataclass(frozen=True)
class JobLog:
    """The slow blocks of the tab: the newest runs, and their lessons.

    :param hours: prices and carbon intensities of the newest days, by Connection.
    :param more: the log holds older runs than these.
    """

    trials: Sequence[Trial]
    analysis: JobAnalysis
    factors: Factors
    hours: Mapping[str, Series]
    more: bool

    @cached_property
    def rows(self) -> list[RunRow]:
        """The cost of each run, newest first."""
        return costs.rows_of(self.trials, self.analysis.log.job)

    @property
    def sentence(self) -> Sentence:
        """Cost and saving of the runs, and the next run."""
        analysis = self.analysis
        return headline.sentence(
            analysis.saving,
            analysis.next_run,
            analysis.source,
            weights=analysis.weights,
            all_of=not self.more,
        )

    @property
    def state(self) -> str:
        """The reason that keeps the page from telling more, with its remedy."""
        analysis = self.analysis
        return headline.odd_state(analysis.saving, analysis.next_run, analysis.source)

    @property
    def headline(self) -> list[Answer]:
        """The sentence in figures."""
        analysis = self.analysis
        return headline.of_job(
            analysis.saving,
            analysis.next_run,
            self.shown_savings,
            weights=analysis.weights,
            source=analysis.source,
            factors=self.factors,
            all_of=not self.more,
        )

    @cached_property
    def shown_savings(self) -> list[ShownSaving]:
        """The savings of the runs, of each kind."""
        saving = self.analysis.saving
        runs = [step.run for step in saving.steps]
        return headline.shown_savings(saving, runs, self.analysis.source, factors=self.factors)

    @property
    def paid(self) -> str:
        """When the savings made up for the cost of exploration."""
        return saved_text.paid_off(self.analysis.saving, all_of=not self.more)

    @property
    def levers(self) -> Table | None:
        """The savings by the batch size and by the power limit, in each unit."""
        # Energy and carbon have the same weights; each call draws its samples anew.
        levers_by = cache(self.analysis.levers_by)
        return lever_table(
            [LeverColumn(shown, levers_by(shown.weights)) for shown in self.shown_savings]
        )

    @property
    def saved(self) -> Chart:
        """The chart of the sum saved."""
        return saved_chart(self.analysis.saving, self.rows, self.analysis.weights)

    @property
    def worth(self) -> str:
        """The gain of the last retrainings; empty if nothing tells it."""
        log = self.analysis.log
        bought = worth(log, log.belief().changes)
        if not isinstance(bought, str):
            return (
                f"{bought.said()} retrain_every and run.still_good() are yours to set "
                "(docs/levers/whether.md)."
            )
        # Only such a job has a guard that this would explain.
        if log.job.chooses_start:
            return f"The guard of the quality in service is off: {bought}."
        return ""

    @property
    def service(self) -> Chart | None:
        """How well models served, by the start of their trainings.

        None for a job that chooses no start.
        """
        log = self.analysis.log
        served = log.belief().served
        if not served or not log.job.chooses_start:
            return None
        return service(served)

    @property
    def why(self) -> str:
        """The reason for the next run."""
        first, *_ = self.analysis.next_run.attempts
        return f"The next run: {first.why}"

    @property
    def shift(self) -> str:
        """Cost and emission at another hour of the day."""
        return shifts(self.analysis.log.of_target().here(), self.factors, self.hours)

    @property
    def whose(self) -> str:
        """The device of all figures."""
        return self.analysis.device

    @property
    def gaps(self) -> list[str]:
        """The gaps in the figures."""
        trials = self.trials
        notes = [
            bypassed(trials),
            run_notes.start_unseen(trials),
            run_notes.shared_job(trials),
            run_notes.untaught(trials, self.analysis.log.job.learn_from),
        ]
        if self.more:
            notes.insert(0, run_notes.OLDER)
        notes += [
            f"Left out: {counted(attempts, 'attempt')} {why}."
            for why, attempts in self.analysis.saving.left_out.items()
        ]
        return list(filter(None, notes))

    @property
    def cost(self) -> Chart:
        """The chart of the cost of each run."""
        analysis = self.analysis
        return dag_charts.cost_chart(
            self.rows,
            analysis.weights,
            curves=lines(analysis, self.rows),
            breaks=analysis.marks,
            whole=analysis.saving.default_now,
        )

    @property
    def belief(self) -> Chart:
        """The chart of the belief of each batch size."""
        analysis = self.analysis
        table = belief_table(
            analysis.log,
            profiles=analysis.profiles,
            hardness=analysis.hardness,
            decided=analysis.decided,
        )
        return belief_chart(table, analysis.weights)

    @property
    def front(self) -> Chart | None:
        """The chart of energy against time.

        None if nothing measures energy, or no run reached the target.
        """
        # Without energy there is no second axis.
        points = self.analysis.front()
        if not points:
            return None
        return front_chart(points, self.analysis.weights, self.analysis.choices())


def shifts(trials: Iterable[Trial], factors: Factors, hours: Mapping[str, Series]) -> str:
    """Cost and emission at another hour of the day, in sentences.

    :param hours: count instead of ``[zeus] tariff`` if they have prices.
    """
    runs = list(trials)
    by = dict[str, Tariff | Series](hours)
    if factors.tariff:
        by = {name: series for name, series in hours.items() if series.source != "tariff"}
        # Real prices of a Connection come before a tariff that somebody wrote down.
        if all(series.unit.goal != PRICE for series in by.values()):
            by = {"[zeus] tariff": factors.tariff, **by}
    sentences = [
        headline.shift(schedule_shift(runs, series, factors.overhead), series, name)
        for name, series in by.items()
    ]
    return " ".join(filter(None, sentences))


def lines(analysis: JobAnalysis, rows: Sequence[RunRow]) -> list[ComparisonCurve]:
    """The cost of each run with the default, and with the batch size that runs now."""
    shown = dag_charts.charted(rows)
    # Lines in joules beside runs in seconds would mean nothing.
    if not shown or shown[-1].unit != analysis.weights.unit:
        return []
    saving = analysis.saving
    # By the attempt that left the model, whose row is drawn: a run without one has no counterpart.
    default = {
        run_key(step.run.trials[-1]): step.baseline
        for step in saving.steps
        if step.run.kept and step.baseline.value is not None
    }
    against = saved_text.against(saving.default_batch_size)
    curves = [ComparisonCurve(against, default)]
    if saving.best is not None and not _is_default(saving, saving.best):
        curves.append(_best_curve(saving, saving.best, analysis.weights))
    return curves


def _is_default(saving: Savings, best: BestFixed) -> bool:
    """Whether the present choice is the default at full power."""
    # A line of another size is never that of the default, so it is drawn.
    if best.batch_size != saving.default_batch_size:
        return False
    # A device without limits always has full power.
    if not best.limit_w:
        return True
    return best.limit_w >= (saving.full_power_w or math.inf)


def _best_curve(saving: Savings, best: BestFixed, weights: Weights) -> ComparisonCurve:
    costs_of = {}
    for step in saving.steps:
        first = step.run.trials[0]
        cost = best.run(first.recurrence, step.run.samples_per_epoch, weights)
        if cost is not None:
            costs_of[run_key(step.run.trials[-1])] = Estimate(cost)
    name = f"always {best.batch_size}"
    # The same size at another limit would be a line of the same name.
    if best.limit_w is not None:
        name += f" at {best.limit_w:,.0f} W"
    return ComparisonCurve(name, costs_of, dash="dotted")


class LeverColumn(NamedTuple):
    """A saving in all, and by each lever, in the unit of its weights."""

    total: ShownSaving
    levers: Sequence[Lever]

    def cells(self, *, with_start: bool) -> list[str]:
        """By each lever, by waiting for a cheaper start, and together."""
        total = self.total
        savings = [lever.saved.times(total.factor) for lever in self.levers]
        if with_start:
            savings.append(Estimate(total.start, total.start, total.start))
        return [_cell(saved, total) for saved in (*savings, total.saved)]

    @property
    def is_empty(self) -> bool:
        """Whether no lever saved or lost anything, as far as is known."""
        return not self.total.start and not any(lever.saved.value for lever in self.levers)


def lever_table(columns: Sequence[LeverColumn]) -> Table | None:
    """A row for each lever and one for their sum.

    None if nothing was saved or lost, or none of it is known. A column of which nothing is known is
    left out.
    """
    # A table of zeros says less than no table.
    if all(column.is_empty for column in columns):
        return None
    first, *_ = columns
    with_start = any(column.total.start for column in columns)
    names = [lever.name for lever in first.levers]
    if with_start:
        names.append("Start")
    heads = [""]
    cells = [[*names, "Together"]]
    for column in columns:
        of_column = column.cells(with_start=with_start)
        # A column of reasons alone would push the figures off the screen.
        if not all(cell.startswith("not known") for cell in of_column):
            heads.append(column.total.name)
            cells.append(of_column)
    return Table(
        caption="What saved it",
        columns=heads,
        numeric=[bool(head) for head in heads],
        rows=[list(row) for row in zip(*cells, strict=True)],
    )


def _cell(saved: Estimate, shown: ShownSaving) -> str:
    text = shown.text
    if saved.value is None:
        return f"not known: {saved.reason}"
    # Exactly nothing is known better than an interval around 0.
    if saved.value == saved.low == saved.high == 0:
        return "0"
    outcome = Outcome.of(saved.value, saved, text)
    lower, upper = (text(abs(end)) for end in saved.ends)
    if not outcome.is_clear:
        return f"not clear yet: {lower} lost to {upper} saved"
    amount = f"{outcome.verb} {outcome.amount}"
    if lower == upper:
        return amount
    # Of a loss the upper end is the small one.
    if outcome.verb == "lost":
        return f"{amount} ({upper} to {lower})"
    return f"{amount} ({lower} to {upper})"
