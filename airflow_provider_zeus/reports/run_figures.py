"""What one scheduled run cost, and what it saved against the default batch size at full power. Pure.

All that tells a run's figures reads them here: the task's log, metrics, lineage and asset events, and the pages. XCom
``zeus_cost`` has what was measured, without the saving. ``savings.py`` adds up the savings of all runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, ProfileSample, State, Trial, Where
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Baseline, Saved
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, Dataset, RunTrials, as_dataset, gpu_s_of, recurrences
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, LimitSaving, limit_saving
from airflow_provider_zeus.reports.months import SIMULATED, kind_of
from airflow_provider_zeus.signals.prices import Prices

NEWEST = 100  # trials of a job that its saving, its belief and the names of its devices are read from


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSaving:
    """One run against the default at full power, on the run's device."""

    default_batch_size: int
    full_power_w: float | None  # None: the device has no limit
    kept: bool  # whether the run left a model
    measured: bool  # whether the default itself trained to an end in it
    cost: Saved  # Eq. 2
    energy: Saved
    time: Saved
    where: Where
    runs: tuple[RunTrials, ...]  # the run, where its attempts compare
    base: Baseline


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The default at full power on one device, to compare any number of runs of one job with."""

    job: ZeusJob
    where: Where
    base: Baseline

    @classmethod
    def of(cls, log: Dataset, where: Where, *, profiles: Sequence[ProfileSample] = ()) -> Yardstick:
        """``log``: the job's runs, those to be compared among them; ``profiles``: of the device ``where``.

        Its draws have one seed, so every page and message shows the same saving of a run.
        """
        base = Baseline.of(replace(log, where=where).of_target(), LimitProfiles.of(profiles))
        return cls(log.job, where, base)

    def saving(self, trials: Iterable[Trial]) -> RunSaving:
        """Compare one run; ``trials``: all its tries and attempts."""
        log = as_dataset(trials, self.job, self.where).of_target()
        runs, left_out = recurrences(log)
        kept, base = any(r.kept for r in runs), self.base
        if not runs:
            why_not = f"its attempts do not compare ({'; '.join(left_out)})" if left_out else "none of it was measured"
            base = replace(base, why_not=why_not)
        elif base.why_not is None and (base.epochs is None or any(r.id not in base.epochs.column for r in runs)):
            base = replace(base, why_not="it is older than the runs that the default's cost is estimated from")
        weights = Weights.of(self.job, log.device)

        def compared(weights: Weights, unit: str) -> Saved:
            found = base.compare(runs, weights, unit)
            return found if runs else replace(found, spent=None, exploration=None)

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


def last_measured(own: Sequence[Trial]) -> Trial | None:
    """The trial of a run that says on which device it ran; None while the run trains, and where none was measured."""
    measured = [t for t in own if t.observation.where is not None and t.observation.time_s is not None]
    return measured[-1] if measured and all(t.state is not State.RUNNING for t in own) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The figures of a run that has ended.

    :param cost: XCom ``zeus_cost``.
    :param ended: its trials as their ends say, in order.
    :param newest: of its job in the log, those of the run among them; empty where the log cannot be read.
    :param log: these, as far as they count; None where the run is not whole in the log.
    :param saving: None: not known.
    """

    cost: Mapping[str, Any]
    ended: Sequence[Trial]
    newest: Sequence[Trial] = ()
    log: Dataset | None = None
    profiles: Sequence[ProfileSample] = ()
    saving: RunSaving | None = None
    limit: LimitSaving | None = None  # of a run without a batch size: what its power limit saved

    def as_event(self, prices: Prices) -> dict[str, Any]:
        """What lineage and asset events carry, as plain JSON of at most some 2 kB. What is not known is absent.

        Numbers, and texts that say whose they are. ``prices``: in force.
        """
        cost, drawn = self.cost, [t.observation for t in self.ended]
        sources = {o.energy_source for o in drawn if o.energy_j is not None}
        source = sources.pop() if len(sources) == 1 else None
        energy_j, time_s = _amount(cost["energy_j"]) if source else None, _amount(cost["time_s"])
        kept: Mapping[str, Any] = next((a for a in cost["attempts"] if a["kept"]), {})
        prices = prices.at_the_time(drawn)
        money, grams = None, prices.co2e_g_of(energy_j)
        if prices.currency:  # without one it has no unit
            money = prices.money_of(energy_j, None if time_s is None else gpu_s_of(drawn))
        simulated = any(kind_of(o.energy_source) == SIMULATED for o in drawn)
        values = {
            "job_id": cost["job_id"],
            "batch_size": cost["batch_size"],
            "power_limit_w": _amount(kept.get("power_limit_w")),
            "energy_j": energy_j,
            "energy_source": None if energy_j is None else source,
            "time_s": time_s,
            "time_source": None if time_s is None else SIMULATED if simulated else "measured",
            "money": money,
            "currency": None if money is None else prices.currency,
            "money_source": None if money is None else prices.paid_by,
            "co2e_g": grams,
            "co2e_source": None if grams is None else prices.g_co2e_from or "[zeus] g_co2e_per_kwh",
            **self._saved(),
        }
        return {name: value for name, raw in values.items() if (value := _plain(raw)) is not None}

    def _saved(self) -> dict[str, Any]:
        """The saving with its 90 % interval, as an event has it; empty where it is not known."""
        run, limit, more = self.saving, self.limit, dict[str, Any]()
        if run is not None:
            energy, time, verdict = run.energy.saved, run.time.saved, run.cost.saved.verdict
            more = {"default_batch_size": run.default_batch_size}
        elif limit is not None:
            energy, time, verdict = limit.energy_j, limit.time_s, limit.energy_j.verdict
        if (run is None and limit is None) or (energy.value is None and time.value is None):
            return {}
        ends = {
            f"saved_{end}{unit}": getattr(saved, field)
            for unit, saved in (("j", energy), ("s", time))
            for end, field in (("", "value"), ("low_", "low"), ("high_", "high"))
        }
        source = "measured" if run is not None and run.measured else "estimated"
        return {**ends, "saved_verdict": verdict, "saved_source": source, **more}


@own_arithmetic()
def with_log(
    found: RunFigures, newest: Sequence[Trial], profile: Callable[[str, Where | None, str], Sequence[ProfileSample]]
) -> RunFigures:
    """The figures with what the log says of the job and of what the run saved, all its tries together.

    :param newest: trials of the job.
    :param profile: gives the profile of a job on a device, of a job version.
    """
    last = found.ended[-1]
    own = [t for t in newest if t.recurrence == last.recurrence]
    told, measured = sum(t.key.ti_id == last.key.ti_id for t in own), last_measured(own)
    found = replace(found, newest=newest)
    if last.planned.phase is Phase.MEASURED:
        known = profile(last.job_id, last.observation.where, str(last.spec["job_version"]))
        return replace(found, limit=limit_saving([t.observation for t in own], known))
    if measured is None or measured.observation.where is None or told < min(len(found.ended), len(newest)):
        return found
    job, where = measured.job, measured.observation.where
    profiles = profile(measured.job_id, where, job.job_version)
    log = as_dataset(newest, job, where)
    log = replace(log, folded=log.belief())
    saving = Yardstick.of(log, where, profiles=profiles).saving(own)
    return replace(found, log=log, profiles=profiles, saving=saving)


def _amount(value: float | None) -> float | None:
    """A finite number of at least 0; None for anything else that a training may report."""
    return value if value is not None and 0 <= value < math.inf else None


def _plain(value: Any) -> Any:
    """The value as JSON holds it, a text with 200 characters at most; None where it is not finite, or empty."""
    if isinstance(value, str):
        return visible(value[:200])[:200] or None
    if isinstance(value, int) or value is None:
        return value
    return float(value) if math.isfinite(value) else None
