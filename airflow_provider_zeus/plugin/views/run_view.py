"""The tab of a run, from its trials by task and map index. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from pydantic import BaseModel

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.groups import known_values, sum_of_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import (
    EXCLUDED,
    UNCAPPED,
    Observation,
    Phase,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.model.wire import without_none
from airflow_provider_zeus.plugin.answer_parts import (
    Answer,
    Chart,
    Detail,
    Figure,
    RunRow,
    Tile,
    Verdict,
)
from airflow_provider_zeus.plugin.charts import metric_chart, run_charts, run_curve
from airflow_provider_zeus.plugin.text import headline, run_notes, words
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.text.run_notes import StartWait
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.measured_view import (
    limit_verdict,
    saved_by_limit,
    use_tiles,
)
from airflow_provider_zeus.reports.dataset import gpu_s_of, runs_of
from airflow_provider_zeus.reports.job_remarks import RemarkKind, bypassed, of_ended
from airflow_provider_zeus.reports.limit_profiles import LimitSaving, limit_saving
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.units import UNKNOWN, at_least

NO_TRIAL = "Nothing of Zeus is in this run: none of its tasks with a Zeus job has begun."
WAITS = "its cost is not yet stored in the log"

Pending = Mapping[TrialKey, str]  # a cost that is not yet stored would read as missing


class PartKey(NamedTuple):
    """One task of a run."""

    job_id: str
    task_id: str
    map_index: int


def parts_of(
    trials: Sequence[Trial], order: Mapping[str, int] | None = None
) -> dict[PartKey, list[Trial]]:
    """The trials of a run by job, task and map index; the newest trial of each part comes last.

    :param order: position of each task in the graph of the DAG.
    """
    positions = order or {}

    def position(own: Sequence[Trial]) -> tuple[int, PartKey]:
        return positions.get(own[0].origin.task_id, len(positions)), _part_key(own)

    return {_part_key(own): own for own in sorted(runs_of(trials), key=position)}


def _part_key(own: Sequence[Trial]) -> PartKey:
    first = own[0]
    return PartKey(first.job_id, first.origin.task_id, first.origin.map_index)


def shared_job(parts: Mapping[PartKey, Sequence[Trial]], key: PartKey) -> str:
    """That other map indexes of a part's task train the same job, in a sentence; else empty."""
    # Of this task alone: the note names the task with most indexes, which may be another.
    same = [own for other, own in parts.items() if other._replace(map_index=key.map_index) == key]
    return run_notes.shared_job([*chain.from_iterable(same)])


def job_of_run(trials: Sequence[Trial], live: Mapping[str, Any]) -> ZeusJob:
    """The job as it was when this run was decided, costed with the present eta."""
    job = trials[-1].job
    if "eta" not in live:
        return job
    return replace(job, eta=live["eta"])


class Progress(BaseModel):
    """How far a running attempt is, by its last heartbeat."""

    text: str
    epochs: float | None
    max_epochs: float | None  # without an end a bar cannot show how far it got


@dataclass(frozen=True)
class RunPart:
    """The quick blocks of one part of the run.

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
    profile: Sequence[ProfileSample]

    @cached_property
    def job(self) -> ZeusJob:
        """The job as it was when this run was decided, costed with the present eta."""
        return job_of_run(self.trials, self.live)

    @cached_property
    def numbers(self) -> RunNumbers:
        """Of the run and its attempts."""
        return RunNumbers(self.trials)

    @cached_property
    def row(self) -> RunRow:
        """The cost of the part."""
        (row,) = costs.rows_of(self.trials, self.job, self.pending)
        return row

    @cached_property
    def observations(self) -> list[Observation]:
        """The figures of each attempt."""
        return [trial.observation for trial in self.trials]

    @cached_property
    def weights(self) -> Weights:
        """Those of its newest attempt that was measured."""
        # A later attempt that died at once has named no device.
        measured = [one for one in self.observations if one.time_s is not None]
        return weights_of(self.job, (measured or self.observations)[-1])

    @cached_property
    def running(self) -> list[Trial]:
        """The attempts that train now."""
        # An attempt with a pending result has ended, whatever its row says.
        stored = [trial for trial in self.trials if trial.key not in self.pending]
        return [trial for trial in stored if trial.state is State.RUNNING]

    @cached_property
    def waiting(self) -> int:
        """How many attempts have a cost that is not yet stored."""
        return sum(trial.key in self.pending for trial in self.trials)

    @cached_property
    def why_not(self) -> str:
        """Why its saving is not known; empty if nothing keeps it from being known."""
        if self.running:
            return "the run has not ended"
        if self.waiting:
            return WAITS
        if self.trials[-1].state is State.NO_DATA:
            return "no optimizer step was made"
        return ""

    @cached_property
    def ended(self) -> RunSaving | None:
        """Its saving, once it has ended."""
        if self.why_not:
            return None
        return self.saving

    @property
    def head(self) -> dict[str, Any]:
        """Which part of the run it is, and how it stands."""
        row = self.row
        title = row.task_id
        if row.map_index is not None:
            title += f" [{row.map_index}]"
        return {
            "job_id": self.trials[-1].job_id,
            "task_id": row.task_id,
            "map_index": row.map_index,
            "title": title,
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
        # Such a run has no epochs that we could count.
        if trial.planned.phase is Phase.MEASURED:
            what = "measured as it is"
            if self.job.mode == "optimize":
                what = "its power limit is tuned"
            return Progress(text=f"Running, and {what}.", epochs=None, max_epochs=None)
        epochs = trial.observation.epochs
        bound = trial.planned.bound_epochs
        bounds = [float(most) for most in (self.job.max_epochs, bound) if most is not None]
        most = min(bounds, default=None)
        done = "no epoch has been reported yet"
        if epochs is not None:
            done = f"epoch {words.epochs(epochs).text}"
            if most is not None:
                done += f" of at most {words.epochs(most).text}"
            # The reader must not take an exploring attempt for the whole run.
            if bound is not None and most == bound:
                done += ", then it is given up"
        parts = filter(None, (f"batch size {trial.batch_size}", done, words.metric(trial)))
        return Progress(text=f"Running: {', '.join(parts)}.", epochs=epochs, max_epochs=most)

    @property
    def headline(self) -> list[Answer]:
        """Its cost so far, and its saving."""
        factors = self.prices.at_the_time(self.observations)
        figures = self._figures(factors)
        if not self.job.chooses_size:
            figures += use_tiles(self.observations)
        answers = [Answer(question=headline.COST, figures=figures)]
        if self.ended is not None:
            answers += headline.of_run(self.ended, self.weights, self.row.source, factors=factors)
        if not self.running:
            answers += saved_by_limit(self.limit, self.weights)
        return answers

    def _figures(self, factors: Factors) -> list[Tile]:
        """Energy, time, money and carbon, the latter as incomplete as the former."""
        row = self.row
        energy = row.energy
        energy_j = None
        # The sum so far has a text and no value: money is made of it all the same.
        if energy.text != UNKNOWN:
            energy_j = sum_of_known(attempt.energy_j for attempt in self.observations)
            energy = words.energy(energy_j).model_copy(update={"exact": row.energy.exact})
        gpu_s = None
        if row.time.text != UNKNOWN:
            gpu_s = gpu_s_of(self.observations)
        incomplete = row.time if energy_j is None else row.energy
        figures = {"Energy": energy, "Time": row.time}
        converted = {"Money": factors.money(energy_j, gpu_s), "CO₂e": factors.carbon(energy_j)}
        figures |= without_none(converted)
        for name, figure in figures.items():
            # Money of a part of the energy is a part, too.
            if name != "Time" and figure.value is not None:
                _make_incomplete(figure, incomplete.text)
        if row.source.kind == "no-source":
            del figures["Energy"]
        return [headline.tile(name, figure) for name, figure in figures.items()]

    @property
    def limit(self) -> LimitSaving | None:
        """The saving by the power limit of a run without a batch size."""
        return limit_saving((t.observation for t in self.trials), self.profile)

    @property
    def verdict(self) -> Verdict:
        """Whether it was worth it."""
        if self.running:
            # What it saves changes until its last epoch.
            return run_notes.RUNNING
        if not self.job.chooses_size:
            return limit_verdict(
                self.limit, self.weights, self.job, newest=self.trials[-1].observation
            )
        return run_notes.run_verdict(
            self.ended,
            self.why_not or "nothing of it was measured",
            self.weights,
            below=self.row.state == State.EXHAUSTED.value,
            silent=self.row.state == State.NO_METRIC.value,
        )

    @property
    def notes(self) -> list[str]:
        """Notes without which the figures mislead."""
        trials = self.trials
        observations = self.observations
        notes = []
        excluded = self.live.get(EXCLUDED, ())
        if any(trial.number in excluded for trial in trials):
            notes.append(run_notes.EXCLUDED_RUN)
        notes += [bypassed(trials), self.shared]
        if self.job.chooses_size:
            notes.append(run_notes.untaught_run(self.row.run_type, self.job.learn_from))
        notes.append(run_notes.deadline(trials))
        if self.wait is not None:
            notes.append(self.wait.text(min(trial.opened_at for trial in trials)))
        remarks = of_ended(trials, self.numbers)
        # The wait for data is told below, with its price.
        notes += [remark.text for remark in remarks if remark.kind is not RemarkKind.DATA_WAIT]
        gpus = max(observation.devices for observation in observations)
        if gpus > 1:
            notes.append(
                f"Energy is that of all {gpus} GPUs together; that of each GPU is shown below."
            )
        notes += [run_notes.paused(observation) for observation in observations]
        prices = self.prices.at_the_time(observations)
        # A remedy with a price is read; one without is not.
        notes += [
            run_notes.waited(one, prices.money(one.data_wait_j, one.data_wait_gpu_s))
            for one in observations
        ]
        notes.append(run_notes.idle_gpu(observations))
        if self.row.source.kind == "no-source":
            notes.append(self.row.source.why)
        if self.waiting:
            notes.append(run_notes.not_stored(self.waiting))
        return list(filter(None, notes))

    @property
    def settings(self) -> list[str]:
        """Live settings, a text for each."""
        return words.live_settings(self.live)

    @property
    def facts(self) -> str:
        """Target and weights of the job, in a line."""
        measured = any(observation.time_s is not None for observation in self.observations)
        return words.facts(self.job, self.weights if measured else None)

    @property
    def attempts(self) -> list[Detail]:
        """Its attempts, in order."""
        details = []
        for trial in self.trials:
            detail = costs.detail_of(trial, self.job, self.numbers, self.pending)
            place = self.pending.get(trial.key)
            # The log still says "running", which would contradict the file beside it.
            if place:
                detail.state_text = costs.NOT_STORED
                detail.waits = place
                detail.ended = (
                    f"It has ended; its cost is not yet stored in the log and is kept in {place}."
                )
            details.append(detail)
        return details


@dataclass(frozen=True)
class RunTraces:
    """The slow blocks of a part: its charts.

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
        """The chart of power over time; None if nothing measures energy."""
        if any(t.observation.energy_source for t in self.trials) or not self.trials:
            return run_charts.power(self.drawn)
        return None

    @property
    def metric(self) -> Chart | None:
        """The chart of the metric by epoch; None if the log holds none."""
        return metric_chart.attempts(self.trials)

    @property
    def gpus(self) -> Chart | None:
        """The chart of the energy of each GPU; None if no attempt had several."""
        return run_charts.gpus(self.trials)

    @property
    def curves(self) -> list[Chart]:
        """A chart against the power limit for each batch size, the newest first."""
        newest: dict[int, Observation] = {}
        weights = None
        for trial in self.trials:
            if trial.observation.where is not None and trial.batch_size is not None:
                # A size that was tried twice has one profile: a chart for each would be equal.
                newest[trial.batch_size] = trial.observation
                weights = weights_of(self.job, trial.observation)
        if weights is None:
            return []
        curves = [
            run_curve.curve(
                self.profile,
                size,
                weights,
                ran_w=observation.power_limit_w,
                uncapped=UNCAPPED in observation.reasons,
            )
            for size, observation in newest.items()
        ]
        return known_values(reversed(curves))


def _make_incomplete(figure: Figure, by: str) -> None:
    """Mark a figure as incomplete as the text of another one."""
    if by.startswith("≥ "):
        figure.text = at_least(figure.text)
    if by.endswith(" so far"):
        figure.text += " so far"
