"""What the tab of a DAG is made of whose job chooses no batch size: its tasks are measured as they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, ProfileSample, State, Trial
from airflow_provider_zeus.plugin.charts import dag_charts
from airflow_provider_zeus.plugin.text import headline, run_notes, words
from airflow_provider_zeus.plugin.text.saved_text import amount_tile
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.models import Answer, Chart, Figure, RunRow, Source, Tile
from airflow_provider_zeus.plugin.views.prices import Factors
from airflow_provider_zeus.reports.dataset import total
from airflow_provider_zeus.reports.limit_saving import limit_saving
from airflow_provider_zeus.reports.next_run import next_rung
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
    more: bool = False
    profile: Sequence[ProfileSample] = ()

    @cached_property
    def rows(self) -> list[RunRow]:
        """What each run took, newest first."""
        return costs.rows_of(self.trials, self.job)

    @property
    def headline(self) -> list[Answer]:
        """What the runs took, and what a run takes."""
        ended = [t for t in self.trials if t.state is not State.RUNNING and t.observation.time_s is not None]
        if not ended:
            return [Answer(question=headline.COST, note="no run has ended yet; what each run took is shown here then")]
        newest = ended[-1].observation
        alike = [t for t in ended if t.observation.energy_source == newest.energy_source]  # sources are never added
        seen, runs = [t.observation for t in alike], len({t.recurrence for t in alike})
        left = "" if len(alike) == len(ended) else f"; {len(ended) - len(alike)} of another energy source are left out"
        source, factors = words.badge([newest.energy_source]), self.factors.at_the_time(seen)
        energy_j, time_s = total(o.energy_j for o in seen), math.fsum(o.time_s or 0.0 for o in seen)
        gpu_s = math.fsum((o.time_s or 0.0) * (o.device_count or 1) for o in seen)
        devices = gpu_s / time_s if time_s else 1.0
        about = f"of {'the newest ' * self.more}{counted(runs, 'run')}{left}"
        spent = headline.spent_tiles(energy_j, time_s, source, factors, devices)
        each = headline.spent_tiles(
            None if energy_j is None else energy_j / runs, time_s / runs, source, factors, devices
        )
        return [
            Answer(question=headline.COST, about=about, figures=spent),
            Answer(question="A run", about="on average", figures=[*each, *use_tiles(seen)]),
            *saved_by_limit([o for o in seen if o.where == newest.where], self.profile, source),
        ]

    @property
    def gaps(self) -> list[str]:
        """What would save, and what the runs are."""
        older = "Charts and sums are of the newest runs alone; the export has the older ones too." if self.more else ""
        shared = run_notes.shared_job(self.trials)
        return [*filter(None, (next_rung(self.job), older, shared))]

    @property
    def cost(self) -> Chart:
        """The chart of what each run took."""
        chart = dag_charts.cost_chart(self.rows)
        return words.badged(chart, words.badge([row.source.name for row in dag_charts.charted(self.rows)]))


def saved_by_limit(seen: Sequence[Observation], profile: Sequence[ProfileSample], source: Source) -> list[Answer]:
    """What the power limit saved against full power; empty where no profile tells it."""
    found = limit_saving(seen, profile)
    if found is None:
        return []
    about = f"by the power limit, against full power ({found.full_w:,.0f} W), in {counted(found.runs, 'run')}"
    tiles = [
        amount_tile("Energy", found.energy_j, words.energy, source),
        amount_tile("Time", found.time_s, words.duration, source),
    ]
    return [Answer(question=headline.SAVED, about=about, figures=tiles)]


def use_tiles(seen: Sequence[Observation]) -> list[Tile]:
    """Mean power and GPU use of what was observed; what is not known is left out."""
    known = [(o.energy_j, o.time_s) for o in seen if o.energy_j is not None and o.time_s]
    busy = [o.gpu_busy for o in seen if o.gpu_busy is not None]
    tiles = []
    if known:
        power_w = math.fsum(j for j, _ in known) / math.fsum(s for _, s in known)
        tiles.append(Tile(name="Power", figure=_power(power_w)))
    if busy:
        note = "share of the time in which the GPU worked"
        tiles.append(Tile(name="GPU use", figure=words.share(fmean(busy)), note=note))
    return tiles


def _power(power_w: float) -> Figure:
    text = f"{power_w:,.0f} W" if power_w >= 10 else f"{power_w:.2g} W"
    return Figure(value=power_w, text=text, exact=f"{power_w:,.3f} W")
