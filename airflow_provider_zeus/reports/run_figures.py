"""Cost of one scheduled run, and its saving against the default batch size at full power. Pure.

All that tells a run's figures reads them here: the task's log, metrics, lineage and asset events,
and the pages. XCom ``zeus_cost`` has the measured figures, without the saving. ``savings.py`` adds
up the savings of all runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.energy_source import SIMULATED, kind_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, ProfileSample, State, Trial, Where
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Baseline, Saved
from airflow_provider_zeus.reports.dataset import (
    ENERGY,
    TIME,
    Dataset,
    RunTrials,
    as_dataset,
    gpu_s_of,
    recurrences,
)
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, LimitSaving, limit_saving
from airflow_provider_zeus.reports.set_aside import SetAside
from airflow_provider_zeus.signals.prices import Prices

MOST_RUNS = 1000  # older runs say little, and all of a log of years would take minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSaving:
    """One run against the default at full power, on the run's device."""

    default_batch_size: int
    full_power_w: float | None  # None: nothing was profiled, so texts name no limit
    kept: bool
    measured: bool  # the default itself ran, so the saving may be called measured
    cost: Saved
    energy: Saved
    time: Saved
    where: Where
    runs: tuple[RunTrials, ...]
    base: Baseline

    @property
    def source(self) -> str:
        """ "measured" if the default itself ended in it, and its cost is not known by a profile
        alone.
        """
        by_profile = any(run.id in self.base.by_profile for run in self.runs)
        if self.measured and not by_profile:
            return "measured"
        return "estimated"

    @property
    def aside(self) -> SetAside:
        """Its failed and cleared tries, which are in none of these figures."""
        return SetAside.of(self.runs)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The default at full power on one device, to compare any number of runs of one job with."""

    job: ZeusJob
    where: Where
    base: Baseline

    @classmethod
    def of(cls, log: Dataset, where: Where, *, profiles: Sequence[ProfileSample] = ()) -> Yardstick:
        """``log``: the job's runs, those to be compared among them; ``profiles``: of the device
        ``where``.

        Its draws have one seed, so every page and message shows the same saving of a run.
        """
        base = Baseline.of(replace(log, where=where).of_target(), LimitProfiles.of(profiles))
        return cls(log.job, where, base)

    def saving(self, trials: Iterable[Trial]) -> RunSaving:
        """Compare one run; ``trials``: all its tries and attempts."""
        log = as_dataset(trials, self.job, self.where).of_target()
        runs, left_out = recurrences(log)
        kept = any(r.kept for r in runs)
        base = replace(self.base, why_not=self._why_not(runs, left_out))
        weights = Weights.of(self.job, log.device)

        def compared(weights: Weights, unit: str) -> Saved:
            saved = base.compare(runs, weights, unit)
            if runs:
                return saved
            return replace(saved, spent=None, exploration=None)

        return RunSaving(
            default_batch_size=self.job.default_batch_size,
            full_power_w=base.full_power_w,
            kept=kept,
            measured=any(run.id in base.ended for run in runs),
            cost=compared(weights, weights.unit),
            energy=compared(ENERGY, "J"),
            time=compared(TIME, "s"),
            where=self.where,
            runs=tuple(runs),
            base=base,
        )

    def _why_not(self, runs: Sequence[RunTrials], left_out: Iterable[str]) -> str | None:
        """Why these runs are not compared; None: they are.

        ``left_out``: why trials are not read.
        """
        base = self.base
        if not runs:
            reasons = "; ".join(left_out)
            if not reasons:
                return "none of it was measured"
            return f"its attempts do not compare ({reasons})"
        if base.why_not is None and not base.covers(runs):
            return "it is older than the runs that the default's cost is estimated from"
        return base.doubt_of(runs) or base.why_not


def last_measured(own: Sequence[Trial]) -> Trial | None:
    """The trial of a run that says on which device it ran; None while the run trains, or if none
    was measured.
    """
    # Its device may still change with its next attempt.
    if any(t.state is State.RUNNING for t in own):
        return None
    for trial in reversed(own):
        o = trial.observation
        if o.where is not None and o.time_s is not None:
            return trial
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The figures of a run that has ended.

    :param cost: XCom ``zeus_cost``.
    :param ended: its trials as their ends say, in order.
    :param newest: of its job in the log, those of the run among them; empty if the log cannot be
        read.
    :param log: these, as far as they count; None if the run is not whole in the log.
    :param saving: None: not known.
    """

    cost: Mapping[str, Any]
    ended: Sequence[Trial]
    newest: Sequence[Trial] = ()
    log: Dataset | None = None
    profiles: Sequence[ProfileSample] = ()
    saving: RunSaving | None = None
    limit: LimitSaving | None = None  # without a batch size its power limit alone can save
    why_not: str | None = None

    @property
    def attempts(self) -> Sequence[Trial]:
        """All attempts of the run in order, those of earlier tries too as far as the log could be
        read.
        """
        run = self.ended[-1].recurrence
        ended = {t.key for t in self.ended}
        own = [t for t in self.newest if t.recurrence == run]
        return [*(t for t in own if t.key not in ended), *self.ended]

    def as_event(self, prices: Prices) -> dict[str, Any]:
        """The figures in lineage and asset events, as plain JSON of at most some 2 kB.

        Unknown ones are absent.

        Numbers, and texts that say whose they are. ``prices``: in force.
        """
        cost = self.cost
        observations = [t.observation for t in self.ended]
        values = {"job_id": cost["job_id"], "batch_size": cost["batch_size"]}
        limits_w = [a.get("power_limit_w") for a in cost["attempts"] if a["kept"]]
        if limits_w:
            values["power_limit_w"] = _amount(limits_w[0])
        energy_j = None
        sources = {o.energy_source for o in observations if o.energy_j is not None}
        # never mixed: joules of two sources do not compare
        if len(sources) == 1 and all(sources):
            energy_j = _amount(cost["energy_j"])
        if energy_j is not None:
            values |= {"energy_j": energy_j, "energy_source": sources.pop()}
        time_s = _amount(cost["time_s"])
        gpu_s = None
        if time_s is not None:
            values |= {"time_s": time_s, "time_source": "measured"}
            if any(kind_of(o.energy_source) == SIMULATED for o in observations):
                values["time_source"] = SIMULATED
            gpu_s = gpu_s_of(observations)
        prices = prices.at_the_time(observations)
        money = prices.money_of(energy_j, gpu_s)
        if money is not None and prices.currency:  # without a currency it has no unit
            values |= {
                "money": money,
                "currency": prices.currency,
                "money_source": prices.paid_by,
            }
        grams = prices.co2e_g_of(energy_j)
        if grams is not None:
            source = prices.g_co2e_from or "[zeus] g_co2e_per_kwh"
            values |= {"co2e_g": grams, "co2e_source": source}
        values |= self._saved()
        values |= self._aside()
        event = {name: _plain(value) for name, value in values.items()}
        return wire.without_none(event)

    def _aside(self) -> dict[str, Any]:
        """Energy and time of the run's failed and cleared attempts, this one among them; empty if
        there are none.
        """
        aside = SetAside.of([RunTrials(tuple(self.attempts))])
        if not aside:
            return {}
        return {
            "failed_tries": aside.failed,
            "cleared_tries": aside.cleared,
            "aside_j": _amount(aside.energy_j),
            "aside_s": _amount(aside.time_s),
        }

    def _saved(self) -> dict[str, Any]:
        """The saving with its 90 % interval, as an event has it; empty if nobody has asked."""
        run = self.saving
        if run is not None:
            verdict = run.cost.saved.verdict
            saved = _saved_event(run.energy.saved, run.time.saved, verdict, run.source)
            # A default without a saving would be a name without a use.
            if "saved_not_known" not in saved:
                saved["default_batch_size"] = run.default_batch_size
            return saved
        if self.limit is not None:
            energy = self.limit.energy_j
            return _saved_event(energy, self.limit.time_s, energy.verdict, source="estimated")
        if self.why_not is not None:
            return {"saved_not_known": self.why_not}
        return {}


def _saved_event(
    energy: Estimate, time: Estimate, verdict: str | None, source: str
) -> dict[str, Any]:
    """The ends of both intervals, or why neither is known."""
    if energy.value is None and time.value is None:
        return {"saved_not_known": energy.reason}
    return {
        "saved_j": energy.value,
        "saved_low_j": energy.low,
        "saved_high_j": energy.high,
        "saved_s": time.value,
        "saved_low_s": time.low,
        "saved_high_s": time.high,
        "saved_verdict": verdict,
        "saved_source": source,
    }


@own_arithmetic()
def with_log(
    figures: RunFigures,
    newest: Sequence[Trial],
    profile: Callable[[str, Where | None, str], Sequence[ProfileSample]],
) -> RunFigures:
    """The figures together with the log of the job and the saving of the run, all its tries
    together.

    :param newest: trials of the job's newest runs, whole ones.
    :param profile: gives the profile of a job on a device, of a job version.
    """
    last = figures.ended[-1]
    own = [t for t in newest if t.recurrence == last.recurrence]
    # the log may lag: a result that waits to be stored is not in it
    own_try = [t for t in own if t.key.ti_id == last.key.ti_id]
    measured = last_measured(own)
    figures = replace(figures, newest=newest)
    # Such a run has no batch size to compare.
    if last.planned.phase is Phase.MEASURED:
        samples = profile(last.job_id, last.observation.where, last.job_version)
        return replace(figures, limit=limit_saving([t.observation for t in own], samples))
    where = None
    if measured is not None:
        where = measured.observation.where
    if measured is None or where is None:
        return replace(figures, why_not="nothing of it was measured")
    # A saving of half a run would be told as one of the whole.
    if len(own_try) < len(figures.ended):
        return replace(figures, why_not="the run log does not hold it whole yet")
    job = measured.job
    profiles = profile(measured.job_id, where, job.job_version)
    log = as_dataset(newest, job, where)
    # learning is the slow part: once for all figures
    log = replace(log, folded=log.belief())
    saving = Yardstick.of(log, where, profiles=profiles).saving(own)
    return replace(figures, log=log, profiles=profiles, saving=saving)


def _amount(value: float | None) -> float | None:
    """A finite number of at least 0; None for anything else that a training may report."""
    if value is not None and 0 <= value < math.inf:
        return value
    return None


def _plain(value: Any) -> Any:
    """The value as JSON holds it, a text with 200 characters at most; None if it is not finite, or
    empty.
    """
    if isinstance(value, str):
        # Escapes make a text longer, so it is cut after them once more.
        return visible(value[:200])[:200] or None
    if isinstance(value, int) or value is None:
        return value
    if not math.isfinite(value):
        return None
    return float(value)
