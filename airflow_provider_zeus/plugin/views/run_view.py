"""The tab of a run: from its trials to the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.model.cost import weights_of
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.plugin.text import headline, run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.waits import Wait
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.models import UNKNOWN, Answer, Detail, Figure, RunRow, Source, Tile
from airflow_provider_zeus.plugin.views.prices import Factors
from airflow_provider_zeus.plugin.views.run_models import AttemptDetail, Progress, TaskPart
from airflow_provider_zeus.reports.run_figures import RunSaving

NO_TRIAL = "This run has no Zeus trial: none of its tasks with a Zeus job has begun."
NOT_ENDED = "the run has not ended"
NO_DATA = "no optimizer step was made"
IDLE = 0.5  # share of the time; a GPU that works less is said to wait
WAITS = "its cost is not yet stored in the log"

PartKey = tuple[str, str, int]  # job, task, map index
Pending = Mapping[TrialKey, str]  # trials whose cost is not yet stored -> where it is kept


def parts_of(trials: Sequence[Trial]) -> dict[PartKey, list[Trial]]:
    """The trials of a run by job, task and map index, each in order of number."""
    parts: dict[PartKey, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.job_id, t.origin.task_id, t.origin.map_index, t.number)):
        parts.setdefault((trial.job_id, trial.origin.task_id, trial.origin.map_index), []).append(trial)
    return parts


def shared_job(parts: Mapping[PartKey, Sequence[Trial]], key: PartKey) -> str:
    """That other map indexes of the task of a part train the same job, in a sentence; empty where none does."""
    return run_notes.shared_job(t for other, own in parts.items() if other[:2] == key[:2] for t in own)


def job_of(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job as it was when this run was decided, costed with the present eta."""
    job = trials[-1].job
    return replace(job, eta=live["eta"]) if "eta" in live else job


def part(
    trials: Sequence[Trial],
    live: Mapping[str, Any],
    pending: Pending,
    saving: RunSaving | None,
    factors: Factors,
    *,
    shared: str = "",
    wait: Wait | None = None,
) -> TaskPart:
    """One part of the run.

    :param saving: None while it is not known.
    :param shared: that other map indexes train the job.
    :param wait: for a cheaper start; None: the job does not wait.
    """
    last, job = trials[-1], job_of(trials, live)
    (row,) = costs.rows_of(trials, job, pending)
    seen = [t.observation for t in trials if t.observation.time_s is not None]
    running = [t for t in trials if t.state is State.RUNNING and t.key not in pending]
    waiting = sum(t.key in pending for t in trials)
    empty = last.state is State.NO_DATA
    why_not = NOT_ENDED if running else WAITS if waiting else NO_DATA if empty else "nothing of it was measured"
    factors = factors.at_the_time(t.observation for t in trials)
    ended = saving if not running and not waiting and not empty else None
    below = row.state == State.EXHAUSTED.value
    return TaskPart(
        job_id=last.job_id,
        task_id=last.origin.task_id,
        map_index=row.map_index,
        title=last.origin.task_id if row.map_index is None else f"{last.origin.task_id} [{row.map_index}]",
        live=bool(running),
        progress=_progress(running[-1], job) if running else None,
        source=row.source,
        batch_size=row.attempts[-1].batch_size,
        state=row.state,
        state_text=row.state_text,
        state_why=row.state_why,
        headline=[
            _cost(row, trials, factors),
            *([] if ended is None else [headline.of_run(ended, row.source, factors)]),
        ],
        verdict=saved_text.RUNNING if running else saved_text.run_verdict(ended, why_not, below=below),
        tiles=[*_tiles(row, trials, job), saved_text.run_tile(ended, row.source, why_not)],
        notes=[
            *filter(None, (run_notes.bypassed(trials), shared, run_notes.untaught_run(row.run_type, job.learn_from))),
            *filter(None, [run_notes.deadline(trials)]),
            *([] if wait is None else [wait.text(min(t.opened_at for t in trials))]),
            *_notes(trials, waiting),
        ],
        facts=words.facts(job, weights_of(job, seen[-1]) if seen else None),
        settings=words.settings(live),
        attempts=[
            AttemptDetail(**detail.model_dump()) if t.key not in pending else _waiting(detail, pending[t.key])
            for t, detail in zip(trials, costs.details_of(trials, job, pending), strict=True)
        ],
    )


def _progress(trial: Trial, job: ZeusJob) -> Progress:
    """How far a running attempt is."""
    seen, bound = trial.observation, trial.planned.bound_epochs
    most = min((float(b) for b in (job.max_epochs, bound) if b is not None), default=None)
    if seen.epochs is None:
        done = "no epoch has been reported yet"
    else:
        given_up = ", then it is given up" if bound is not None and most == bound else ""
        of = "" if most is None else f" of at most {words.epochs(most).text}{given_up}"
        done = f"epoch {words.epochs(seen.epochs).text}{of}"
    parts = filter(None, (f"batch size {trial.batch_size}", done, words.metric(trial)))
    return Progress(text=f"Running: {', '.join(parts)}.", epochs=seen.epochs, max_epochs=most)


def _notes(trials: Sequence[Trial], waiting: int) -> list[str]:
    """What a reader must know beside the figures. ``waiting``: attempts whose cost is not yet stored."""
    notes = []
    count = max((t.observation.device_count or 1 for t in trials), default=1)
    if count > 1:
        notes.append(f"Energy is that of all {count} GPUs together; that of each GPU is shown below.")
    idle = [busy for t in trials if (busy := t.observation.gpu_busy) is not None and busy < IDLE]
    if idle:
        notes.append(
            f"The GPU worked {words.share(min(idle)).text} of the time. A GPU that waits draws less power: part of "
            "what looks cheap here is waiting. The task's log says how much of it was for data."
        )
    if waiting:
        what = "The cost of one attempt is" if waiting == 1 else f"The costs of {waiting} attempts are"
        notes.append(f"{what} not yet stored in the log: the job's next run stores it, or “airflow zeus reap”.")
    return notes


def _cost(row: RunRow, trials: Sequence[Trial], factors: Factors) -> Answer:
    """What the run cost so far: energy, time and what they are converted to, each as incomplete as its figures."""
    source, known = row.source, {}
    for name, figure in (("energy_j", row.energy), ("time_s", row.time)):
        each = (getattr(t.observation, name) or 0.0 for t in trials)
        known[name] = None if figure.text == UNKNOWN else math.fsum(each)
    energy_j, count = known["energy_j"], trials[-1].observation.device_count or 1
    shown = (row.time if energy_j is None else row.energy).text
    energy = row.energy if energy_j is None else words.energy(energy_j).model_copy(update={"exact": row.energy.exact})
    made = (("Money", factors.money(energy_j, known["time_s"], count)), ("CO₂e", factors.carbon(energy_j)))
    converted = [(name, figure) for name, figure in made if figure is not None]
    for figure in (*([] if energy_j is None else [energy]), *(f for _, f in converted if f.value is not None)):
        figure.text = f"{'≥ ' * shown.startswith('≥ ')}{figure.text}{' so far' * shown.endswith(' so far')}"
    clock = source if source.kind == words.SIMULATED else Source()  # simulated time is no clock's
    figures = [
        _figure_tile("Energy", energy, "", source),
        _figure_tile("Time", row.time, "training, validation included", clock),
        *(_figure_tile(name, figure, "", source) for name, figure in converted),
    ]
    return Answer(question=headline.COST, figures=figures)


def _tiles(row: RunRow, trials: Sequence[Trial], job: ZeusJob) -> list[Tile]:
    weighed = "time alone" if row.unit == "s" else f"energy and time at eta {job.eta:g}"
    return [_figure_tile("Cost", row.cost, weighed, row.source), _batch_size(row, job), _limit(row, trials)]


def _figure_tile(name: str, figure: Figure, note: str, source: Source) -> Tile:
    """A tile whose note is, where the figure is missing, why."""
    return Tile(name=name, figure=figure, note=figure.exact if figure.text == UNKNOWN else note, source=source)


def _batch_size(row: RunRow, job: ZeusJob) -> Tile:
    last = row.attempts[-1]
    parts = ["the default" if last.batch_size == job.default_batch_size else f"default {job.default_batch_size}"]
    for state, text in ((State.GIVEN_UP, "given up"), (State.EXHAUSTED, "below target"), (State.FAILED, "failed")):
        sizes = [str(t.batch_size) for t in row.attempts[:-1] if t.state == state.value]
        parts += [f"{' and '.join(sizes)} {text} before"] if sizes else []
    below = last.state == State.EXHAUSTED.value
    parts += ["below target"] if below else []
    figure = Figure(value=last.batch_size, text=str(last.batch_size))
    return Tile(name="Batch size", figure=figure, note="; ".join(parts), kind="warn" if below else "")


def _limit(row: RunRow, trials: Sequence[Trial]) -> Tile:
    seen = next((t.observation for t in reversed(trials) if t.observation.power_limit_w is not None), None)
    if seen is None:
        return Tile(name="Power limit", figure=row.limit, note=row.limit.exact)
    count = seen.device_count or 1
    parts = [
        "now" if seen is trials[-1].observation and trials[-1].state is State.RUNNING else "",
        "each GPU" if count > 1 else "",
        "" if seen.max_power_w is None else f"of at most {seen.max_power_w / count:,.0f} W",
    ]
    return Tile(name="Power limit", figure=words.watts(seen.power_limit_w or 0.0), note=", ".join(filter(None, parts)))


def _waiting(detail: Detail, where: str) -> AttemptDetail:
    """An attempt whose cost is not yet stored."""
    ended = f"It has ended; its cost is not yet stored in the log and is kept in {where}."
    return AttemptDetail(**{**detail.model_dump(), "state_text": costs.NOT_STORED, "ended": ended, "waits": where})
