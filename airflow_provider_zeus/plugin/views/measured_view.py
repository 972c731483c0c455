"""The tab of a DAG whose job chooses no batch size. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import sum_of_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    UNCAPPED,
    Observation,
    ProfileSample,
    State,
    Trial,
    timed,
)
from airflow_provider_zeus.plugin.answer_parts import (
    Answer,
    Chart,
    RunRow,
    Sentence,
    Source,
    Tile,
    Verdict,
)
from airflow_provider_zeus.plugin.charts.dag_charts import cost_chart
from airflow_provider_zeus.plugin.text import headline, run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.text.saved_text import Outcome, ShownSaving, Took
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.dataset import ENERGY, gpu_s_of, total
from airflow_provider_zeus.reports.limit_profiles import (
    SAME_W,
    LimitSaving,
    limit_saving,
    same_limit,
)
from airflow_provider_zeus.reports.next_run import next_rung
from airflow_provider_zeus.units import counted


@dataclass(frozen=True)
class MeasuredLog:
    """The slow blocks: the newest runs.

    :param more: the log holds older runs than these.
    :param profile: of their power limits, on the newest device.
    """

    trials: Sequence[Trial]
    job: ZeusJob
    factors: Factors
    more: bool
    profile: Sequence[ProfileSample]

    @cached_property
    def rows(self) -> list[RunRow]:
        """The figures of each run, newest first."""
        return costs.rows_of(self.trials, self.job)

    @cached_property
    def ended(self) -> list[Trial]:
        """The attempts that ended on the newest source: sources are never added."""
        ended = self._of_any_source
        if not ended:
            return []
        # A new device may have another meter, whose figures do not add to the old one's.
        newest = ended[-1].observation.energy_source
        return [trial for trial in ended if trial.observation.energy_source == newest]

    @property
    def _of_any_source(self) -> list[Trial]:
        return [trial for trial in timed(self.trials) if trial.state is not State.RUNNING]

    @property
    def newest(self) -> Observation:
        """The figures of the newest of them; there is one."""
        return self.ended[-1].observation

    @property
    def source(self) -> Source:
        """The badge of the figures."""
        if not self.ended:
            return Source()
        return words.badge([self.newest.energy_source], words.why_no_energy(self.ended[-1]))

    @cached_property
    def limit(self) -> LimitSaving | None:
        """The saving by the power limit on the newest device; None if no profile tells it."""
        observations = [trial.observation for trial in self.ended]
        # A profile holds for one device: limits of another one save something else.
        here = [of for of in observations if of.where == self.newest.where]
        return limit_saving(here, self.profile)

    @property
    def sentence(self) -> Sentence:
        """The cost of the runs, and the saving by the power limit."""
        if not self.ended:
            return Sentence(text=headline.NO_RUN)
        spent = RunsSpent.of(self.ended)
        saved = limit_sentence(self.limit, self.weights)
        # A reader who sees no saving wants to know why, and what to do.
        if not saved:
            saved = nothing_saved(self.job, self.newest)
        count = counted(spent.runs, "run")
        if self.more:
            count = f"The newest {count}"
        intervals = []
        # The sentence itself is short: the intervals stand on its hover.
        if self.limit is not None:
            intervals = saved_text.known_outcomes(limit_kinds(self.limit))
        return Sentence(
            text=f"{count} cost {spent.took.text}. {saved}.\n{headline.NEXT}: {self.comes_next}.",
            sure=saved_text.how_sure(saved),
            exact=words.sentence_case("; ".join(intervals)),
            source=self.source,
        )

    @property
    def comes_next(self) -> str:
        """The next run, in a sentence's middle; empty if none has ended."""
        if not self.ended:
            return ""
        # The mean of runs at the same limit: others took another energy.
        about = f"about {RunsSpent.of(self.alike).mean.text}"
        return ", ".join(filter(None, (self.at_limit, about)))

    @cached_property
    def alike(self) -> list[Trial]:
        """The attempts that tell the cost of a further one.

        If the job tunes a power limit, they are those at the limit of the newest one.
        """
        # Without a limit of ours all runs are alike.
        if not self.job.tries_limits:
            return self.ended
        limit_w = self.newest.power_limit_w
        return [t for t in self.ended if same_limit(t.observation.power_limit_w, limit_w)]

    @property
    def weights(self) -> Weights:
        """Of energy and time, on the newest run's device; if none has ended, of energy alone."""
        if not self.ended:
            return ENERGY
        return weights_of(self.job, self.newest)

    @property
    def at_limit(self) -> str:
        """The power limit that the newest run had; empty if the job tunes none."""
        limit_w = self.newest.power_limit_w
        if limit_w is None or not self.job.tries_limits:
            return ""
        # The limit is of one GPU, the maximum of all of them together.
        full_w = (self.newest.max_power_w or math.inf) / self.newest.devices
        limit = words.watts(limit_w).text
        if limit_w >= full_w - SAME_W:
            return f"at full power ({limit})"
        return f"at {limit}"

    @property
    def state(self) -> str:
        """The reason that keeps the page from telling more, with its remedy."""
        if self.source.kind != "no-source":
            return ""
        return self.source.why

    @property
    def cost(self) -> Chart:
        """The chart of the cost of each run."""
        return cost_chart(self.rows, self.weights)

    @property
    def rung(self) -> str:
        """The next step for the job; empty if the state names one that comes first."""
        # A device without a meter has to be mended first.
        if self.state:
            return ""
        return next_rung(self.job)

    @property
    def headline(self) -> list[Answer]:
        """The cost of the runs, the saving by the power limit, and the cost of a further run."""
        if not self.ended:
            return []
        factors = self.factors.at_the_time([trial.observation for trial in self.ended])

        def tiles(took: Took, gpu_s: float) -> list[Tile]:
            return headline.spent_tiles(took, gpu_s, self.source, factors)

        spent = RunsSpent.of(self.ended)
        alike = RunsSpent.of(self.alike)
        about = "as the runs so far"
        if self.at_limit:
            about = f"{self.at_limit}, {about}"
            if len(self.alike) < len(self.ended):
                about = f"as those {self.at_limit}"
        return [
            Answer(
                question=headline.COST,
                about=f"of {counted(spent.runs, 'run')}",
                figures=tiles(spent.took, spent.gpu_s),
            ),
            *saved_by_limit(self.limit, self.weights),
            Answer(
                question=headline.NEXT,
                about=about,
                figures=[
                    *tiles(alike.mean, alike.gpu_s / alike.runs),
                    *use_tiles([trial.observation for trial in self.alike]),
                ],
            ),
        ]

    @property
    def gaps(self) -> list[str]:
        """The gaps in the figures."""
        notes = []
        if self.more:
            notes.append(run_notes.OLDER)
        # A reader who counts runs would miss them.
        others = len(self._of_any_source) - len(self.ended)
        if others:
            notes.append(f"Left out: {counted(others, 'attempt')} of another energy source.")
        shared = run_notes.shared_job(self.trials)
        if shared:
            notes.append(shared)
        return notes


@dataclass(frozen=True, slots=True)
class RunsSpent:
    """The sums of runs."""

    took: Took
    gpu_s: float
    runs: int

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> RunsSpent:
        """``trials``: their attempts."""
        observations = [trial.observation for trial in trials]
        energy_j = total(one.energy_j for one in observations)
        time_s = sum_of_known(one.time_s for one in observations)
        runs = len({trial.recurrence for trial in trials})
        return cls(took=Took(energy_j, time_s), gpu_s=gpu_s_of(observations), runs=runs)

    @property
    def mean(self) -> Took:
        """The cost of one of them."""
        means = [None if sum_ is None else sum_ / self.runs for sum_ in self.took]
        return Took(*means)


def limit_sentence(saving: LimitSaving | None, weights: Weights) -> str:
    """The saving by the power limit, and whether that paid, in a sentence.

    Empty if no profile tells it.
    """
    # Without energy a limit saves nothing that can be told.
    if saving is None or saving.energy_j.value is None:
        return ""
    kinds = limit_kinds(saving)
    text = saved_text.saved_sentence("the power limit", kinds, "full power")
    return text + saved_text.in_all(kinds, limit_cost(saving, weights), weights)


def limit_kinds(saving: LimitSaving) -> dict[str, Saved]:
    """Energy and time of the runs beside full power."""
    return {
        "energy": _limit_saved("J", saving.full_j, saving.energy_j),
        "time": _limit_saved("s", saving.full_s, saving.time_s),
    }


def limit_cost(saving: LimitSaving, weights: Weights) -> Saved:
    """The saving of cost by the power limit (Eq. 2).

    The doubt of energy and time is one profile's, so it adds up.
    """
    energy = saving.energy_j
    time = saving.time_s
    saved = Estimate(
        weights.cost(energy.value, time.value or 0.0),
        low=weights.cost(energy.low, time.low or 0.0),
        high=weights.cost(energy.high, time.high or 0.0),
    )
    return _limit_saved(weights.unit, weights.cost(saving.full_j, saving.full_s), saved)


def _limit_saved(unit: str, full: float, saved: Estimate) -> Saved:
    return Saved(
        unit=unit,
        spent=None if saved.value is None else full - saved.value,
        baseline=Estimate(full),
        saved=saved,
        exploration=None,
        settled=Estimate.missing("profiling is in it"),
    )


def nothing_saved(job: ZeusJob, newest: Observation) -> str:
    """Why there is nothing to tell of a saving, in a sentence's middle."""
    # It is set only after lower limits were measured: then nothing is left to tune.
    if UNCAPPED in newest.reasons:
        return "No power limit can save anything here, so none is chosen"
    if job.tries_limits:
        return "Nothing was saved: no power limit was tuned yet"
    return "Nothing was saved so far: this job is only measured, and nothing is changed"


def limit_verdict(
    saving: LimitSaving | None, weights: Weights, job: ZeusJob, newest: Observation
) -> Verdict:
    """Whether the power limit of a run without a batch size was worth it."""
    text = limit_sentence(saving, weights)
    if saving is None or not text:
        # No verdict is known, so the word says what was done.
        word = "Tuned" if job.mode == "optimize" else "Measured"
        return Verdict(kind="unknown", word=word, text=f"{nothing_saved(job, newest)}.")
    outcome = Outcome.of_cost(limit_cost(saving, weights))
    return Verdict(kind=outcome.kind, word=outcome.word, text=f"{text}.")


def saved_by_limit(saving: LimitSaving | None, weights: Weights) -> list[Answer]:
    """The saving by the power limit against full power; empty if no profile tells it."""
    if saving is None:
        return []
    about = f"by the power limit, against full power ({saving.full_w:,.0f} W)"
    in_unit = partial(words.energy, beside_j=saving.energy_j.value)
    shown = [
        ShownSaving("Energy", saving.energy_j, figure=in_unit, baseline=saving.full_j),
        ShownSaving("Time", saving.time_s, figure=words.duration, baseline=saving.full_s),
    ]
    return [saved_text.saved_answer(about, shown, limit_cost(saving, weights), weights=weights)]


def use_tiles(observations: Sequence[Observation]) -> list[Tile]:
    """Mean power and GPU use of attempts, as far as they are known."""
    # A mean needs energy and time of the same attempts.
    both = [one for one in observations if one.time_s and one.energy_j is not None]
    shares = [one.gpu_busy for one in observations if one.gpu_busy is not None]
    tiles = []
    if both:
        time_s = sum_of_known(one.time_s for one in both)
        power_w = sum_of_known(one.energy_j for one in both) / time_s
        figure = words.watts(power_w)
        # Whole watts of a small device would round most of them away.
        if power_w < 10:
            figure.text = f"{power_w:.2g} W"
        tiles.append(Tile(name="Mean power", figure=figure))
    if shares:
        tiles.append(Tile(name="GPU use", figure=words.share(fmean(shares))))
    return tiles
