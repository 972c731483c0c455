"""The page of all jobs: from the newest trials of each to rows, and what one job saved. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.evidence import Evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.saving import saving
from airflow_provider_zeus.optimizer.trial import ProfileSample, State, Trial
from airflow_provider_zeus.plugin import costs, overview_state, words
from airflow_provider_zeus.plugin.models import Figure, Source
from airflow_provider_zeus.plugin.overview_models import Controls, JobRow, JobSaved

NO_JOBS = (
    "There is no Zeus job yet. Decorate a training task with @task.zeus(ZeusJob(batch_sizes=[…], default_batch_size=…, "
    "target=…, max_epochs=…)), give it the parameter “run”, and trigger its DAG: the job stands here from its first "
    "run on. Jobs of DAGs that you may not read are not shown."
)
Live = tuple[Mapping[str, Any], Mapping[str, Any]]  # live settings, and who changed them last or their "problem"


def rows(trials: Iterable[Trial], allowed: Collection[str], live: Mapping[str, Live], now: float) -> list[JobRow]:
    """A row for each job of each DAG in ``allowed``. ``trials``: newest of each, by DAG, job and number."""
    seen = [t for t in trials if t.origin.dag_id in allowed]
    groups = groupby(seen, key=lambda t: (t.origin.dag_id, t.job_id))
    return [_row(list(group), live.get(job_id, ({}, {})), now) for (_, job_id), group in groups]


def job_of(newest: Trial, live: Mapping[str, Any]) -> ZeusJob | None:
    """The job as its newest trial knew it; None where a newer version wrote it."""
    try:
        return ZeusJob.from_dict(newest.spec).with_settings(live)
    except JobSpecError:
        return None


def _row(trials: Sequence[Trial], live: Live, now: float) -> JobRow:
    settings, changed = live
    newest = trials[-1]
    job = job_of(newest, settings)
    made = costs.rows_of(trials, job) if job else []
    ended = [r for r in made if r.state != State.RUNNING.value]
    why = "no run has ended yet" if job else "a newer version of the provider wrote this job"
    last = overview_state.runs_of(trials)[-1]
    return JobRow(
        dag_id=newest.origin.dag_id,
        job_id=newest.job_id,
        run_id=newest.origin.run_id,
        began_at=last[0].opened_at,
        batch_size=last[-1].batch_size,
        outcome=last[-1].state.value,
        outcome_text=words.state(last[-1].state),
        running=last[-1].state is State.RUNNING,
        last_cost=ended[0].cost if ended else words.missing(why),
        source=ended[0].source if ended else Source(),
        trend=overview_state.trend_of(ended),
        state=overview_state.state_of(trials, now),
        settings=words.settings(settings),
        changed=said(changed),
    )


def said(change: Mapping[str, Any]) -> str:
    """Who changed the live settings last, and when; where they cannot be used, why not."""
    if "problem" in change:
        return str(change["problem"])
    return f"{change['by']}, {change['at'][:16].replace('T', ' ')} UTC: {change['what']}" if change else ""


def unreadable() -> JobSaved:
    """Of a job that a newer version wrote."""
    why = "no run of it can be read here"
    return JobSaved(word="Not known", kind="warn", figure=words.missing(why), text=why, source=Source())


def saved(trials: Sequence[Trial], log: Evidence, profiles: Sequence[ProfileSample], *, all_of: bool) -> JobSaved:
    """What the runs of one job saved. ``log``: its fold; ``all_of``: the log holds no older runs than these."""
    state = overview_state.drifted(log.belief(), trials)
    found = saving(log, log.job, rng=random.Random(0), profiles=profiles)
    total, unit = found.cost.saved, found.cost.unit
    source = words.badge([found.where[2]]) if found.where else Source()
    if total.value is None:
        text = f"Not known: {total.reason}."
        return JobSaved(
            word="Not known", kind="warn", figure=words.missing(text), text=text, source=source, state=state
        )
    word, kind = ("Saved", "good") if total.value >= 0 else ("Lost", "bad")
    amount = words.cost(abs(total.value), unit)
    base = found.cost.baseline.value
    share = f" ({abs(total.value) / base:.0%})".replace("%", " %") if base else ""
    runs = "1 run" if found.runs == 1 else f"{found.runs:,} runs"
    of = "" if all_of else f"newest {runs}"
    text = (
        f"{word} {amount.text}{share} over {'its' if all_of else 'the newest'} {runs} against always batch size "
        f"{found.default_batch_size} at full power"
    )
    if total.low is not None and total.high is not None and total.low < 0 < total.high:
        word, kind = f"Undecided ({word.lower()})", "warn"
        text += ", within what chance explains"
    figure = Figure(value=total.value, text=f"{amount.text}{share}", exact=f"{text}.")
    return JobSaved(word=word, kind=kind, figure=figure, text=f"{text}.", of=of, source=source, state=state)


def controls(newest: Trial, live: Mapping[str, Any], change: Mapping[str, Any], *, may_edit: bool) -> Controls | None:
    """What may be changed of a job, and what a change does; None where the job cannot be read here."""
    job = job_of(newest, live)
    if job is None:
        return None
    paused, pinned = bool(live.get("pause_exploration")), live.get("pin_batch_size")
    pinned = pinned if pinned in job.batch_sizes else None
    again = f"batch size {pinned}, which stays pinned" if pinned else "the batch size believed cheapest"
    return Controls(
        dag_id=newest.origin.dag_id,
        job_id=newest.job_id,
        batch_sizes=sorted(job.batch_sizes),
        default_batch_size=job.default_batch_size,
        paused=paused,
        pinned=pinned,
        changed="" if "problem" in change else said(change),
        problem=said(change) if "problem" in change else "",
        may_edit=may_edit,
        pause_text=(
            "From the next run on Zeus may try other batch sizes again. A run that trains now is not changed."
            if paused
            else f"The next run, and each one after it, takes {again}; no other one is tried until exploration is "
            "resumed. A run that trains now is not changed."
        ),
        pin_text="The next run, and each one after it, trains with this batch size and no other one, whatever was "
        "learned, until it is unpinned. A run that trains now is not changed.",
        unpin_text="From the next run on Zeus chooses the batch size again. A run that trains now is not changed."
        + (" Exploration stays paused." if paused else ""),
    )
