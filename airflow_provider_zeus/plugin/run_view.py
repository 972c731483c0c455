"""The tab of a run: from its trials to the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.run_saving import RunSaving
from airflow_provider_zeus.optimizer.trial import State, Trial, TrialKey
from airflow_provider_zeus.plugin import costs, run_words, words
from airflow_provider_zeus.plugin.models import UNKNOWN, Figure, Row, Source
from airflow_provider_zeus.plugin.prices import Factors
from airflow_provider_zeus.plugin.run_models import Attempt, Part, Tile

NO_TRIAL = "This run has no Zeus trial: none of its tasks with a Zeus job has begun."
NOT_ENDED = "the run has not ended"
NO_DATA = "no optimizer step was made"
WAITS = "its cost is not yet told to the log"

PartKey = tuple[str, str, int]  # job, task, map index
Kept = Mapping[TrialKey, str]  # trials whose cost is not yet told -> where it is kept


def parts_of(trials: Sequence[Trial]) -> dict[PartKey, list[Trial]]:
    """The trials of a run by job, task and map index, each in order of number."""
    parts: dict[PartKey, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.job_id, t.origin.task_id, t.origin.map_index, t.number)):
        parts.setdefault((trial.job_id, trial.origin.task_id, trial.origin.map_index), []).append(trial)
    return parts


def job_of(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job as this run was decided, costed with the present eta."""
    job = ZeusJob.from_dict(trials[-1].spec)
    return replace(job, eta=live["eta"]) if "eta" in live else job


def is_live(trials: Sequence[Trial], kept: Kept) -> bool:
    """Whether an attempt runs, as far as anybody can tell."""
    return any(t.state is State.RUNNING and t.key not in kept for t in trials)


def part(
    trials: Sequence[Trial], live: Mapping[str, Any], kept: Kept, saving: RunSaving | None, factors: Factors
) -> Part:
    """One part of the run. ``saving``: None while nothing can be said of it."""
    last, job = trials[-1], job_of(trials, live)
    (row,) = costs.rows_of(trials, job, kept)
    seen = [t.observation for t in trials if t.observation.time_s is not None]
    running = [t for t in trials if t.state is State.RUNNING and t.key not in kept]
    waiting = sum(t.key in kept for t in trials)
    empty = last.state is State.NO_DATA
    why_not = NOT_ENDED if running else WAITS if waiting else NO_DATA if empty else "nothing of it was measured"
    ended = saving if not running and not waiting and not empty else None
    return Part(
        job_id=last.job_id,
        task_id=last.origin.task_id,
        map_index=row.map_index,
        title=last.origin.task_id if row.map_index is None else f"{last.origin.task_id} [{row.map_index}]",
        live=bool(running),
        progress=run_words.progress(running[-1], job) if running else None,
        source=row.source,
        batch_size=row.attempts[-1].batch_size,
        state=row.state,
        state_text=row.state_text,
        state_why=row.state_why,
        verdict=run_words.RUNNING
        if running
        else run_words.verdict(ended, why_not, below=row.state == State.EXHAUSTED.value),
        tiles=_tiles(row, trials, job, factors, run_words.saving_tile(ended, why_not)),
        notes=run_words.notes(trials, waiting),
        facts=words.facts(job, costs.weights_of(job, seen[-1]) if seen else None),
        settings=words.settings(live),
        attempts=_attempts(trials, job, kept),
    )


def _tiles(row: Row, trials: Sequence[Trial], job: ZeusJob, factors: Factors, saving: Tile) -> list[Tile]:
    source = row.source
    clock = source if source.kind == words.SIMULATED else Source()  # its time is simulated too; others have a clock
    weighed = "time alone" if row.unit == "s" else f"energy and time at eta {job.eta:g}"
    return [
        Tile(name="Energy", figure=row.energy, note=_why_none(row.energy), source=source),
        Tile(name="Time", figure=row.time, note=_why_none(row.time) or "training, validation included", source=clock),
        Tile(name="Cost", figure=row.cost, note=_why_none(row.cost) or weighed, source=source),
        *_converted(row, trials, factors, source),
        _batch_size(row, job),
        _limit(row, trials),
        saving.model_copy(update={"source": source if saving.figure.value is not None else Source()}),
    ]


def _converted(row: Row, trials: Sequence[Trial], factors: Factors, source: Source) -> list[Tile]:
    """Money and carbon, where their factors are set: of what is known, as energy and time are."""
    joules, seconds = (_known(f, trials, name) for f, name in ((row.energy, "energy_j"), (row.time, "time_s")))
    count = trials[-1].observation.device_count or 1
    made = [("Money", factors.money(joules, seconds, count)), ("Carbon", factors.carbon(joules))]
    like = row.energy if joules is not None else row.time
    return [Tile(name=name, figure=_as(like, figure), source=source) for name, figure in made if figure is not None]


def _why_none(figure: Figure) -> str:
    return figure.exact if figure.text == UNKNOWN else ""


def _known(figure: Figure, trials: Sequence[Trial], name: str) -> float | None:
    """The sum that a figure shows, whole or in part; None where it shows none."""
    if figure.text == UNKNOWN:
        return None
    return math.fsum(getattr(t.observation, name) or 0.0 for t in trials)


def _as(shown: Figure, made: Figure) -> Figure:
    """A conversion of a figure is as incomplete as the figure."""
    head = "≥ " if shown.text.startswith("≥ ") and made.value is not None else ""
    tail = " so far" if shown.text.endswith(" so far") and made.value is not None else ""
    return made.model_copy(update={"text": f"{head}{made.text}{tail}"})


def _batch_size(row: Row, job: ZeusJob) -> Tile:
    last = row.attempts[-1]
    note = "the default" if last.batch_size == job.default_batch_size else f"default {job.default_batch_size}"
    for state, said in ((State.GIVEN_UP, "given up"), (State.EXHAUSTED, "below target"), (State.FAILED, "failed")):
        gone = [str(t.batch_size) for t in row.attempts[:-1] if t.state == state.value]
        note = f"{note}; {' and '.join(gone)} {said} before" if gone else note
    below = last.state == State.EXHAUSTED.value
    return Tile(
        name="Batch size",
        figure=Figure(value=last.batch_size, text=str(last.batch_size)),
        note=f"{note}; below target" if below else note,
        kind="warn" if below else "",
    )


def _limit(row: Row, trials: Sequence[Trial]) -> Tile:
    seen = next((t.observation for t in reversed(trials) if t.observation.power_limit_w is not None), None)
    if seen is None:
        return Tile(name="Power limit", figure=row.limit, note=row.limit.exact)
    most = None if seen.max_power_w is None else seen.max_power_w / (seen.device_count or 1)
    each = "each GPU" if (seen.device_count or 1) > 1 else ""
    now = "now" if seen is trials[-1].observation and trials[-1].state is State.RUNNING else ""
    parts = [now, each, "" if most is None else f"of at most {most:,.0f} W"]
    return Tile(name="Power limit", figure=words.watts(seen.power_limit_w or 0.0), note=", ".join(filter(None, parts)))


def _attempts(trials: Sequence[Trial], job: ZeusJob, kept: Kept) -> list[Attempt]:
    found = []
    for trial, detail in zip(trials, costs.details_of(trials, job, kept), strict=True):
        attempt = Attempt(**detail.model_dump(), waits=kept.get(trial.key, ""))
        if attempt.waits:
            attempt.state_text = costs.NOT_TOLD
            attempt.ended = f"It ended; its cost is not yet told to the log and is kept in {attempt.waits}."
        found.append(attempt)
    return found
