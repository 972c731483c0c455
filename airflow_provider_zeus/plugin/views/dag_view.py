"""What the tab of a DAG is made of: the runs of one job, and what its log teaches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.plugin.charts import dag_charts
from airflow_provider_zeus.plugin.charts.dag_belief import belief_chart
from airflow_provider_zeus.plugin.charts.dag_charts import ComparisonCurve
from airflow_provider_zeus.plugin.charts.dag_front import front_chart
from airflow_provider_zeus.plugin.text import headline, run_notes, words
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis, job_today, left_out, run_key
from airflow_provider_zeus.plugin.views.models import Alerts, Answer, Chart, RunRow, Table
from airflow_provider_zeus.plugin.views.prices import Factors
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.levers import Lever
from airflow_provider_zeus.reports.schedule_shift import schedule_shift
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.tariff import TARIFF, Tariff
from airflow_provider_zeus.units import costs_as, energy_text, grams_text, time_text

NO_JOB = (
    "This DAG has no Zeus job in the log of Connection zeus_default. A task decorated with @task.zeus(ZeusJob(...)) is "
    "one; what it costs is shown here from its first run on."
)


@dataclass(frozen=True)
class JobRuns:
    """What the quick blocks of the tab are made of.

    :param trials: of the newest runs: of one more than ``limit`` where there are older ones than the table shows.
    :param pending: trials whose cost is not yet stored.
    :param remarks: what changed about the job, in sentences.
    """

    trials: Sequence[Trial]
    live: Mapping[str, Any]
    pending: Collection[TrialKey]
    limit: int
    alerts: Alerts
    remarks: Sequence[str]
    budgets: Sequence[Answer]

    @cached_property
    def job(self) -> ZeusJob:
        """The job with its live settings."""
        return job_today(self.trials, self.live)

    @property
    def facts(self) -> list[str]:
        """Target and weights of the job."""
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
    hours: Mapping[str, Series] = field(default_factory=dict)
    more: bool = False

    @cached_property
    def rows(self) -> list[RunRow]:
        """What each run cost, newest first."""
        return costs.rows_of(self.trials, self.known.log.job)

    @property
    def levers(self) -> Table | None:
        """What the batch size saved and what the power limit, in each unit."""
        saving = self.known.saving
        totals = {"energy": saving.energy.saved, "time": saving.time.saved, "cost": saving.cost.saved}
        return lever_table(self.known.levers, totals, saving.cost.unit, priced_levers(self.known, self.factors))

    @property
    def gaps(self) -> list[str]:
        """What the runs are, and what the figures leave out."""
        trials, learn_from = self.trials, self.known.log.job.learn_from
        notes = run_notes.bypassed(trials), run_notes.shared_job(trials), run_notes.untaught(trials, learn_from)
        older = "Charts and sums are of the newest runs alone; the export has the older ones too." if self.more else ""
        return [*filter(None, (older, *notes)), *left_out(self.known.saving.left_out)]

    @property
    def cost(self) -> Chart:
        """The chart of what each run cost."""
        chart = dag_charts.cost_chart(self.rows, lines(self.known, self.rows), self.known.marks)
        shown = [row.source.name for row in dag_charts.charted(self.rows) if not dag_charts.is_idle(row)]
        return words.badged(chart, words.badge(shown))

    @property
    def belief(self) -> Chart:
        """The chart of what is believed of each batch size."""
        log, known = self.known.log, self.known
        table = belief_table(log, log.job, profiles=known.profiles, hardness=known.hardness, decided=known.decided)
        return words.badged(belief_chart(table), known.source)

    @property
    def front(self) -> Chart:
        """The chart of energy against time."""
        known, size = self.known, self.known.decided.settled.batch_size
        return words.badged(front_chart(known.front(), known.weights, size, known.limit_w), known.source)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What the levers saved in money or CO2e, of which waiting for a cheaper start is one."""

    name: str
    levers: Sequence[Lever]
    start: float  # exact: it is of the energy that was drawn
    total: Estimate  # ``start`` counts in it
    text: Callable[[float], str]


def lever_table(
    levers: Mapping[str, Sequence[Lever]],
    totals: Mapping[str, Estimate],
    unit: str,
    priced: Sequence[Priced] = (),
) -> Table | None:
    """A row for each lever and one for their sum; None where nothing was saved or lost, or none of it is known.

    A column of which nothing is known is left out.

    :param levers: by "energy" [J], "time" [s] and "cost" [``unit``]; ``totals``: their sums.
    :param priced: further columns.
    """
    if not any(lever.saved.value for each in levers.values() for lever in each) and not any(p.start for p in priced):
        return None
    texts: dict[str, Callable[[float], str]] = {"energy": energy_text, "time": time_text, "cost": costs_as(unit)}
    columns = [(c.capitalize(), text, levers[c], 0.0, totals[c]) for c, text in texts.items()]
    columns += [(p.name, p.text, p.levers, p.start, p.total) for p in priced]
    rows = [
        [lever.name, *(_cell(of[i].saved, text) for _, text, of, _, _ in columns)]
        for i, lever in enumerate(levers["cost"])
    ]
    if any(p.start for p in priced):
        rows.append(["Start", *(_cell(Estimate(start, start, start), text) for _, text, _, start, _ in columns)])
    rows.append(["Together", *(_cell(total, text) for _, text, _, _, total in columns)])
    heads = ["", *(name for name, *_ in columns)]
    known = [i for i in range(len(heads)) if i == 0 or not all(row[i].startswith("not known") for row in rows)]
    return Table(
        caption="What saved it",
        columns=[heads[i] for i in known],
        numeric=[i > 0 for i in known],
        rows=[[row[i] for i in known] for row in rows],
    )


def _cell(saved: Estimate, text: Callable[[float], str]) -> str:
    if saved.value is None:
        return f"not known: {saved.reason}"
    if saved.value == 0 == saved.low == saved.high:
        return "0"
    found = Outcome.of(saved.value, saved, text)
    if found.kind == "even":
        return f"undecided: {text(abs(saved.low or 0.0))} lost to {text(saved.high or 0.0)} saved"
    ends = sorted((abs(saved.low or 0.0), abs(saved.high or 0.0)))
    between = "" if text(ends[0]) == text(ends[1]) else f" ({text(ends[0])} to {text(ends[1])})"
    return f"{found.verb} {found.amount}{between}"
