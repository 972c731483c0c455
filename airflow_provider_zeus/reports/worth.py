"""What retrainings bought: the earlier model and the new one on the same new data, beside what the run cost. Pure.

A statement about the past, where the earlier model's metric was reported (``run.still_good()``, ``run.served()``). What
fewer retrainings would have left is said only as far as runs that trained nothing show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.slices import Change
from airflow_provider_zeus.reports.dataset import Dataset, runs_of, total
from airflow_provider_zeus.units import counted, energy_text

LEAST = 3  # of a mean with an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the newest retrainings of a job bought, in the unit of its metric; a gain above 0 is better."""

    metric: str
    runs: int
    before: float
    after: float
    gain: Estimate  # of one retraining, mean with its 90 % interval
    energy_j: float | None  # of all of them, with all attempts
    after_changes: tuple[tuple[str, int, float], ...]  # (day, runs, mean gain) of the runs that followed a change
    others: float | None  # mean gain of the runs that followed none
    skipped: int  # runs that trained nothing
    skipped_metric: float | None  # mean metric of the earlier model on their data

    def said(self) -> str:
        """For people."""
        paid = "" if self.energy_j is None else f" for {energy_text(self.energy_j)}"
        between = "" if self.gain.low is None else f" ({_short(self.gain.low)} to {_short(self.gain.high)}, 90 %)"
        said = (
            f"The last {counted(self.runs, 'retraining')} brought {self.metric} from {_short(self.before)} to "
            f"{_short(self.after)} on average{paid}: {_short(self.gain.value)} each{between}."
        )
        for day, runs, gain in self.after_changes:
            said += f" The {counted(runs, 'run')} at the change of {day} brought {_short(gain)} each."
        if self.after_changes and self.others is not None:
            said += f" The others brought {_short(self.others)}."
        if self.skipped and self.skipped_metric is not None:
            kept = f"{counted(self.skipped, 'run')} that trained nothing served with {_short(self.skipped_metric)}"
            said += f" Meanwhile {kept}; what fewer retrainings would have left is not known beyond that."
        return said


def worth(log: Dataset, changes: Sequence[Change] = (), last: int = 20) -> Worth | str:
    """What the newest ``last`` retrainings bought; or why that is not known.

    :param changes: lasting changes of the data, as the belief has them.
    """
    target, trials = log.job.parsed_target, log.of_target().trials
    told, energies, skipped = list[Trial](), list[float | None](), list[float]()
    for run in reversed(runs_of(trials)):
        kept = run[-1]
        before, after = kept.observation.served, kept.observation.metric
        if kept.state is State.NOT_NEEDED and after is not None:
            skipped.append(after)
        elif kept.state.kept_model and before is not None and after is not None:
            told.append(kept)
            energies.append(total(t.observation.energy_j for t in run))
        if len(told) == last:
            break
    if not told:
        return "no run reported how good the earlier model was on its data: call run.served(...) or run.still_good(...)"
    pairs = {t.number: (t.observation.served or 0.0, t.observation.metric or 0.0) for t in told}
    better = target.higher_is_better
    gains = {n: after - before if better else before - after for n, (before, after) in pairs.items()}
    groups = [(change, [g for n, g in gains.items() if n in change.shown_by]) for change in changes]
    shown = {n for change in changes for n in change.shown_by}
    others = [g for n, g in gains.items() if n not in shown]
    opened = {t.number: t.opened_at for t in trials}
    return Worth(
        metric=target.metric,
        runs=len(told),
        before=statistics.fmean(before for before, _ in pairs.values()),
        after=statistics.fmean(after for _, after in pairs.values()),
        gain=_mean(list(gains.values())),
        energy_j=total(energies),
        after_changes=tuple(
            (f"{datetime.fromtimestamp(opened[change.since], UTC):%-d %B}", len(found), statistics.fmean(found))
            for change, found in groups
            if found and change.since in opened
        ),
        others=statistics.fmean(others) if others else None,
        skipped=len(skipped),
        skipped_metric=statistics.fmean(skipped) if skipped else None,
    )


def _mean(values: Sequence[float]) -> Estimate:
    mean = statistics.fmean(values)
    if len(values) < LEAST:
        return Estimate(mean, None, None)
    free = len(values) - 2
    student = (
        6.31,
        2.92,
        2.35,
        2.13,
        2.02,
        1.94,
        1.89,
        1.86,
        1.83,
        1.81,
    )  # 90 %, by degrees of freedom from 1
    half = (student[free] if free < len(student) else 1.72) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def _short(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2g}"
