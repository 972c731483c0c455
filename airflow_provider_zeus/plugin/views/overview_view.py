"""The page of all jobs: a row for each job, the saving of one job, its controls.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.groups import grouped, sum_of_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import Phase, State, Trial
from airflow_provider_zeus.plugin.answer_parts import (
    Controls,
    Figure,
    JobRow,
    JobSaved,
    Short,
    Source,
)
from airflow_provider_zeus.plugin.text import headline, saved_text, words
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.plugin.views import costs, overview_state, task_table
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.plugin.views.measured_view import (
    MeasuredLog,
    limit_cost,
    limit_sentence,
    nothing_saved,
)
from airflow_provider_zeus.plugin.views.task_table import TaskLine
from airflow_provider_zeus.reports.baseline import OLD, Saved
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.reports.month_spent import DagAbout
from airflow_provider_zeus.units import counted

NO_JOBS = (
    "There is no Zeus job yet. Decorate a training task with @task.zeus(ZeusJob(batch_sizes=[…], "
    "default_batch_size=…, target=…, max_epochs=…)), give it the parameter “run”, and trigger its "
    "DAG: the job is shown here from its first run on. Jobs of DAGs that you may not read are not "
    "shown."
)

NOT_NOW = " A run that is training now is not changed."

# Settings and their last change; or a "problem" alone, since then no setting holds.
Live = tuple[Mapping[str, Any], Mapping[str, Any]]


class DagRow(BaseModel):
    """The tasks of one DAG that are measured from outside, together: a line for each source."""

    dag_id: str
    tags: list[Short]
    owners: list[Short]
    lines: list[TaskLine]


class DagTable(BaseModel):
    """All DAGs with such tasks."""

    caption: str
    dags: list[DagRow]


def rows(
    trials: Iterable[Trial],
    allowed: Collection[str],
    live: Mapping[str, Live],
    now: float,
    about: Mapping[str, DagAbout] | None = None,
) -> list[JobRow]:
    """A row for each job of each DAG in ``allowed``.

    :param trials: the newest of each, by DAG, job and number, those of other DAGs too.
    :param about: tags and owners by DAG.
    """
    dags = about or {}
    allowed_trials = []
    of_others = set()  # a reader must not learn who changed a job of another DAG
    for trial in trials:
        if trial.origin.dag_id in allowed:
            allowed_trials.append(trial)
        else:
            # A DAG that is hidden from the reader shares the job all the same.
            of_others.add(trial.job_id)
    job_rows = []
    for (dag_id, job_id), group in groupby(
        allowed_trials, key=lambda trial: (trial.origin.dag_id, trial.job_id)
    ):
        settings, change = live.get(job_id, ({}, {}))
        row = _row(list(group), settings, now, about=dags.get(dag_id, DagAbout()))
        # Who changed it may work on a DAG that this reader may not see.
        row.changed = change_text(change, named=job_id not in of_others)
        job_rows.append(row)
    return job_rows


def dag_table(
    sums: Sequence[PeriodSum], about: Mapping[str, DagAbout], factors: Factors, caption: str
) -> DagTable | None:
    """A row for each DAG with tasks measured from outside, the costliest first; None without any.

    :param sums: of all such tasks of each DAG that the reader may see.
    """
    rows = []
    for dag_id, of_dag in grouped(sums, lambda s: s.dag_id).items():
        tags, owners = about.get(dag_id, DagAbout())
        # A DAG whose tasks have not ended yet has nothing to show.
        lines = task_table.dag_lines(of_dag, factors)
        if lines:
            row = DagRow(dag_id=dag_id, tags=list(tags), owners=list(owners), lines=lines)
            rows.append(row)
    rows.sort(key=_dag_order)
    if not rows:
        return None
    return DagTable(caption=caption, dags=rows)


def _dag_order(row: DagRow) -> tuple[float, float, str]:
    energy_j = sum_of_known(line.energy.value for line in row.lines)
    time_s = sum_of_known(line.time.value for line in row.lines)
    return -energy_j, -time_s, row.dag_id


def readable_job(newest: Trial, live: Mapping[str, Any]) -> ZeusJob | None:
    """The job of its newest trial with the live settings; None if a newer version wrote it."""
    try:
        return newest.job.with_settings(live)
    except JobSpecError:
        return None


def _row(
    trials: Sequence[Trial], settings: Mapping[str, Any], now: float, *, about: DagAbout
) -> JobRow:
    newest = trials[-1]
    *_, last_run = runs_of(trials)
    last = last_run[-1]
    job = readable_job(newest, settings)
    why = "a newer version of the provider wrote this job"
    ended = []
    if job is not None:
        why = "no run has ended yet"
        # A running row would be the cheapest of all.
        every = costs.rows_of(trials, job)
        ended = [row for row in every if row.state != State.RUNNING.value]
    job_row = JobRow(
        dag_id=newest.origin.dag_id,
        job_id=newest.job_id,
        run_id=newest.origin.run_id,
        began_at=last_run[0].opened_at,
        batch_size=last.batch_size,
        outcome=last.state.value,
        outcome_text=words.state(last.state),
        last_energy=words.missing(why),
        last_time=words.missing(why),
        tags=list(about.tags),
        owners=list(about.owners),
        source=Source(),
        trend=overview_state.trend_of(ended),
        state=overview_state.state_of(trials, now),
        settings=words.settings(settings),
        changed="",
    )
    if ended:
        newest_row, *_ = ended
        job_row.last_energy = newest_row.energy
        job_row.last_time = newest_row.time
        job_row.source = newest_row.source
    return job_row


def change_text(change: Mapping[str, Any], *, named: bool) -> str:
    """The last change of the live settings; if they cannot be used, why not.

    :param named: whether to tell whose it was.
    """
    if not change or "problem" in change:
        return str(change.get("problem", ""))
    moment = change["at"][:16].replace("T", " ")
    text = f"{moment} UTC: {change['what']}"
    if named:
        text = f"{change['by']}, {text}"
    return text


def measured(log: MeasuredLog) -> JobSaved:
    """The saving by the power limit of a job without batch sizes, and the next run."""
    saving = log.limit
    answer = JobSaved(word="Nothing", text="", next=log.comes_next)
    # Without a profile nobody knows what full power would have taken.
    if saving is None or saving.energy_j.value is None:
        answer.text = nothing_saved(log.job, log.trials[-1].observation)
        return answer
    cost = limit_cost(saving, log.weights)
    outcome = Outcome.of_cost(cost)
    answer.text = limit_sentence(saving, log.weights)
    answer.amounts = saved_text.amounts(cost, saving.energy_j, saving.time_s)
    answer.word = outcome.word
    if outcome.is_clear:
        answer.kind = outcome.colour
        answer.of = "by the power limit"
        answer.figure = _share(cost, answer.text)
    return answer


def _share(cost: Saved, exact: str) -> Figure:
    return Figure(value=cost.saved.value, text=saved_text.share_of_cost(cost), exact=exact)


def saved(trials: Sequence[Trial], analysis: JobAnalysis, *, all_of: bool = True) -> JobSaved:
    """The saving of one job, and its next run.

    :param all_of: the log holds no older runs.
    """
    saving = analysis.saving
    word = saved_text.job_word(saving)
    reason = saved_text.not_compared(saving)
    answer = JobSaved(
        word=word.text,
        kind=word.colour,
        text=saved_text.intervals(saving) if reason is None else reason.why,
        next=headline.comes_next(analysis.next_run),
        state=overview_state.drifted(analysis.log.belief(), trials),
    )
    if reason is not None:
        return answer
    answer.amounts = saved_text.amounts(
        saving.cost, saving.energy.saved, saving.time.saved, spent_j=saving.energy.spent
    )
    # A share of a saving that is not clear would be read as one that is.
    if word.colour:
        answer.figure = _share(saving.cost, answer.text)
        notes = []
        if not all_of:
            notes.append(f"newest {counted(saving.runs, 'run')}")
        if word.colour == "warn":
            notes.append(f"{OLD} the default")
        answer.of = ", ".join(notes)
    return answer


def controls(
    trials: Sequence[Trial],
    live: Mapping[str, Any],
    change: Mapping[str, Any],
    *,
    may_edit: bool,
    named: bool = True,
    audit_cost: str | None = None,
) -> Controls | None:
    """The settings of a job, and the effect of each change; None if the job cannot be read here.

    :param trials: its newest, oldest first.
    :param named: whether it is shown who changed them last.
    :param audit_cost: the expected cost of a run of the default; None: not known.
    """
    newest = trials[-1]
    job = readable_job(newest, live)
    # A form for a job of a newer version could write settings that it does not know.
    if job is None or not job.chooses_size:
        return None
    pinned = live.get("pin_batch_size")
    again = "the best known batch size"
    if pinned in job.batch_sizes:
        again = f"batch size {pinned}, which stays pinned"
    else:
        pinned = None
    audit = ""
    # A pin comes before an audit, which would never run.
    if pinned is None and not _asked_for_audit(trials, live.get("audit_after")):
        spent = ""
        if audit_cost is not None:
            spent = f", at a cost of about {audit_cost}"
        audit = (
            f"The next run trains batch size {job.default_batch_size}, the default{spent}. So its "
            "epochs on that slice of the data are measured, and what the job saved is known "
            f"better.{NOT_NOW}"
        )
    problem = str(change.get("problem", ""))
    return Controls(
        dag_id=newest.origin.dag_id,
        job_id=newest.job_id,
        batch_sizes=sorted(job.batch_sizes),
        default_batch_size=job.default_batch_size,
        paused=bool(live.get("pause_exploration")),
        pinned=pinned,
        changed="" if problem else change_text(change, named=named),
        problem=problem,
        may_edit=may_edit,
        pause_text=f"The next run, and each one after it, takes {again}; no other one is tried "
        f"until you let Zeus choose again.{NOT_NOW}",
        pin_text="The next run, and each one after it, trains with this batch size until you let "
        f"Zeus choose again, even if another one is cheaper.{NOT_NOW}",
        audit_text=audit,
        resume_text="From the next run on Zeus chooses the batch size, and may try other ones."
        f"{NOT_NOW}",
    )


def _asked_for_audit(trials: Sequence[Trial], after: int | None) -> bool:
    """Whether the next run measures the default already.

    :param after: number of the attempt after which a person asked for it; None: nobody did.
    """
    if after is None:
        return False
    if min(trial.number for trial in trials) > after + 1:
        return False  # more attempts followed than are known: it has begun
    newer = [trial for trial in trials if trial.number > after]
    return all(trial.planned.phase is not Phase.AUDIT for trial in newer)
