"""What the tab of a DAG is made of: the runs of one job, and what its log teaches. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_zeus.model.cost import weights_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.plugin.charts import dag_charts
from airflow_provider_zeus.plugin.charts.dag_belief import belief_chart, service
from airflow_provider_zeus.plugin.charts.dag_charts import ComparisonCurve
from airflow_provider_zeus.plugin.charts.dag_front import front_chart
from airflow_provider_zeus.plugin.text import headline, run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.saved_text import Outcome, Told
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis, job_today, run_key
from airflow_provider_zeus.plugin.views.factors import Factors
from airflow_provider_zeus.plugin.views.models import AlertRow, Answer, Chart, RunRow, Sentence, Table
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.levers import Lever
from airflow_provider_zeus.reports.schedule_shift import schedule_shift
from airflow_provider_zeus.reports.worth import worth
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import counted

NO_JOB = (
    "This DAG has no Zeus job in the log of Connection zeus_default. A task decorated with @task.zeus(ZeusJob(...)) is "
    "one; what it costs is shown here from its first run on."
)


@dataclass(frozen=True)
class JobRuns:
    """What the quick blocks of the tab are made of.

    :param trials: of the newest runs: of one more than ``limit`` where there are older ones than the table shows.
    :param pending: trials whose cost is not yet stored.
    :param alerts: the events of the DAG that hold.
    :param remarks: what changed about the job, in sentences.
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
        measured = [t.observation for t in self.trials if t.observation.time_s is not None]
        return words.facts(self.job, weights_of(self.job, measured[-1]) if measured else None)

    @property
    def more(self) -> bool:
        """Whether older runs were left out."""
        return len({t.origin.run_id for t in self.trials}) > self.limit

    @cached_property
    def rows(self) -> list[RunRow]:
        """The runs of the table, newest first."""
        rows = costs.rows_of(self.trials, self.job, self.pending)
        if not self.more:
            return rows
        newest = {t.origin.run_id: t.number for t in sorted(self.trials, key=lambda t: t.number)}
        oldest = min(newest, key=newest.__getitem__)  # the run whose newest trial is the oldest
        return [r for r in rows if r.run_id != oldest]


@dataclass(frozen=True)
class JobLog:
    """What the slow blocks of the tab are made of: the newest runs, and what the log teaches of them.

    :param hours: prices and carbon intensities of the newest days, by Connection.
    :param more: the log holds older runs than these.
    """

    trials: Sequence[Trial]
    known: JobAnalysis
    factors: Factors
    hours: Mapping[str, Series]
    more: bool

    @cached_property
    def rows(self) -> list[RunRow]:
        """What each run cost, newest first."""
        return costs.rows_of(self.trials, self.known.log.job)

    @property
    def sentence(self) -> Sentence:
        """What the runs cost and saved and what comes next."""
        known = self.known
        return headline.sentence(known.saving, known.next_run, known.source, known.weights, all_of=not self.more)

    @property
    def headline(self) -> list[Answer]:
        """The same in figures."""
        known = self.known
        log = known.saving, known.next_run, self.told, known.weights, known.source, self.factors
        return headline.of_job(*log, all_of=not self.more)

    @cached_property
    def told(self) -> list[Told]:
        """What the runs saved, of each kind."""
        known = self.known
        runs = [step.run for step in known.saving.steps]
        return headline.told_of(known.saving, runs, known.source, self.factors)

    @property
    def levers(self) -> Table | None:
        """What the batch size saved and what the power limit, in each unit."""
        by = {weights: self.known.levers_by(weights) for weights in {told.weights for told in self.told}}
        return lever_table([(told, by[told.weights]) for told in self.told])

    @property
    def worth(self) -> str:
        """What the last retrainings bought; empty where nothing tells it."""
        found = worth(self.known.log, self.known.log.belief().changes)
        if isinstance(found, str):
            return f"The guard of the quality in service is off: {found}." if self.known.log.job.chooses_start else ""
        levers = "retrain_every and run.still_good() are yours to set (docs/whether.md)."
        return f"{found.said()} {levers}"

    @property
    def service(self) -> Chart | None:
        """How well models served, by where their trainings started; None for a job that chooses no start."""
        job, served = self.known.log.job, self.known.log.belief().served
        return service(served) if job.chooses_start and served else None

    @property
    def gaps(self) -> list[str]:
        """What the runs are, and what the figures leave out."""
        trials, learn_from = self.trials, self.known.log.job.learn_from
        taught = run_notes.bypassed(trials), run_notes.start_unseen(trials)
        notes = (*taught, run_notes.shared_job(trials), run_notes.untaught(trials, learn_from))
        left_out = [f"Left out: {counted(n, 'trial')} {why}." for why, n in self.known.saving.left_out.items()]
        return [*filter(None, (run_notes.OLDER * self.more, *notes)), *left_out]

    @property
    def cost(self) -> Chart:
        """The chart of what each run cost."""
        known = self.known
        return dag_charts.cost_chart(
            self.rows, known.weights, lines(known, self.rows), known.marks, known.saving.default_now
        )

    @property
    def belief(self) -> Chart:
        """The chart of what is believed of each batch size."""
        log, known = self.known.log, self.known
        table = belief_table(log, profiles=known.profiles, hardness=known.hardness, decided=known.decided)
        return belief_chart(table, known.weights)

    @property
    def front(self) -> Chart | None:
        """The chart of energy against time; None if nothing measures energy, or no run reached the target."""
        points = self.known.front()
        if not points:
            return None
        return front_chart(points, self.known.weights, self.known.choices())


def shifts(trials: Iterable[Trial], factors: Factors, hours: Mapping[str, Series]) -> str:
    """What another hour of the day would have cost and emitted, in sentences: by ``[zeus] tariff``, else ``hours``."""
    runs, by = list(trials), dict[str, Tariff | Series](hours)
    if factors.tariff:  # it counts where no service prices the hours
        by = {name: s for name, s in hours.items() if s.source != "tariff"}
        if all(s.unit.goal != PRICE for s in by.values()):
            by = {"[zeus] tariff": factors.tariff, **by}
    found = (headline.shift(schedule_shift(runs, s, factors.pue or 1.0), s, name) for name, s in by.items())
    return " ".join(filter(None, found))


def lines(known: JobAnalysis, rows: Sequence[RunRow]) -> list[ComparisonCurve]:
    """What each run would have cost with the default, and with the batch size that runs now."""
    shown = dag_charts.charted(rows)
    if not shown or shown[-1].unit != known.weights.unit:
        return []
    steps = known.saving.steps
    default = {run_key(s.run.trials[-1]): s.baseline for s in steps if s.baseline.value is not None and s.run.kept}
    found = [ComparisonCurve(saved_text.against(known.saving.default_batch_size), default)]
    full_w, best = known.saving.full_power_w or math.inf, known.saving.best
    is_default = best and best.batch_size == known.saving.default_batch_size and (best.limit_w or full_w) >= full_w
    if best is not None and not is_default:
        runs = [s.run for s in steps]
        cost_of = [best.run(r.trials[0].recurrence, r.samples_per_epoch, known.weights) for r in runs]
        costs_of = [(run_key(r.trials[-1]), Estimate(v)) for r, v in zip(runs, cost_of, strict=True) if v is not None]
        at = "" if best.limit_w is None else f" at {best.limit_w:,.0f} W"
        found.append(ComparisonCurve(f"always {best.batch_size}{at}", dict(costs_of), dash="dotted"))
    return found


def lever_table(columns: Sequence[tuple[Told, Sequence[Lever]]]) -> Table | None:
    """A row for each lever and one for their sum; None where nothing was saved or lost, or none of it is known.

    A column of which nothing is known is left out.

    :param columns: what was saved in all, and of that by each lever, in the unit of its weights.
    """
    if not any(told.start or any(lever.saved.value for lever in levers) for told, levers in columns):
        return None
    names = [lever.name for lever in columns[0][1]]
    rows = [
        [name, *(_cell(levers[i].saved.times(told.factor), told) for told, levers in columns)]
        for i, name in enumerate(names)
    ]
    if any(told.start for told, _ in columns):
        rows.append(["Start", *(_cell(Estimate(told.start, told.start, told.start), told) for told, _ in columns)])
    rows.append(["Together", *(_cell(told.saved, told) for told, _ in columns)])
    heads = ["", *(told.name for told, _ in columns)]
    known = [i for i in range(len(heads)) if i == 0 or not all(row[i].startswith("not known") for row in rows)]
    return Table(
        caption="What saved it",
        columns=[heads[i] for i in known],
        numeric=[i > 0 for i in known],
        rows=[[row[i] for i in known] for row in rows],
    )


def _cell(saved: Estimate, told: Told) -> str:
    def text(amount: float) -> str:
        return told.figure(amount).text

    if saved.value is None:
        return f"not known: {saved.reason}"
    if saved.value == 0 == saved.low == saved.high:
        return "0"
    found = Outcome.of(saved.value, saved, text)
    if found.kind == "even":
        return f"not clear yet: {text(abs(saved.low or 0.0))} lost to {text(saved.high or 0.0)} saved"
    ends = sorted((abs(saved.low or 0.0), abs(saved.high or 0.0)))
    between = "" if text(ends[0]) == text(ends[1]) else f" ({text(ends[0])} to {text(ends[1])})"
    return f"{found.verb} {found.amount}{between}"
