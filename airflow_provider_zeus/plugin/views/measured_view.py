"""What the tab of a DAG is made of whose job chooses no batch size: its tasks are measured as they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean

from airflow_provider_zeus.model.cost import Weights, weights_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import UNCAPPED, Observation, ProfileSample, State, Trial
from airflow_provider_zeus.plugin.text import headline, run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.saved_text import Outcome, Told
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.factors import Factors
from airflow_provider_zeus.plugin.views.models import Answer, RunRow, Sentence, Source, Tile
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.dataset import ENERGY, gpu_s_of, total
from airflow_provider_zeus.reports.limit_profiles import SAME_W, LimitSaving, limit_saving, same_limit
from airflow_provider_zeus.units import counted


@dataclass(frozen=True)
class MeasuredLog:
    """What the slow blocks are made of: the newest runs.

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
        """What each run took, newest first."""
        return costs.rows_of(self.trials, self.job)

    @cached_property
    def ended(self) -> list[Trial]:
        """The attempts that ended on the newest source: sources are never added."""
        found = [t for t in self.trials if t.state is not State.RUNNING and t.observation.time_s is not None]
        return [t for t in found if t.observation.energy_source == found[-1].observation.energy_source]

    @property
    def source(self) -> Source:
        """The badge of the figures."""
        return words.badge([self.ended[-1].observation.energy_source] if self.ended else [])

    @cached_property
    def limit(self) -> LimitSaving | None:
        """What the power limit saved on the newest device; None where no profile tells it."""
        seen = [t.observation for t in self.ended]
        return limit_saving([o for o in seen if o.where == seen[-1].where], self.profile)

    @property
    def sentence(self) -> Sentence:
        """What the runs took, and what the power limit saved."""
        if not self.ended:
            return Sentence(text=headline.NO_RUN)
        energy_j, time_s, runs = self.sums
        saved = limit_sentence(self.limit, self.weights) or nothing_saved(self.job, self.ended[-1].observation)
        text = (
            f"{'The newest ' * self.more}{counted(runs, 'run')} cost {headline.took_text(energy_j, time_s)}. "
            f"{saved}.\n{headline.NEXT}: {self.comes_next}."
        )
        kinds = limit_kinds(self.limit).items() if self.limit else ()
        exact = "; ".join(f"{name} {Outcome.of_cost(of).text}" for name, of in kinds if of.saved.value is not None)
        exact = f"{exact[:1].upper()}{exact[1:]}"
        return Sentence(text=text, sure=saved_text.how_sure(saved), exact=exact, source=self.source)

    @property
    def comes_next(self) -> str:
        """The next run, in a sentence's middle; empty where none has ended."""
        if not self.ended:
            return ""
        energy_j, time_s, runs = taken(self.alike)
        each = headline.took_text(None if energy_j is None else energy_j / runs, time_s / runs)
        return f"{self.at}about {each}"

    @cached_property
    def alike(self) -> list[Trial]:
        """The attempts that had the power limit of the newest one, where the job tunes it: what a further one takes."""
        limit_w = self.ended[-1].observation.power_limit_w
        return [t for t in self.ended if not self.job.tries_limits or same_limit(t.observation.power_limit_w, limit_w)]

    @property
    def weights(self) -> Weights:
        """Of energy and time, on the device of the newest run; where none has ended, of energy alone."""
        return weights_of(self.job, self.ended[-1].observation) if self.ended else ENERGY

    @cached_property
    def sums(self) -> tuple[float | None, float, int]:
        """Energy [J] and time [s] of the runs, and how many they are."""
        return taken(self.ended)

    @property
    def at(self) -> str:
        """The power limit that the newest run had, where the job tunes it, before what such a run takes."""
        newest = self.ended[-1].observation
        if not self.job.tries_limits or newest.power_limit_w is None:
            return ""
        full_w = (newest.max_power_w or math.inf) / (newest.device_count or 1)
        limit = words.watts(newest.power_limit_w).text
        return f"at full power ({limit}), " if newest.power_limit_w >= full_w - SAME_W else f"at {limit}, "

    @property
    def state(self) -> str:
        """What keeps the page from telling more, with its remedy."""
        return self.source.why if self.source.kind == "no-source" else ""

    @property
    def headline(self) -> list[Answer]:
        """What the runs took, what the power limit saved, and what a further run takes."""
        if not self.ended:
            return []
        seen, source = [t.observation for t in self.ended], self.source
        factors = self.factors.at_the_time(seen)

        def tiles(trials: Sequence[Trial], by: int = 1) -> list[Tile]:
            energy_j, time_s, _ = taken(trials)
            gpu_s = gpu_s_of(t.observation for t in trials)
            each_j = None if energy_j is None else energy_j / by
            return headline.spent_tiles(each_j, time_s / by, gpu_s / by, source, factors)

        return [
            Answer(
                question=headline.COST,
                about=f"of {counted(self.sums[2], 'run')}",
                figures=tiles(self.ended),
            ),
            *saved_by_limit(self.limit, self.weights),
            Answer(
                question=headline.NEXT,
                about=f"as those {self.at[:-2]}"
                if self.at and len(self.alike) < len(seen)
                else f"{self.at}as the runs so far",
                figures=[*tiles(self.alike, taken(self.alike)[2]), *use_tiles([t.observation for t in self.alike])],
            ),
        ]

    @property
    def gaps(self) -> list[str]:
        """What the runs are, and what the figures leave out."""
        others = sum(t.observation.time_s is not None and t.state is not State.RUNNING for t in self.trials)
        others -= len(self.ended)
        left = f"Left out: {counted(others, 'trial')} of another energy source." if others else ""
        return [*filter(None, (run_notes.OLDER * self.more, left, run_notes.shared_job(self.trials)))]


def taken(trials: Sequence[Trial]) -> tuple[float | None, float, int]:
    """Energy [J] and time [s] of these attempts, and of how many runs they are."""
    seen = [t.observation for t in trials]
    return (
        total(o.energy_j for o in seen),
        math.fsum(o.time_s or 0.0 for o in seen),
        len({t.recurrence for t in trials}),
    )


def limit_sentence(found: LimitSaving | None, weights: Weights) -> str:
    """What the power limit saved, and whether that paid, in a sentence; empty where no profile tells it."""
    if found is None or found.energy_j.value is None:
        return ""
    kinds = limit_kinds(found)
    told = saved_text.saved_sentence("the power limit", kinds, "full power")
    return told + saved_text.in_all(kinds, limit_cost(found, weights), weights)


def limit_kinds(found: LimitSaving) -> dict[str, Saved]:
    """Energy and time of the runs beside full power."""
    return {
        name: _limit_saved(unit, full, saved)
        for name, unit, full, saved in (
            ("energy", "J", found.full_j, found.energy_j),
            ("time", "s", found.full_s, found.time_s),
        )
    }


def limit_cost(found: LimitSaving, weights: Weights) -> Saved:
    """What the power limit saved of the cost (Eq. 2); the doubt of energy and time is one profile's, so it adds up."""
    energy, time, full = found.energy_j, found.time_s, weights.cost(found.full_j, found.full_s)
    ends = ((energy.value, time.value), (energy.low, time.low), (energy.high, time.high))
    value, low, high = (weights.cost(j, s or 0.0) for j, s in ends)
    return _limit_saved(weights.unit, full, Estimate(value, low, high))


def _limit_saved(unit: str, full: float, saved: Estimate) -> Saved:
    untold, spent = Estimate.missing("profiling is in it"), None if saved.value is None else full - saved.value
    return Saved(unit=unit, spent=spent, baseline=Estimate(full), saved=saved, exploration=None, settled=untold)


def nothing_saved(job: ZeusJob, newest: Observation) -> str:
    """Why there is nothing to tell of a saving, in a sentence's middle."""
    if UNCAPPED in newest.reasons:
        return "No power limit can save anything here, so none is chosen"
    return (
        "Nothing was saved: no power limit was tuned yet"
        if job.tries_limits
        else "Nothing was saved so far: this job is only measured, and nothing is changed"
    )


def saved_by_limit(found: LimitSaving | None, weights: Weights) -> list[Answer]:
    """What the power limit saved against full power; empty where no profile tells it."""
    if found is None:
        return []
    about = f"by the power limit, against full power ({found.full_w:,.0f} W)"
    in_unit = partial(words.energy, beside_j=found.energy_j.value)
    told = [Told("Energy", found.energy_j, in_unit, found.full_j)]
    told += [Told("Time", found.time_s, words.duration, found.full_s)]
    return [saved_text.saved_answer(about, told, limit_cost(found, weights), weights)]


def use_tiles(seen: Sequence[Observation]) -> list[Tile]:
    """Mean power and GPU use of what was observed; what is not known is left out."""
    known = [(o.energy_j, o.time_s) for o in seen if o.energy_j is not None and o.time_s]
    busy = [o.gpu_busy for o in seen if o.gpu_busy is not None]
    tiles = []
    if known:
        power_w = math.fsum(j for j, _ in known) / math.fsum(s for _, s in known)
        text = f"{power_w:,.0f} W" if power_w >= 10 else f"{power_w:.2g} W"
        figure = words.watts(power_w).model_copy(update={"text": text})
        tiles.append(Tile(name="Mean power", figure=figure))
    if busy:
        tiles.append(Tile(name="GPU use", figure=words.share(fmean(busy))))
    return tiles
