"""The page of all jobs: a row from the newest trials of each job, what one job saved, its controls. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, State, Trial
from airflow_provider_zeus.plugin.text import headline, saved_text, words
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.plugin.views import costs, overview_state
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis
from airflow_provider_zeus.plugin.views.measured_view import MeasuredLog, limit_cost, limit_sentence, nothing_saved
from airflow_provider_zeus.plugin.views.models import Controls, Figure, JobRow, JobSaved, Source
from airflow_provider_zeus.reports.baseline import OLD
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.reports.month_spent import DagAbout
from airflow_provider_zeus.units import counted

NO_JOBS = (
    "There is no Zeus job yet. Decorate a training task with @task.zeus(ZeusJob(batch_sizes=[…], default_batch_size=…, "
    "target=…, max_epochs=…)), give it the parameter “run”, and trigger its DAG: the job is shown here from its "
    "first run on. Jobs of DAGs that you may not read are not shown."
)
Live = tuple[Mapping[str, Any], Mapping[str, Any]]  # live settings, and who changed them last or their "problem"


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
    dags, trials = about or {}, list(trials)
    of_others = {t.job_id for t in trials if t.origin.dag_id not in allowed}  # too
    groups = groupby((t for t in trials if t.origin.dag_id in allowed), key=lambda t: (t.origin.dag_id, t.job_id))
    found = []
    for (dag_id, job_id), group in groups:
        settings, change = live.get(job_id, ({}, {}))
        changed = change_text(change, named=job_id not in of_others)
        found.append(_row(list(group), settings, changed, now, dags.get(dag_id, DagAbout())))
    return found


def readable_job(newest: Trial, live: Mapping[str, Any]) -> ZeusJob | None:
    """The job of its newest trial, with the live settings applied; None where a newer version wrote it."""
    try:
        return newest.job.with_settings(live)
    except JobSpecError:
        return None


def _row(trials: Sequence[Trial], settings: Mapping[str, Any], changed: str, now: float, about: DagAbout) -> JobRow:
    newest = trials[-1]
    job = readable_job(newest, settings)
    found = costs.rows_of(trials, job) if job else []
    ended = [r for r in found if r.state != State.RUNNING.value]
    why = "no run has ended yet" if job else "a newer version of the provider wrote this job"
    last = runs_of(trials)[-1]
    return JobRow(
        dag_id=newest.origin.dag_id,
        job_id=newest.job_id,
        run_id=newest.origin.run_id,
        began_at=last[0].opened_at,
        batch_size=last[-1].batch_size,
        outcome=last[-1].state.value,
        outcome_text=words.state(last[-1].state),
        last_energy=ended[0].energy if ended else words.missing(why),
        last_time=ended[0].time if ended else words.missing(why),
        tags=list(about.tags),
        owners=list(about.owners),
        source=ended[0].source if ended else Source(),
        trend=overview_state.trend_of(ended),
        state=overview_state.state_of(trials, now),
        settings=words.settings(settings),
        changed=changed,
    )


def change_text(change: Mapping[str, Any], *, named: bool) -> str:
    """The last change of the live settings; where they cannot be used, why not. ``named``: whether to tell whose."""
    if not change or "problem" in change:
        return str(change.get("problem", ""))
    return f"{change['by'] + ', ' if named else ''}{change['at'][:16].replace('T', ' ')} UTC: {change['what']}"


def measured(log: MeasuredLog) -> JobSaved:
    """What the power limit saved of a job that chooses no batch size, and what comes next."""
    found, answer = log.limit, JobSaved(word="Nothing", text="", next=log.comes_next)
    if found is None or found.energy_j.value is None:
        answer.text = nothing_saved(log.job, log.trials[-1].observation)
        return answer
    cost = limit_cost(found, log.weights)
    outcome, said = Outcome.of_cost(cost), limit_sentence(found, log.weights)
    answer.text = said
    answer.amounts = saved_text.amounts(cost, found.energy_j, found.time_s)
    answer.word = outcome.word
    if outcome.kind != "even":
        answer.kind, answer.of = outcome.colour, "by the power limit"
        answer.figure = Figure(value=cost.saved.value, text=saved_text.share_of_cost(cost), exact=answer.text)
    return answer


def saved(trials: Sequence[Trial], known: JobAnalysis, *, all_of: bool = True) -> JobSaved:
    """What the runs of one job saved, and what comes next. ``all_of``: the trial log holds no older runs."""
    found = known.saving
    word, kind = saved_text.job_word(found)
    why = saved_text.not_compared(found)[1]
    answer = JobSaved(
        word=word,
        kind=kind,
        text=why or saved_text.intervals(found),
        next=headline.comes_next(known.next_run),
        state=overview_state.drifted(known.log.belief(), trials),
    )
    if why:
        return answer
    answer.amounts = saved_text.amounts(found.cost, found.energy.saved, found.time.saved, found.energy.spent)
    if kind:
        share = saved_text.share_of_cost(found.cost)
        answer.figure = Figure(value=found.cost.saved.value, text=share, exact=answer.text)
        newest = "" if all_of else f"newest {counted(found.runs, 'run')}"
        answer.of = ", ".join(filter(None, (newest, f"{OLD} the default" * (kind == "warn"))))
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
    """What may be changed of a job, and what each change does; None where the job cannot be read here.

    :param trials: its newest, oldest first.
    :param named: whether it is shown who changed them last.
    :param audit_cost: what a run of the default is expected to cost; None: not known.
    """
    newest = trials[-1]
    job = readable_job(newest, live)
    if job is None or not job.chooses_size:
        return None
    paused, pinned = bool(live.get("pause_exploration")), live.get("pin_batch_size")
    pinned = pinned if pinned in job.batch_sizes else None
    after: Any = live.get("audit_after")  # where more trials followed than are known, it has begun
    asked_for = after is not None and min(t.number for t in trials) <= after + 1
    asked_for = asked_for and not any(t.planned.phase is Phase.AUDIT and t.number > after for t in trials)
    spent = "" if audit_cost is None else f", at a cost of about {audit_cost}"
    audit = (
        f"The next run trains batch size {job.default_batch_size}, the default{spent}. So its epochs on that slice of "
        "the data are measured, and what the job saved is known better. A run that is training now is not changed."
    )
    again = f"batch size {pinned}, which stays pinned" if pinned else "the best known batch size"
    return Controls(
        dag_id=newest.origin.dag_id,
        job_id=newest.job_id,
        batch_sizes=sorted(job.batch_sizes),
        default_batch_size=job.default_batch_size,
        paused=paused,
        pinned=pinned,
        changed="" if "problem" in change else change_text(change, named=named),
        problem=str(change.get("problem", "")),
        may_edit=may_edit,
        pause_text=f"The next run, and each one after it, takes {again}; no other one is tried until you let Zeus "
        "choose again. A run that is training now is not changed.",
        pin_text="The next run, and each one after it, trains with this batch size until you let Zeus choose again, "
        "even if another one is cheaper. A run that is training now is not changed.",
        audit_text="" if pinned or asked_for else audit,
        resume_text="From the next run on Zeus chooses the batch size, and may try other ones. A run that is training "
        "now is not changed.",
    )
