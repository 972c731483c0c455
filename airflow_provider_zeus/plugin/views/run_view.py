"""What the tab of a run is made of: its trials by task and map index. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    EXCLUDED,
    UNCAPPED,
    Phase,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.plugin.charts import run_charts, run_curve
from airflow_provider_zeus.plugin.text import headline, run_notes, words
from airflow_provider_zeus.plugin.text.run_notes import StartWait
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.factors import Factors
from airflow_provider_zeus.plugin.views.measured_view import (
    limit_sentence,
    nothing_saved,
    saved_by_limit,
    use_tiles,
)
from airflow_provider_zeus.plugin.views.models import (
    Answer,
    Chart,
    Detail,
    RunRow,
    Table,
    Verdict,
)
from airflow_provider_zeus.reports.dataset import gpu_s_of, runs_of
from airflow_provider_zeus.reports.job_remarks import of_ended
from airflow_provider_zeus.reports.limit_profiles import LimitSaving, limit_saving
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.units import UNKNOWN, at_least

NO_TRIAL = "This run has no Zeus trial: none of its tasks with a Zeus job has begun."
WAITS = "its cost is not yet stored in the log"

PartKey = tuple[str, str, int]  # job, task, map index
Pending = Mapping[TrialKey, str]  # trials whose cost is not yet stored -> where it is kept


def parts_of(trials: Sequence[Trial]) -> dict[PartKey, list[Trial]]:
    """The trials of a run by job, task and map index; what each part ends with comes last."""
    parts = {(own[0].job_id, own[0].origin.task_id, own[0].origin.map_index): own for own in runs_of(trials)}
    return dict(sorted(parts.items()))


def shared_job(parts: Mapping[PartKey, Sequence[Trial]], key: PartKey) -> str:
    """That other map indexes of the task of a part train the same job, in a sentence; empty where none does."""
    return run_notes.shared_job(t for other, own in parts.items() if other[:2] == key[:2] for t in own)


def job_of_run(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job as it was when this run was decided, costed with the present eta."""
    job = trials[-1].job
    return replace(job, eta=live["eta"]) if "eta" in live else job


class Progress(BaseModel):
    """How far a running attempt is, by its last heartbeat."""

    text: str
    epochs: float | None
    max_epochs: float | None  # the most it may take: its bound, else the job's


@dataclass(frozen=True)
class RunPart:
    """What the quick blocks of one part of the run are made of.

    :param trials: as :func:`parts_of` gives them.
    :param saving: None while it is not known.
    :param shared: that other map indexes train the job, in a sentence.
    :param wait: for a cheaper start; None: the job does not wait.
    """

    trials: Sequence[Trial]
    live: Mapping[str, Any]
    pending: Pending
    saving: RunSaving | None
    prices: Factors
    shared: str
    wait: StartWait | None
    profile: Sequence[ProfileSample]  # of the power limits of a run without a batch size

    @cached_property
    def job(self) -> ZeusJob:
        """The job as it was when this run was decided, costed with the present eta."""
        return job_of_run(self.trials, self.live)

    @cached_property
    def row(self) -> RunRow:
        """What the part cost."""
        (row,) = costs.rows_of(self.trials, self.job, self.pending)
        return row

    @cached_property
    def weights(self) -> Weights:
        """Those of its newest attempt that was measured."""
        seen = [t.observation for t in self.trials if t.observation.time_s is not None] or [self.trials[-1].observation]
        return weights_of(self.job, seen[-1])

    @cached_property
    def running(self) -> list[Trial]:
        """The attempts that train now."""
        return [t for t in self.trials if t.state is State.RUNNING and t.key not in self.pending]

    @cached_property
    def waiting(self) -> int:
        """How many attempts have a cost that is not yet stored."""
        return sum(t.key in self.pending for t in self.trials)

    @cached_property
    def why_not(self) -> str:
        """Why its saving is not known."""
        if self.running:
            return "the run has not ended"
        if self.waiting:
            return WAITS
        return "no optimizer step was made" if self.trials[-1].state is State.NO_DATA else "nothing of it was measured"

    @cached_property
    def ended(self) -> RunSaving | None:
        """Its saving, once it has ended."""
        over = not self.running and not self.waiting and self.trials[-1].state is not State.NO_DATA
        return self.saving if over else None

    @property
    def head(self) -> dict[str, Any]:
        """Which part of the run it is, and how it stands."""
        row, task_id = self.row, self.trials[-1].origin.task_id
        return {
            "job_id": self.trials[-1].job_id,
            "task_id": task_id,
            "map_index": row.map_index,
            "title": task_id if row.map_index is None else f"{task_id} [{row.map_index}]",
            "live": bool(self.running),
            "source": row.source,
            "state": row.state,
            "state_text": row.state_text,
            "state_why": row.state_why,
        }

    @property
    def progress(self) -> Progress | None:
        """How far the attempt that trains now is."""
        if not self.running:
            return None
        trial = self.running[-1]
        seen, bound = trial.observation, trial.planned.bound_epochs
        most = min((float(b) for b in (self.job.max_epochs, bound) if b is not None), default=None)
        if seen.epochs is None:
            done = "no epoch has been reported yet"
        else:
            given_up = ", then it is given up" if bound is not None and most == bound else ""
            of = "" if most is None else f" of at most {words.epochs(most).text}{given_up}"
            done = f"epoch {words.epochs(seen.epochs).text}{of}"
        if trial.planned.phase is Phase.MEASURED:
            return Progress(text="Running, and measured as it is.", epochs=None, max_epochs=None)
        parts = filter(None, (f"batch size {trial.batch_size}", done, words.metric(trial)))
        return Progress(text=f"Running: {', '.join(parts)}.", epochs=seen.epochs, max_epochs=most)

    @property
    def headline(self) -> list[Answer]:
        """What it cost so far, and what it saved; what energy and time are converted to is as incomplete as they."""
        row, seen = self.row, [t.observation for t in self.trials]
        factors, source = self.prices.at_the_time(seen), row.source
        energy_j = None if row.energy.text == UNKNOWN else math.fsum(o.energy_j or 0.0 for o in seen)
        gpu_s = None if row.time.text == UNKNOWN else gpu_s_of(seen)
        shown = (row.time if energy_j is None else row.energy).text
        energy = row.energy
        if energy_j is not None:
            energy = words.energy(energy_j).model_copy(update={"exact": row.energy.exact})
        made = (("Money", factors.money(energy_j, gpu_s)), ("CO₂e", factors.carbon(energy_j)))
        converted = [(name, figure) for name, figure in made if figure is not None]
        for figure in (*([] if energy_j is None else [energy]), *(f for _, f in converted if f.value is not None)):
            text = at_least(figure.text) if shown.startswith("≥ ") else figure.text
            figure.text = f"{text}{' so far' * shown.endswith(' so far')}"
        measures = source.kind != "no-source"
        told = ([("Energy", energy)] if measures else []) + [("Time", row.time), *converted]
        figures = [headline.tile(name, figure) for name, figure in told]
        figures += [] if self.job.chooses_size else use_tiles(seen)
        saved = [] if self.ended is None else headline.of_run(self.ended, self.weights, source, factors)
        saved += [] if self.running else saved_by_limit(self.limit, self.weights)
        return [Answer(question=headline.COST, figures=figures), *saved]

    @property
    def limit(self) -> LimitSaving | None:
        """What the power limit saved of a run without a batch size."""
        return limit_saving((t.observation for t in self.trials), self.profile)

    @property
    def verdict(self) -> Verdict:
        """Whether it was worth it."""
        if self.running:
            return run_notes.RUNNING
        if not self.job.chooses_size:
            said = limit_sentence(self.limit, self.weights) or nothing_saved(self.job, self.trials[-1].observation)
            return Verdict(kind="unknown", word="Measured", text=f"{said}.")
        below, silent = (self.row.state == state.value for state in (State.EXHAUSTED, State.NO_METRIC))
        return run_notes.run_verdict(self.ended, self.why_not, self.weights, below=below, silent=silent)

    @property
    def notes(self) -> list[str]:
        """What a reader must know beside the figures."""
        trials, seen, waiting = self.trials, [t.observation for t in self.trials], self.waiting
        learns = self.job.chooses_size
        untaught = run_notes.untaught_run(self.row.run_type, self.job.learn_from) if learns else ""
        wait = "" if self.wait is None else self.wait.text(min(t.opened_at for t in trials))
        excluded = any(t.number in self.live.get(EXCLUDED, ()) for t in trials)
        notes = [run_notes.EXCLUDED_RUN] if excluded else []
        notes += [run_notes.bypassed(trials), self.shared, untaught, run_notes.deadline(trials), wait]
        notes += [remark.text for remark in of_ended(trials)]
        if (count := max(o.device_count or 1 for o in seen)) > 1:
            notes.append(f"Energy is that of all {count} GPUs together; that of each GPU is shown below.")
        prices = self.prices.at_the_time(seen)
        notes += [run_notes.paused(o) for o in seen]
        notes += [run_notes.waited(o, prices.money(o.data_wait_j, o.data_wait_gpu_s)) for o in seen]
        if idle := [o.gpu_busy for o in seen if o.gpu_busy is not None and o.gpu_busy < 0.5]:
            notes.append(
                f"The GPU worked {words.share(min(idle)).text} of the time. A GPU that waits draws less power: part of "
                "what looks cheap here is waiting. The task's log says how much of it was for data."
            )
        notes += [self.row.source.why] if self.row.source.kind == "no-source" else []
        if waiting:
            what = "The cost of one attempt is" if waiting == 1 else f"The costs of {waiting} attempts are"
            notes.append(f"{what} not yet stored in the log: the job's next run stores it, or “airflow zeus repair”.")
        return [*filter(None, notes)]

    @property
    def facts(self) -> str:
        """Target and weights of the job, in a line."""
        measured = any(t.observation.time_s is not None for t in self.trials)
        return words.facts(self.job, self.weights if measured else None)

    @property
    def attempts(self) -> list[Detail]:
        """Its attempts, in order."""
        details = []
        for trial in self.trials:
            detail = costs.detail_of(trial, self.job, self.pending)
            if where := self.pending.get(trial.key):
                detail.state_text, detail.waits = costs.NOT_STORED, where
                detail.ended = f"It has ended; its cost is not yet stored in the log and is kept in {where}."
            details.append(detail)
        return details


@dataclass(frozen=True)
class RunTraces:
    """What the slow blocks of a part are made of: its charts.

    :param drawn: each attempt with its power over time.
    :param profile: of the device that the newest attempt trained on.
    """

    drawn: Sequence[tuple[Trial, Sequence[PowerPoint]]]
    profile: Sequence[ProfileSample]
    job: ZeusJob

    @property
    def trials(self) -> list[Trial]:
        """Its attempts."""
        return [trial for trial, _ in self.drawn]

    @property
    def power(self) -> Chart | None:
        """The chart of power over time; None where nothing measures energy."""
        measures = any(t.observation.energy_source for t in self.trials) or not self.trials
        return run_charts.power(self.drawn) if measures else None

    @property
    def curves(self) -> list[Chart]:
        """A chart of energy and time against the power limit for each batch size, the newest first."""
        measured = [t for t in self.trials if t.observation.where is not None and t.batch_size is not None]
        if not measured:
            return []
        weights = weights_of(self.job, measured[-1].observation)
        newest = {t.batch_size: t.observation for t in measured}
        curves = [
            run_curve.curve(self.profile, size, weights, seen.power_limit_w, uncapped=UNCAPPED in seen.reasons)
            for size, seen in newest.items()
        ]
        return [curve for curve in reversed(curves) if curve]


def summary(parts: Sequence[Mapping[str, Any]]) -> Table | None:
    """The parts of a run side by side; None where there is one."""
    if len(parts) < 2:
        return None
    rows = []
    for part in parts:
        figures = {tile.name: tile.figure.text for tile in part["headline"][0].figures}
        energy, time = (figures.get(name, UNKNOWN) for name in ("Energy", "Time"))
        size = words.size(part["attempts"][-1].batch_size)
        ended = part["verdict"].word, part["state_text"], part["source"].text or UNKNOWN
        rows.append([part["title"], part["job_id"], size, energy, time, *ended])
    return Table(
        caption="Tasks of this run",
        columns=["Task", "Job", "Batch size", "Energy", "Time", "Verdict", "State", "Source"],
        numeric=[False, False, True, True, True, False, False, False],
        rows=rows,
    )
