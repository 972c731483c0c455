"""The gain by retrainings: the earlier model and the new one on the same new data, beside the cost.
Pure.

A statement about the past, if the earlier model's metric was reported (``run.still_good()``,
``run.served()``). What fewer retrainings would have left is said only as far as runs that trained
nothing show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.slices import Change
from airflow_provider_zeus.reports.dataset import Dataset, runs_of, total
from airflow_provider_zeus.units import counted, energy_text

LEAST = 3  # of two values the interval is six times as wide as their difference


class GainAfter(NamedTuple):
    """Gain of the runs that followed a change of the data."""

    day: str
    runs: int
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The gain by the newest retrainings of a job, in the unit of its metric; above 0 is better.

    :param gain: of one retraining; ``energy_j``: of all of them, with all attempts.
    :param skipped: runs that trained nothing.
    """

    metric: str
    runs: int
    before: float
    after: float
    gain: Estimate
    energy_j: float | None
    after_changes: tuple[GainAfter, ...]
    others: float | None  # beside these: a gain without a change of the data is chance
    skipped: int
    skipped_metric: float | None  # it shows what was lost by not training

    def said(self) -> str:
        """For people."""
        paid = ""
        if self.energy_j is not None:
            paid = f" for {energy_text(self.energy_j)}"
        between = ""
        if self.gain.low is not None:
            between = f" ({_short(self.gain.low)} to {_short(self.gain.high)}, 90 %)"
        text = (
            f"The last {counted(self.runs, 'retraining')} brought {self.metric} from "
            f"{_short(self.before)} to {_short(self.after)} on average{paid}: "
            f"{_short(self.gain.value)} each{between}."
        )
        for after in self.after_changes:
            runs = counted(after.runs, "run")
            text += f" The {runs} at the change of {after.day} brought {_short(after.gain)} each."
        if self.after_changes and self.others is not None:
            text += f" The others brought {_short(self.others)}."
        if self.skipped and self.skipped_metric is not None:
            runs = counted(self.skipped, "run")
            metric = _short(self.skipped_metric)
            text += (
                f" Meanwhile {runs} that trained nothing served with {metric}; what fewer "
                "retrainings would have left is not known beyond that."
            )
        return text


def worth(log: Dataset, changes: Sequence[Change] = (), last: int = 20) -> Worth | str:
    """The gain by the newest ``last`` retrainings; or why it is not known.

    :param changes: lasting changes of the data, as the belief has them.
    """
    target = log.job.parsed_target
    trials = log.of_target().trials
    retrainings = list[_Retraining]()
    skipped = list[float]()
    for run in reversed(runs_of(trials)):
        kept = run[-1]
        before = kept.observation.served
        after = kept.observation.metric
        if after is None:
            continue
        if kept.state is State.NOT_NEEDED:
            skipped.append(after)
        elif kept.state.kept_model and before is not None:
            gain = after - before
            if not target.higher_is_better:
                gain = before - after
            energy_j = total(t.observation.energy_j for t in run)
            retrainings.append(_Retraining(kept.number, before, after, gain, energy_j))
        # Runs that trained nothing before these were not "meanwhile", as the text calls them.
        if len(retrainings) == last:
            break
    if not retrainings:
        return (
            "no run reported how good the earlier model was on its data: call run.served(...) "
            "or run.still_good(...)"
        )
    shown = {number for change in changes for number in change.shown_by}
    return Worth(
        metric=target.metric,
        runs=len(retrainings),
        before=statistics.fmean(r.before for r in retrainings),
        after=statistics.fmean(r.after for r in retrainings),
        gain=_interval([r.gain for r in retrainings]),
        energy_j=total(r.energy_j for r in retrainings),
        after_changes=_after(changes, retrainings, trials),
        others=_mean([r.gain for r in retrainings if r.number not in shown]),
        skipped=len(skipped),
        skipped_metric=_mean(skipped),
    )


class _Retraining(NamedTuple):
    """A run that reported the earlier model's metric before its own."""

    number: int
    before: float
    after: float
    gain: float
    energy_j: float | None


def _after(
    changes: Sequence[Change], retrainings: Sequence[_Retraining], trials: Sequence[Trial]
) -> tuple[GainAfter, ...]:
    """The gain of the runs that followed each change whose first run is in the log."""
    opened = {t.number: t.opened_at for t in trials}
    gains = []
    for change in changes:
        after = [r.gain for r in retrainings if r.number in change.shown_by]
        if after and change.since in opened:
            day = datetime.fromtimestamp(opened[change.since], UTC)
            gains.append(GainAfter(f"{day:%-d %B}", len(after), statistics.fmean(after)))
    return tuple(gains)


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return statistics.fmean(values)


def _interval(values: Sequence[float]) -> Estimate:
    """The mean of at least one value with its 90 % interval, which at least three have."""
    mean = statistics.fmean(values)
    if len(values) < LEAST:
        return Estimate(mean, None, None)
    # 95 % quantiles of Student's t, by degrees of freedom from 1
    quantiles = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
    free = len(values) - 1
    # Cornish and Fisher: z + (z^3 + z) / (4 free) at z = 1.645, which is much too small for few.
    quantile = 1.645 + 1.524 / free
    if free <= len(quantiles):
        quantile = quantiles[free - 1]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def _short(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.2g}"
